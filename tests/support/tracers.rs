//! Tracing with ftrace and bpftrace: counts of events that are independent of the modules', and events that no BPF
//! program can see.

use super::script::Script;
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::Duration;

/// A recording of events by ftrace, which shows the task and the disk of each, to check machine-wide counts of a
/// module. It uses an instance of its own in tracefs, reached through a child process if tracefs is not mounted.
pub struct Recorder {
    directory: PathBuf,
    /// Child process with tracefs mounted.
    _child: Option<Script>,
}

/// An event: its name, its own text, and the current thread.
#[derive(Clone, Debug)]
pub struct Event {
    pub thread: u32,
    pub name: String,
    pub text: String,
}

/// Returns the threads during which the kernel runs no BPF program, neither for themselves nor in interrupts meanwhile;
/// ftrace records these events, and no module can count them. Some virtual machines have such threads, most machines
/// have none. One is found by its soft interrupts: ftrace records several, and bpftrace, which starts before and ends
/// after, counts none. The other threads of its process, whatever their names, behave the same, and may sleep
/// meanwhile. Without bpftrace no thread is found, and counts have to be exactly equal.
pub fn without_bpf() -> &'static [u32] {
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

/// Returns the threads of a thread's process, including itself even if it has ended.
fn threads_beside(thread: u32) -> Vec<u32> {
    let others = std::fs::read_dir(format!("/proc/{thread}/task")).into_iter().flatten().flatten();
    let others = others.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    others.chain([thread]).collect()
}

/// Returns a filter for events during the threads of [`without_bpf`], by this field; `None` if there are none.
fn on_top(field: &str) -> Option<String> {
    let terms: Vec<String> = without_bpf().iter().map(|thread| format!("{field} == {thread}")).collect();
    (!terms.is_empty()).then(|| terms.join(" || "))
}

impl Recorder {
    /// Records these events (`system/name`), as far as the kernel has them, from now on. `None` if it has no tracefs.
    pub fn start(events: &[&str]) -> Option<Recorder> {
        Recorder::filtered(events, None)
    }

    /// Records these events only where no BPF program runs; otherwise like [`Recorder::start`].
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

    /// Marks in the recording that something is read.
    fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        self.write("trace_marker", "reading");
        let value = read();
        self.write("trace_marker", "read");
        value
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
    /// Parses `            bash-1977    [001] ..... 17284.993652: sched_process_fork: comm=...`; a command may have any
    /// characters.
    fn parse(line: &str) -> Option<Event> {
        let is_cpu = |at: usize| line[at..].trim_start_matches(|c: char| c.is_ascii_digit()).starts_with("] ");
        let (cpu, _) = line.match_indices(" [").find(|(at, _)| is_cpu(at + 2))?;
        let thread = line[..cpu].trim_end().rsplit('-').next()?.parse().ok()?;
        let (_, rest) = line[cpu..].split_once(": ")?;
        let (name, text) = rest.split_once(':')?;
        Some(Event { thread, name: name.into(), text: text.trim_start().into() })
    }
}

/// A recording by ftrace with marks where a module's counts were read, twice.
pub struct Readings(Recorder);

impl Readings {
    /// Records these events from now on. `None` if the kernel has no tracefs.
    pub fn record(events: &[&str]) -> Option<Readings> {
        without_bpf();
        Recorder::start(events).map(Readings)
    }

    /// Reads a module's counts, and marks the reading in the recording.
    pub fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        self.0.reading(read)
    }

    /// Ends the recording; returns the events that BPF programs saw: those between the two readings, and those from before the first one to
    /// after the second.
    pub fn end(self) -> [Vec<Event>; 2] {
        let (mut between, mut around, mut marks) = (Vec::new(), Vec::new(), 0);
        for event in self.0.end() {
            if event.name == "tracing_mark_write" {
                marks += 1;
            } else if without_bpf().contains(&event.thread) {
                continue;
            } else if marks == 2 {
                between.push(event.clone());
                around.push(event);
            } else if marks == 1 || marks == 3 {
                around.push(event);
            }
        }
        [between, around]
    }
}

/// A recording of completed requests by ftrace.
pub struct Completions(Option<Recorder>);

/// Completed requests by ftrace; all zero without tracefs.
#[derive(Debug, Default)]
pub struct Completed {
    /// Number of the disk's requests with data whose completion BPF programs saw.
    pub seen: u64,
    /// Number of the disk's requests with data whose completion no BPF program saw.
    pub unseen: u64,
    /// Bytes of the requests in `unseen`.
    pub unseen_bytes: u64,
    /// Number of requests of other disks that BPF programs saw. Lower bound: those with data between two readings of a
    /// module's counts; upper bound: those, with flushes, from before the first reading to after the second.
    pub elsewhere: Option<(u64, u64)>,
    /// Number of the disk's requests without data whose completion no BPF program saw: flushes and their parents.
    pub unseen_empty: u64,
}

impl Completions {
    pub fn record() -> Completions {
        without_bpf();
        Completions(Recorder::start(&["block/block_rq_complete"]))
    }

    /// Reads a module's counts, and marks the reading in the recording.
    pub fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(recorder) => recorder.reading(read),
            None => read(),
        }
    }

    /// Ends the recording; returns the requests of a disk, by a name such as `sda`.
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

/// Arrivals of the threads of a process on a CPU, by ftrace, which sees no more of them than BPF programs: on a kernel
/// with threads without BPF ([`without_bpf`]), both miss switches from one of these, and ftrace misses some switches
/// from the idle task.
pub struct Arrivals(Recorder);

impl Arrivals {
    /// Starts recording the present threads of a process. `None` if the kernel has no tracefs.
    pub fn of_process(pid: u32) -> Option<Arrivals> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let thread = |entry: std::fs::DirEntry| format!("next_pid == {}", entry.file_name().to_str().unwrap());
        let terms: Vec<String> = threads.map(|entry| thread(entry.unwrap())).collect();
        Recorder::filtered(&["sched/sched_switch"], Some(&terms.join(" || "))).map(Arrivals)
    }

    /// Ends the recording; returns the number of arrivals.
    pub fn end(self) -> u64 {
        self.0.end().len() as u64
    }
}

/// Arrivals of tasks on a CPU, and wake-ups before them, that no BPF program sees. Both ftrace and BPF programs miss
/// that a thread of [`without_bpf`] leaves a CPU; but ftrace sees it arrive, which bounds the number of arrivals.
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

    /// Returns the highest number of arrivals, and the number of wake-ups, of all tasks.
    pub fn end(self) -> (u64, u64) {
        let count = |recorder: Option<Recorder>| recorder.map_or(0, |recorder| recorder.end().len() as u64);
        let (arrivals, wake_ups) = (count(self.switches), count(self.wake_ups));
        println!("{arrivals} arrivals at most and {wake_ups} wake-ups where no program runs");
        (arrivals, wake_ups)
    }

    /// Returns the highest number of arrivals that are not counted: a BPF program misses the switch to a task, or the
    /// wake-up from which it waits.
    pub fn either(self) -> u64 {
        let (arrivals, wake_ups) = self.end();
        arrivals + wake_ups
    }
}

/// A bpftrace process that counts events machine-wide; `probe` is its probe with its filter.
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

    /// Ends it; returns its count.
    pub fn end(mut self) -> u64 {
        self.interrupt();
        loop {
            if let Some(count) = self.script.line().strip_prefix("@n: ") {
                return count.parse().unwrap();
            }
        }
    }

    /// Ends it; returns the threads of the counted events.
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
