//! ftrace and bpftrace: counts of events that are independent of the modules', and what no program can see.

use super::script::Script;
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::Duration;

/// A record of events by ftrace, which sees what each task does with which disk: what a module counts machine-wide is held against it. It
/// is in an instance of its own in tracefs, found through a child where that is not mounted.
pub struct Recorder {
    directory: PathBuf,
    /// Has tracefs mounted.
    _child: Option<Script>,
}

/// An event by its name and its own text, and the thread that was the current one.
#[derive(Debug)]
pub struct Event {
    pub thread: u32,
    pub name: String,
    pub text: String,
}

/// The threads on top of which the kernel runs no BPF program, neither for themselves nor in interrupts meanwhile; ftrace records what happens
/// there, and no module can count it. Some virtual machines have such threads, most machines have none. One is found by its soft interrupts:
/// ftrace records several and bpftrace, which began before and ends after, counts none. The others of its process, whatever their names, are
/// the same, and may sleep meanwhile. Without bpftrace no thread is found, and counts have to be equal as they are.
fn without_bpf() -> &'static [u32] {
    static FOUND: OnceLock<Vec<u32>> = OnceLock::new();
    FOUND.get_or_init(|| {
        const LEAST: usize = 3;
        let version = Command::new("bpftrace").arg("--version").stdout(Stdio::null()).status();
        let runs = version.is_ok_and(|status| status.success());
        let Some((bpftrace, recorder)) = runs
            .then(|| Bpftrace::new("tracepoint:irq:softirq_entry { @n[tid] = count(); }"))
            .and_then(|bpftrace| Some((bpftrace, Recorder::start(&["irq/softirq_entry"])?)))
        else {
            return Vec::new();
        };
        std::thread::sleep(Duration::from_secs(5));
        let recorded = recorder.end();
        let counted = bpftrace.by_thread();
        let mut threads = BTreeMap::<u32, usize>::new();
        recorded.iter().for_each(|event| *threads.entry(event.thread).or_default() += 1);
        threads.retain(|thread, times| *thread != 0 && *times >= LEAST && !counted.contains(thread));
        let found: BTreeSet<u32> = threads.into_keys().flat_map(threads_beside).collect();
        let found = Vec::from_iter(found);
        println!("no BPF program runs on top of the threads {found:?}");
        found
    })
}

/// The threads of a thread's process, itself among them even if it has ended.
fn threads_beside(thread: u32) -> Vec<u32> {
    let others = std::fs::read_dir(format!("/proc/{thread}/task")).into_iter().flatten().flatten();
    let others = others.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    others.chain([thread]).collect()
}

/// A filter for the events on top of these threads, by this field; `None` where there are none.
fn on_top(field: &str) -> Option<String> {
    let terms: Vec<String> = without_bpf().iter().map(|thread| format!("{field} == {thread}")).collect();
    (!terms.is_empty()).then(|| terms.join(" || "))
}

impl Recorder {
    /// Records these events (`system/name`), those that the kernel has, from now on. `None` where it has no tracefs.
    pub fn start(events: &[&str]) -> Option<Recorder> {
        Recorder::filtered(events, None)
    }

    /// The same of those only that happen where no program runs.
    pub fn unseen(events: &[&str]) -> Option<Recorder> {
        Recorder::filtered(events, Some(&on_top("common_pid")?))
    }

