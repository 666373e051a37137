//! Helpers for the tests: modules loaded without pmcd, their log, scripts that work in steps, disks of the test.

pub use crate::common::script::{copy_program, part, python, write_program, Script};
use crate::common::{lacks, loaded, skip, test};
use corebcc::collector::Engine;
use corebcc::kit::{Key, Table, TableId, TableSpec};
use corebcc::loader::Failure;
use corebcc::modules::find;
use corebcc::pcp::Atom;
use nix::sys::eventfd::EventFd;
use nix::sys::mman::{mmap, MapFlags, ProtFlags};
use nix::unistd::{fork, ForkResult, Pid};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

/// Lets one test run at a time: each compares differences that another test's work would raise.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            LINES.lock().unwrap().push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

/// A row of a table: its identifier or number, its name, its values.
#[derive(Debug)]
pub struct Row {
    pub id: u32,
    pub name: String,
    pub values: Vec<Option<String>>,
}

impl Row {
    /// Returns all rows of a table.
    pub fn all(table: &Table) -> Vec<Row> {
        let value = |row, column| {
            Some(match table.value(row, column)? {
                Atom::U32(number) => number.to_string(),
                Atom::I32(number) => number.to_string(),
                Atom::I64(number) => number.to_string(),
                Atom::U64(number) => number.to_string(),
                Atom::Str(text) => String::from_utf8_lossy(text).into_owned(),
                other => panic!("{other:?}: a type no module has"),
            })
        };
        let row = |(row, key): (usize, &Key)| {
            let text = |range| String::from_utf8_lossy(table.text(range)).into_owned();
            let (id, name) = match key {
                Key::Index(index) => (*index, index.to_string()),
                Key::Pid(id, name) | Key::Numbered(id, name) => (*id, text(name)),
                Key::Name(name) => (row as u32, text(name)),
                Key::Single => (0, String::new()),
            };
            Row { id, name, values: (0..table.columns()).map(|column| value(row, column)).collect() }
        };
        table.keys().iter().enumerate().map(row).collect()
    }

    /// Returns the text of a column. Panics if there is none.
    pub fn text(&self, column: usize) -> String {
        self.values[column].clone().unwrap_or_else(|| panic!("column {column} of {self:?}"))
    }

    /// Returns the number of a column. Panics if there is none.
    pub fn number(&self, column: usize) -> u64 {
        self.text(column).parse().unwrap_or_else(|_| panic!("column {column} of {self:?}"))
    }
}

/// The addresses by which the two ends of a connection meet.
pub struct Meeting {
    /// Family of the listening socket, and its address.
    pub family: &'static str,
    pub listen: &'static str,
    /// Address to which the other end connects, which is its own address too.
    pub connect: &'static str,
    /// Address of the accepted socket, both its own and the other end's.
    pub accepted: &'static str,
}

pub const IPV4: Meeting =
    Meeting { family: "AF_INET", listen: "127.0.0.1", connect: "127.0.0.1", accepted: "127.0.0.1" };
pub const IPV6: Meeting = Meeting { family: "AF_INET6", listen: "::1", connect: "::1", accepted: "::1" };
/// An IPv4 connection to an IPv6 socket.
pub const MAPPED: Meeting =
    Meeting { family: "AF_INET6", listen: "::", connect: "127.0.0.1", accepted: "::ffff:127.0.0.1" };

/// Time that suffices for attaching to existing processes.
const MOMENT: Duration = Duration::from_millis(10);

/// A loaded module.
pub struct Agent {
    group: Engine,
    /// An event that nobody triggers.
    never: EventFd,
    name: String,
    table: &'static TableSpec,
}

/// Returns the agent, or prints that the test was skipped for lack of these needs. Panics if the verifier refused a program, which is
/// no lack of the kernel.
#[track_caller]
fn possible(needs: &str, agent: Result<Agent, Failure>) -> Option<Agent> {
    agent
        .inspect_err(|failure| {
            let Failure { reason, kernel_log, .. } = failure;
            assert!(![reason, kernel_log].iter().any(|said| said.contains("insns (limit")), "{reason}: {kernel_log}");
            skip(&format!("{needs} ({reason})"));
        })
        .ok()
}

fn with_avoided<T>(names: &str, load: impl FnOnce() -> T) -> T {
    const AVOID: &str = "COREBCC_AVOID";
    let others = std::env::var(AVOID).unwrap_or_default();
    std::env::set_var(AVOID, format!("{others},{names}"));
    // A module that cannot be loaded is a panic, after which other tests run.
    let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
    std::env::set_var(AVOID, others);
    loaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Agent {
    /// Loads a module with the options of its section. Each gets a section name of its own, by which its log lines are found.
    pub fn new(module: &str, options: &str) -> Agent {
        Agent::try_new(module, options)
            .unwrap_or_else(|failure| panic!("{module}: {} {} (root is needed)", failure.reason, failure.kernel_log))
    }

    /// Loads a module with these names in COREBCC_AVOID: features of the kernel in it are inverted. Only for tests that run alone.
    pub fn avoiding(names: &str, module: &str, options: &str) -> Agent {
        with_avoided(names, || Agent::new(module, options))
    }

    /// Loads a module as [`Agent::avoiding`], if the kernel has what it needs.
    pub fn where_possible_avoiding(names: &str, needs: &str, module: &str, options: &str) -> Option<Agent> {
        with_avoided(names, || Agent::where_possible(needs, module, options))
    }

    /// Loads a module; if the kernel has no hooks for it, prints that the test was skipped.
    pub fn where_possible(needs: &str, module: &str, options: &str) -> Option<Agent> {
        possible(needs, Agent::try_new(module, options))
    }

    /// Loads a module as `where_possible`, with a search at each tick for processes of the option `process` that came or went.
    pub fn watching(needs: &str, module: &str, options: &str) -> Option<Agent> {
        possible(needs, Agent::load(module, options, Some(Duration::from_secs(1))))
    }

    pub fn try_new(module: &str, options: &str) -> Result<Agent, Failure> {
        Agent::load(module, options, None)
    }

    /// Loads a module with another one beside it.
    pub fn beside(other: &str, module: &str, options: &str) -> Agent {
        Agent::load_with(Some(other), module, options, None)
            .unwrap_or_else(|failure| panic!("{module}: {}", failure.reason))
    }

    fn load(module: &str, options: &str, process_refresh: Option<Duration>) -> Result<Agent, Failure> {
        Agent::load_with(None, module, options, process_refresh)
    }

    fn load_with(
        other: Option<&str>,
        module: &str,
        options: &str,
        process_refresh: Option<Duration>,
    ) -> Result<Agent, Failure> {
        static ONCE: Once = Once::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        ONCE.call_once(|| {
            log::set_logger(&Keep).unwrap();
            log::set_max_level(log::LevelFilter::Warn);
        });
        let name = format!("{module}_{}", NUMBER.fetch_add(1, Relaxed));
        let more = other.map(|other| (format!(",{other}"), format!("[{other}]\nmodule = {other}\ncluster = 8\n")));
        let (more, section) = more.unwrap_or_default();
        let text =
            format!("[pmda]\nmodules = {name}{more}\n[{name}]\nmodule = {module}\ncluster = 7\n{options}\n{section}");
        let (group, _) = loaded(&text, process_refresh);
        for outcome in group.outcomes() {
            outcome?;
        }
        let mut agent = Agent { group, never: EventFd::new().unwrap(), name, table: find(module).unwrap().tables[0] };
        agent.settle();
        Ok(agent)
    }

    /// True if a program is attached to the hook.
    pub fn is_attached(&self, hook: &str) -> bool {
        self.group.attached().iter().any(|(attached, _)| *attached == hook)
    }

    /// Returns the kind of the programs that are attached to a hook. Panics if there are none.
    pub fn way_of(&self, hook: &str) -> &'static str {
        let attached = self.group.attached();
        attached.iter().find(|(attached, _)| *attached == hook).unwrap_or_else(|| panic!("{hook}: {attached:?}")).1
    }

    pub fn table(&mut self) -> Table {
        let mut table = Table::of(self.table);
        self.group.refresh(TableId::new(7), &mut table).unwrap();
        table
    }

    /// Returns another table of the module.
    pub fn other(&mut self, spec: &'static TableSpec) -> Table {
        let mut table = Table::of(spec);
        self.group.refresh(TableId::new(spec.cluster as u16), &mut table).unwrap();
        table
    }

    /// Stores a text to the first metric of another table of the module.
    pub fn store(&mut self, spec: &'static TableSpec, text: &str) {
        self.group.store(TableId::new(spec.cluster as u16), 0, text.as_bytes()).unwrap();
    }

    /// Returns the count of a histogram by series, as Prometheus reads it in the table with this cluster, after checking that the
    /// buckets of each series are in order and that the last one equals the count.
    pub fn scraped(&mut self, module: &str, cluster: u32, histogram: usize) -> BTreeMap<String, u64> {
        let spec = find(module).unwrap().tables.iter().find(|spec| spec.cluster == cluster).unwrap();
        let table = self.other(spec);
        let [bucket, sum, count] = ["bucket", "sum", "count"].map(|end| {
            let of_it = |metric: &str| metric.ends_with(&format!(".seconds_{end}"));
            let metrics = spec.metrics.iter().enumerate().filter(|(_, metric)| of_it(metric.name));
            metrics.map(|(column, _)| column).nth(histogram).unwrap()
        });
        let (mut buckets, mut counts) = (BTreeMap::<String, Vec<(f64, u64)>>::new(), BTreeMap::new());
        for (row, key) in table.keys().iter().enumerate() {
            let (Key::Name(name) | Key::Numbered(_, name)) = key else { panic!("{key:?}") };
            let name = String::from_utf8_lossy(table.text(name)).into_owned();
            if table.value(row, bucket).is_some() {
                let (le, series) = name.split_once("::").unwrap_or((&name, "all"));
                let below = (le.parse().unwrap(), number(&table, row, bucket));
                buckets.entry(series.to_owned()).or_default().push(below);
                continue;
            }
            let Some(Atom::Double(seconds)) = table.value(row, sum) else { panic!("{name} has no sum") };
            let (count, below) = (number(&table, row, count), &buckets[&name]);
            assert!(below.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}: {below:?}");
            assert_eq!(below.last(), Some(&(f64::INFINITY, count)), "{name}");
            // The sum is read first, so that it has no time that the buckets do not have.
            let longest = below.iter().find(|(_, below)| *below == count).unwrap().0;
            assert!(
                seconds <= count as f64 * longest && (seconds > 0.0 || count <= 1),
                "{name}: {seconds} s of {count}"
            );
            counts.insert(name, count);
        }
        counts
    }

    pub fn tick(&mut self) {
        self.group.tick();
        self.settle();
    }

    /// Waits until all probes are attached, which is done a slice at a time.
    fn settle(&mut self) {
        self.attend(MOMENT);
        while self.group.is_due() {
            self.attend(MOMENT);
        }
    }

    /// Does the work of the collector's thread between fetches for a time.
    pub fn attend(&mut self, time: Duration) {
        self.group.attend(self.never.as_fd(), Some(Instant::now() + time));
    }

    pub fn detach(self) {
        self.group.detach();
    }

    /// Returns the value of a module without instances.
    pub fn single(&mut self) -> u64 {
        number(&self.table(), 0, 0)
    }

    pub fn histogram(&mut self) -> Vec<u64> {
        let table = self.table();
        (0..table.len()).map(|row| number(&table, row, 0)).collect()
    }

    pub fn total(&mut self) -> u64 {
        self.histogram().iter().sum()
    }

    /// Returns the numbers of each named instance.
    pub fn named(&mut self) -> BTreeMap<String, Vec<u64>> {
        let table = self.table();
        let name = |key: &Key| match key {
            Key::Name(name) | Key::Pid(_, name) => String::from_utf8_lossy(table.text(name)).into_owned(),
            other => panic!("{other:?} has no name"),
        };
        let numbers = |row| (0..self.table.metrics.len()).map(|column| number(&table, row, column)).collect();
        table.keys().iter().enumerate().map(|(row, key)| (name(key), numbers(row))).collect()
    }

    /// Returns the attached hooks.
    pub fn hooks(&self) -> Vec<&'static str> {
        self.group.attached().iter().map(|(hook, _)| *hook).collect()
    }

    /// Returns the kinds of programs that are attached to targets of the configuration.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.group.reached()
    }

    /// Returns the runs of its programs that the kernel skipped (bcc.agent.program.misses).
    pub fn skipped_runs(&self) -> u64 {
        self.group.skipped_runs()
    }

    /// Returns all rows, with their values as text.
    pub fn rows(&mut self) -> Vec<Row> {
        Row::all(&self.table())
    }

    /// Returns the numbers of a column by name, without rows that have none.
    pub fn numbers(&mut self, column: usize) -> BTreeMap<String, u64> {
        let rows = self.rows().into_iter();
        rows.filter_map(|row| Some((row.name, row.values[column].as_ref()?.parse().unwrap()))).collect()
    }

    /// Asserts counts that are as wanted, but for events at which the kernel skipped a program because a task that was preempted inside of it
    /// had not left it: the kernel counts these.
    pub fn assert_counted<const N: usize>(&self, counts: [u64; N], wanted: [u64; N]) {
        let skipped = self.skipped_runs();
        let is_counted = |(&count, wanted): (&u64, u64)| (wanted.saturating_sub(skipped)..=wanted).contains(&count);
        assert!(counts.iter().zip(wanted).all(is_counted), "{counts:?}, wanted {wanted:?}, {skipped} runs skipped");
    }

    /// Asserts that nothing was lost, unless the kernel skipped programs.
    pub fn assert_complete(&mut self) {
        let warnings = self.warnings();
        assert!(warnings.is_empty() || self.skipped_runs() > 0, "{warnings:?}");
    }

    /// Returns its warnings so far, with its losses.
    pub fn warnings(&mut self) -> Vec<String> {
        self.tick();
        let prefix = format!("{}: ", self.name);
        LINES.lock().unwrap().iter().filter_map(|line| line.strip_prefix(&prefix).map(str::to_string)).collect()
    }

    /// True if a warning or error of any module since the start of the program contains this text.
    pub fn was_said(text: &str) -> bool {
        LINES.lock().unwrap().iter().any(|line| line.contains(text))
    }
}