    fn filtered(events: &[&str], filter: Option<&str>) -> Option<Recorder> {
        const TRACEFS: &str = "/sys/kernel/tracing";
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (mut root, mut child) = (PathBuf::from(TRACEFS), None);
        if !root.join("events").exists() {
            let mount = format!("mount -t tracefs tracefs {TRACEFS} && echo mounted; read end");
            let mut script = Script::new(Command::new("unshare").args(["-m", "sh", "-c", &mount]));
            root = format!("/proc/{}/root{TRACEFS}", script.pid()).into();
            script.line();
            child = Some(script);
        }
        let name = format!("instances/corebcc.{}.{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let recorder = Recorder { directory: root.join(name), _child: child };
        std::fs::create_dir(&recorder.directory).ok()?;
        recorder.write("buffer_size_kb", "16384");
        for event in events {
            let event = format!("events/{event}");
            if recorder.directory.join(&event).exists() {
                filter.inspect(|filter| recorder.write(&format!("{event}/filter"), filter));
                recorder.write(&format!("{event}/enable"), "1");
            }
        }
        Some(recorder)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.directory.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    pub fn end(self) -> Vec<Event> {
        self.write("tracing_on", "0");
        let trace = String::from_utf8_lossy(&std::fs::read(self.directory.join("trace")).unwrap()).into_owned();
        assert!(!trace.contains(" EVENTS] "), "the ring was too small");
        let lines = trace.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| Event::parse(line).unwrap_or_else(|| panic!("no event: {line}"))).collect()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.directory);
    }
}

impl Event {
    /// `            bash-1977    [001] ..... 17284.993652: sched_process_fork: comm=...`; a command may have any characters.
    fn parse(line: &str) -> Option<Event> {
        let is_cpu = |at: usize| line[at..].trim_start_matches(|c: char| c.is_ascii_digit()).starts_with("] ");
        let (cpu, _) = line.match_indices(" [").find(|(at, _)| is_cpu(at + 2))?;
        let thread = line[..cpu].trim_end().rsplit('-').next()?.parse().ok()?;
        let (_, rest) = line[cpu..].split_once(": ")?;
        let (name, text) = rest.split_once(':')?;
        Some(Event { thread, name: name.into(), text: text.trim_start().into() })
    }
}

/// Requests that complete, as ftrace tells of them.
pub struct Completions(Option<Recorder>);

/// What ftrace saw; nothing where there is no tracefs.
#[derive(Debug, Default)]
pub struct Completed {
    /// Requests of the disk that moved something and that programs saw complete.
    pub seen: u64,
    /// Those that no program saw.
    pub unseen: u64,
    /// Their bytes.
    pub unseen_bytes: u64,
    /// Requests of other disks that programs saw: at least those that moved something between two readings of a module's counts, at most
    /// those, flushes included, from before the first to after the second.
    pub elsewhere: Option<(u64, u64)>,
    /// Requests of the disk that moved nothing and that no program saw complete: flushes and their parents.
    pub unseen_empty: u64,
}

impl Completions {
    pub fn record() -> Completions {
        without_bpf();
        Completions(Recorder::start(&["block/block_rq_complete"]))
    }

    /// Reads a module's counts, of which the record has the place.
    pub fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        let mark = |which| self.0.as_ref().inspect(|recorder| recorder.write("trace_marker", which));
        mark("reading");
        let value = read();
        mark("read");
        value
    }

    /// Those of a disk, by its name such as `sda`.
    pub fn of(self, disk: &str) -> Completed {
        let number = std::fs::read_to_string(format!("/sys/block/{disk}/dev")).unwrap();
        let ours = format!("{} ", number.trim().replace(':', ","));
        let Some(recorder) = self.0 else { return Completed::default() };
        let (mut completed, mut elsewhere, mut readings) = (Completed::default(), (0, 0), 0);
        for event in recorder.end() {
            if event.name == "tracing_mark_write" {
                readings += 1;
                continue;
            }
            // `7,0 R () 2048 + 128 none,0,0 [0]`
            let sectors = event.text.split(" + ").nth(1).and_then(|rest| rest.split(' ').next());
            let sectors: u64 = sectors.unwrap().parse().unwrap();
            let is_unseen = without_bpf().contains(&event.thread);
            if event.text.starts_with(&ours) {
                completed.seen += u64::from(!is_unseen && sectors > 0);
                completed.unseen += u64::from(is_unseen && sectors > 0);
                completed.unseen_empty += u64::from(is_unseen && sectors == 0);
                completed.unseen_bytes += u64::from(is_unseen) * sectors * 512;
            } else if !is_unseen {
                elsewhere.0 += u64::from(sectors > 0 && readings == 2);
                elsewhere.1 += u64::from((1..=3).contains(&readings));
            }
        }
        completed.elsewhere = Some(elsewhere);
        if completed.unseen > 0 {
            println!("{completed:?}");
        }
        completed
    }
}