pub fn number(table: &Table, row: usize, column: usize) -> u64 {
    match table.value(row, column) {
        Some(Atom::U64(value)) => value,
        Some(Atom::U32(value)) => value.into(),
        other => panic!("row {row} column {column}: {other:?}"),
    }
}

/// Returns the names of a table's instances.
pub fn names(table: &Table) -> Vec<String> {
    let name = |key: &Key| match key {
        Key::Name(name) | Key::Numbered(_, name) => String::from_utf8_lossy(table.text(name)).into_owned(),
        key => panic!("{key:?}"),
    };
    table.keys().iter().map(name).collect()
}

/// Returns the growth of each bucket of a histogram.
pub fn since(later: &[u64], earlier: &[u64]) -> Vec<u64> {
    later.iter().enumerate().map(|(slot, count)| count - earlier.get(slot).unwrap_or(&0)).collect()
}

/// Waits until events whose two counts are microseconds apart have reached both.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(30));
}

/// Runs a command. Returns its output; panics if it fails.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {} {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the command name of programs that [`python`] starts.
pub fn command() -> &'static str {
    "python3"
}

/// Runs a test again after shell commands, in a mount namespace of its own; prints that it was skipped if that is not possible.
pub fn run_again(needs: &str, preparations: &str, mut unshare: Command) {
    let _alone = alone();
    let script = format!("{preparations} && exec \"$@\"");
    unshare.args(["-m", "sh", "-c", &script, "sh"]).arg(std::env::current_exe().unwrap());
    let output = match unshare.args([&*test(), "--exact", "--nocapture"]).output() {
        Ok(output) => output,
        Err(error) => return skip(&format!("unshare: {error}")),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.contains("running 1 test") {
        return skip(&format!("{needs}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
}

/// Functions of this process that stand in for functions the kernel does not have: a kprobe's program does the same in user code as
/// in the kernel's, except for the callers, which it does not see.
pub struct StandIns(BTreeMap<String, StandIn>);

type StandIn = extern "C" fn(usize, extern "C" fn(*mut c_void), *mut c_void, i64) -> i64;

/// Source of a function, whose machine code becomes the only content of its file.
const STAND_IN: &str =
    "long function(void *first, void (*work)(void *), void *context, long result) { work(context); return result; }";

/// Shell commands after which kprobes in the mount namespace are of the type of uprobes. The name of a function is the path of a file
/// then.
const KPROBES_ARE_UPROBES: &str = "kinds=/sys/bus/event_source/devices && uprobe=$(readlink -e $kinds/uprobe) && \
    mount -t tmpfs tmpfs $kinds && ln -s \"$uprobe\" $kinds/uprobe && ln -s \"$uprobe\" $kinds/kprobe";

impl StandIns {
    /// Makes functions with these names for a test that needs no others of their kind. Returns `None` if the test ran in a process of
    /// its own, or was skipped.
    pub fn of(names: &[&str]) -> Option<StandIns> {
        const HERE: &str = "COREBCC_STAND_INS";
        if std::env::var_os(HERE).is_some() {
            return Some(StandIns(names.iter().map(|name| ((*name).to_string(), StandIns::map(name))).collect()));
        }
        if lacks(&["gcc", "objcopy"]) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let (source, built, code) = (path("source.c"), path("built"), path("code"));
        std::fs::write(&source, STAND_IN).unwrap();
        run("gcc", &["-O2", "-fcf-protection=none", "-c", &source, "-o", &built]);
        run("objcopy", &["-O", "binary", "-j", ".text", &built, &code]);
        for name in names {
            std::fs::copy(&code, path(name)).unwrap();
        }
        let mut unshare = Command::new("unshare");
        unshare
            .current_dir(directory.path())
            .env(HERE, "1")
            .env("COREBCC_AVOID", "fexit,fentry,fexit of lock debugging");
        run_again("a mount namespace and CONFIG_UPROBE_EVENTS", KPROBES_ARE_UPROBES, unshare);
        None
    }

    /// Maps the function in a file.
    fn map(name: &str) -> StandIn {
        let file = std::fs::File::open(name).unwrap();
        let length = usize::try_from(file.metadata().unwrap().len()).unwrap().try_into().unwrap();
        let executed = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        // SAFETY: a mapping of its own, which nobody unmaps, of a file with the code of a function of this type.
        unsafe {
            let code = mmap(None, length, executed, MapFlags::MAP_PRIVATE, &file, 0).unwrap();
            std::mem::transmute::<*mut c_void, StandIn>(code.as_ptr())
        }
    }

    /// Calls a function with a first argument, some work to do, and a value to return.
    pub fn call(&self, name: &str, first: usize, mut work: &mut dyn FnMut(), result: i64) {
        extern "C" fn run(context: *mut c_void) {
            // SAFETY: the call below passes a pointer to its `work`, which outlives it.
            unsafe { (*context.cast::<&mut dyn FnMut()>())() }
        }
        assert_eq!(self.0[name](first, run, std::ptr::from_mut(&mut work).cast(), result), result);
    }
}

/// Makes calls that wait for a pipe from a number of threads at the same time, all of them for at least this time.
pub fn wait_together(threads: usize, time: Duration, call: impl Fn(&PipeReader) + Sync) {
    let (from, to) = std::io::pipe().unwrap();
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let work = || {
                begun.fetch_add(1, Relaxed);
                call(&from);
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, work).unwrap();
        }
        while begun.load(Relaxed) < threads {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(2 * time); // the last has time to begin to wait
        drop(to);
    });
}

/// A process with a single thread that sleeps, or does other work, as often as it is told, and waits for orders.
pub struct Sleeper {
    pid: Pid,
    tell: PipeWriter,
    answer: PipeReader,
}

impl Sleeper {
    pub fn new() -> Sleeper {
        Sleeper::doing(|times| (0..times).for_each(|_| std::thread::sleep(Duration::from_millis(1))))
    }

    /// Starts one that does other work, which needs no other thread and no memory.
    pub fn doing(work: fn(u32)) -> Sleeper {
        let (mut told, tell) = std::io::pipe().unwrap();
        let (answer, mut answers) = std::io::pipe().unwrap();
        // SAFETY: the child only reads, writes, works and ends, none of which needs another thread or memory.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => Sleeper { pid: child, tell, answer },
            ForkResult::Child => {
                // Its own end of the pipe to it: else it would never see that the other is closed.
                drop(tell);
                let mut times = [0; 4];
                while told.read_exact(&mut times).is_ok() {
                    work(u32::from_ne_bytes(times));
                    let _ = answers.write_all(&[0]);
                }
                // SAFETY: it returns to nobody.
                unsafe { nix::libc::_exit(0) }
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    pub fn sleep(&mut self, times: u32) {
        self.begin(times);
        self.end();
    }

    /// Tells it to work.
    pub fn begin(&mut self, times: u32) {
        self.tell.write_all(&times.to_ne_bytes()).unwrap();
    }

    /// Waits until it has worked.
    pub fn end(&mut self) {
        self.answer.read_exact(&mut [0]).unwrap();
    }

    /// Returns the number of its arrivals on a CPU (proc(5), `schedstat`), once it waits for orders.
    pub fn arrivals(&self) -> u64 {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.pid)).unwrap();
        let arrivals = || file("schedstat").split_whitespace().nth(2).unwrap().parse().unwrap();
        loop {
            let before = arrivals();
            settle();
            if file("stat").contains(") S ") && arrivals() == before {
                return before;
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.pid, nix::sys::signal::Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

/// A disk that no other process uses: a loop device over a file in memory, so that its I/O is on no other disk.
pub struct Disk {
    pub device: String,
    file: Option<tempfile::NamedTempFile>,
}

impl Disk {
    pub fn new(megabytes: u64) -> Disk {
        let directory = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let file = tempfile::NamedTempFile::new_in(directory).unwrap();
        file.as_file().set_len(megabytes << 20).unwrap();
        let mut disk = Disk::over(file.path().to_str().unwrap());
        disk.file = Some(file);
        disk
    }

    /// Returns a disk of a virtual machine of tests/vm that may be written to. A loop device keeps the cgroups that used it known to
    /// the kernel for a minute, and a controller in use stays with its hierarchy.
    pub fn spare(name: &str) -> Option<Disk> {
        let disks = std::env::var("COREBCC_DISKS").ok()?;
        disks.split_whitespace().find(|disk| *disk == name).map(|_| Disk { device: format!("/dev/{name}"), file: None })
    }

    pub fn over(path: &str) -> Disk {
        let disk = Disk { device: run("losetup", &["-f", "--show", path]).trim().to_string(), file: None };
        disk.defaults();
        disk
    }

    /// Cuts the file behind it; the device keeps its size.
    pub fn truncate(&self, bytes: u64) {
        self.file.as_ref().unwrap().as_file().set_len(bytes).unwrap();
    }

    /// Returns its name, as `loop0`.
    pub fn name(&self) -> &str {
        self.device.trim_start_matches("/dev/")
    }

    /// Resets the settings, which outlive the file behind a loop device.
    fn defaults(&self) {
        for (attribute, value) in [("iostats", "1"), ("scheduler", "none")] {
            let _ = std::fs::write(format!("/sys/block/{}/queue/{attribute}", self.name()), value);
        }
    }

    /// Returns its major and minor numbers.
    pub fn number(&self) -> (u32, u32) {
        let text = std::fs::read_to_string(format!("/sys/block/{}/dev", self.name())).unwrap();
        let (major, minor) = text.trim().split_once(':').unwrap();
        (major.parse().unwrap(), minor.parse().unwrap())
    }

    pub fn set(&self, attribute: &str, value: &str) {
        std::fs::write(format!("/sys/block/{}/queue/{attribute}", self.name()), value).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !self.name().starts_with("loop") {
            return;
        }
        self.defaults();
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
        self.file.take();
    }
}

/// Index of the sectors written to a disk in /proc/diskstats.
pub const WRITTEN: usize = 6;

/// Returns fields of a disk in /proc/diskstats, of which 0 is the number of reads.
pub fn diskstats<const N: usize>(disk: &str, fields: [usize; N]) -> [u64; N] {
    let text = std::fs::read_to_string("/proc/diskstats").unwrap();
    let line = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|line| line[2] == disk);
    let line = line.unwrap_or_else(|| panic!("no {disk} in {text}"));
    fields.map(|field| line.get(3 + field).map_or(0, |number| number.parse().unwrap()))
}

/// Address of the first byte of code in [`i386_program`].
pub const I386_CODE: u32 = 0x0804_8054;

/// Writes an executable of 32 bits with this code. Returns false, and prints that, if the kernel does not run it.
pub fn i386_program(path: &Path, code: &[u8]) -> bool {
    let size = 84 + code.len() as u32;
    let base = I386_CODE - 84;
    let half = |number: u16| number.to_le_bytes().to_vec();
    let word = |number: u32| number.to_le_bytes().to_vec();
    // The header of the file, then of its one segment.
    let mut elf = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([half(2), half(3), word(1), word(I386_CODE), word(52), word(0), word(0)].concat());
    elf.extend([half(52), half(32), half(1), half(0), half(0), half(0)].concat());
    elf.extend([1, 0, base, base, size, size, 5, 4096].into_iter().flat_map(word));
    elf.extend(code);
    write_program(path, elf);
    let result = Command::new(path).status();
    if let Err(error) = &result {
        skip(&format!("a kernel that runs 32-bit programs for x86 ({error})"));
    }
    result.is_ok()
}