/// Arrivals of the threads of a process on a CPU, by ftrace. It sees none that programs do not: a kernel with threads on top of which no
/// program runs ([`without_bpf`]) tells neither of a switch from one of them, and does not tell ftrace of some switches from the idle task.
pub struct Arrivals(Recorder);

impl Arrivals {
    /// Of the threads it has now, from now on. `None` where the kernel has no tracefs.
    pub fn of_process(pid: u32) -> Option<Arrivals> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let thread = |entry: std::fs::DirEntry| format!("next_pid == {}", entry.file_name().to_str().unwrap());
        let terms: Vec<String> = threads.map(|entry| thread(entry.unwrap())).collect();
        Recorder::filtered(&["sched/sched_switch"], Some(&terms.join(" || "))).map(Arrivals)
    }

    /// How many there were.
    pub fn end(self) -> u64 {
        self.0.end().len() as u64
    }
}

/// Arrivals of tasks on a CPU, and wake-ups before them, that no program sees. When one of those threads leaves a CPU, ftrace sees that as
/// little as programs do; but it sees the thread arrive, so that it is known how many arrivals there are at most.
pub struct UnseenArrivals {
    switches: Option<Recorder>,
    wake_ups: Option<Recorder>,
}

impl UnseenArrivals {
    pub fn record() -> UnseenArrivals {
        let before_others = on_top("next_pid");
        UnseenArrivals {
            switches: before_others.and_then(|filter| Recorder::filtered(&["sched/sched_switch"], Some(&filter))),
            wake_ups: Recorder::unseen(&["sched/sched_wakeup", "sched/sched_wakeup_new"]),
        }
    }

    /// Arrivals at most, and wake-ups, of all tasks.
    pub fn end(self) -> (u64, u64) {
        let count = |recorder: Option<Recorder>| recorder.map_or(0, |recorder| recorder.end().len() as u64);
        let (arrivals, wake_ups) = (count(self.switches), count(self.wake_ups));
        println!("{arrivals} arrivals at most and {wake_ups} wake-ups where no program runs");
        (arrivals, wake_ups)
    }

    /// How many arrivals do not count at most: a program misses the switch to a task, or the wake-up since when it waits.
    pub fn either(self) -> u64 {
        let (arrivals, wake_ups) = self.end();
        arrivals + wake_ups
    }
}

/// bpftrace counting events all over the machine; `probe` is its probe with its filter.
pub struct Bpftrace {
    script: Script,
}

impl Bpftrace {
    pub fn count(probe: &str) -> Bpftrace {
        Bpftrace::new(&format!("{probe} {{ @n = count(); }}"))
    }

    fn new(action: &str) -> Bpftrace {
        // bpftrace looks for tracepoints in tracefs, which is not mounted everywhere: in a name space of its own it is.
        let mounted =
            "[ -e /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing; exec bpftrace \"$@\"";
        // It goes on saying that it is up: the line that is to wake it for reading its ring can fail to, until there is another.
        let source = format!("{action} interval:ms:50 {{ printf(\"up\\n\"); }}");
        let mut script = Script::new(
            Command::new("unshare")
                .args(["-m", "sh", "-c", mounted, "sh", "-B", "none", "-e", &source])
                .stderr(Stdio::null()),
        );
        while script.line() != "up" {}
        Bpftrace { script }
    }

    /// Ends it: how many it counted.
    pub fn end(mut self) -> u64 {
        self.interrupt();
        loop {
            if let Some(count) = self.script.line().strip_prefix("@n: ") {
                return count.parse().unwrap();
            }
        }
    }

    /// Ends it: the threads of which it counted something.
    fn by_thread(mut self) -> BTreeSet<u32> {
        self.interrupt();
        let text = std::io::read_to_string(&mut self.script.output).unwrap();
        // `@n[1977]: 3`
        let thread = |line: &str| line.strip_prefix("@n[")?.split_once(']')?.0.parse().ok();
        text.lines().filter_map(thread).collect()
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(self.script.pid() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    }
}
