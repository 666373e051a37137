//! Support for tests of the finished binary: a directory for each test whose logs are searched for panics at its end,
//! children that do not outlive their test, waiting by polling, and checks for what a host may lack.

#![allow(dead_code)] // each test program uses a part of this

pub mod bpf_mount;
pub mod burner;
pub mod loops;
pub mod pairs;
pub mod rows;
pub mod script;
pub mod slow_disk;
pub mod tracer;
pub mod tracers;

use corebcc::catalog::{enabled_modules, EnabledModule};
use corebcc::collector::{prepared_modules, Engine};
use corebcc::config::{Config, Settings};
use corebcc::modules::MODULES;
use nix::fcntl::{posix_fadvise, PosixFadviseAdvice};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub const BINARY: &str = env!("CARGO_BIN_EXE_pmdacorebcc");

/// A configuration with six modules that every kernel here can load.
pub const ALL: &str = "\
[pmda]
modules = biolatency,sysfork,tcplife,runqlat,exectop,netproc
module_failure_fatal = False
[biolatency]
module = biolatency
cluster = 0
[sysfork]
module = sysfork
cluster = 2
[tcplife]
module = tcplife
cluster = 3
[runqlat]
module = runqlat
cluster = 4
[exectop]
module = exectop
cluster = 13
[netproc]
module = netproc
cluster = 40
";

/// A configuration with one module.
pub const ONE: &str =
    "[pmda]\nmodules = sysfork\nmodule_failure_fatal = False\n[sysfork]\nmodule = sysfork\ncluster = 2\n";

/// Returns a configuration with all modules.
pub fn all_modules() -> String {
    config(&MODULES.iter().map(|spec| spec.name).collect::<Vec<_>>())
}

/// Returns a configuration with these modules, and settings for those that need some.
pub fn config(modules: &[&str]) -> String {
    let settings = |module: &str| match module {
        "ucalls" | "ustat" => "process = python3\nlanguage = python",
        "usdt_hits" => "process = python3\nusdts = /usr/bin/python3:.*",
        "usdt_jvm_threads" => "process = java",
        _ => "",
    };
    let list = modules.join(",");
    let mut text = format!("[pmda]\nmodules = {list}\nprocess_refresh = 60\nmodule_failure_fatal = False\n");
    for spec in modules.iter().map(|module| corebcc::modules::find(module).unwrap()) {
        text += &spec.section(settings(spec.name));
    }
    text
}

/// Loads the modules of a configuration without an agent; `process_refresh` is the option of its section [pmda].
pub fn loaded(text: &str, process_refresh: Option<Duration>) -> (Engine, Vec<EnabledModule>) {
    let config = Config::parse("test.conf", text.as_bytes()).unwrap();
    let (_, modules) = enabled_modules(&config, MODULES).unwrap();
    let settings = Settings { process_refresh, ..Settings::default() };
    let prepared = prepared_modules(&config, &modules, &settings).unwrap();
    (Engine::load(prepared, None), modules)
}

/// Returns the name of the running test.
pub fn test() -> String {
    thread::current().name().unwrap_or("?").to_owned()
}

/// Reports that the running test is skipped because something is missing; tests/run counts the line.
pub fn skip(missing: &str) {
    println!("skipped: {}: {missing}", test());
}

/// True, with a report, if BPF programs cannot be loaded at all.
pub fn lacks_bpf() -> bool {
    let lacks = !nix::unistd::geteuid().is_root() || !Path::new("/sys/kernel/btf/vmlinux").exists();
    if lacks {
        skip("BPF: root, and a kernel with BTF");
    }
    lacks
}

/// True, with a report, on a machine of others, whose kernel modules, CPUs and clock a test leaves alone.
pub fn lacks_own_machine() -> bool {
    let lacks = std::env::var_os("COREBCC_OWN_MACHINE").is_none();
    if lacks {
        skip("a machine of the test's own (COREBCC_OWN_MACHINE; tests/vm has one)");
    }
    lacks
}

/// True, with a report, if process ids differ from those that BPF programs see, as in a container.
pub fn lacks_host_pids() -> bool {
    let lacks = corebcc::host::in_namespace();
    if lacks {
        skip("the first PID namespace");
    }
    lacks
}

/// True, with a report, if one of these programs is not installed.
pub fn lacks(programs: &[&str]) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &&str| {
        Path::new(program).is_file() || std::env::split_paths(&dirs).any(|dir| dir.join(program).is_file())
    };
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !is_there(program)).collect();
    if !missing.is_empty() {
        skip(&missing.join(", "));
    }
    !missing.is_empty()
}

/// True, with a report, if `tests/mounts` cannot make a mount namespace: for instance in a chroot whose root is not a
/// mount point.
pub fn lacks_mounts() -> bool {
    let output = Command::new("unshare").args(["--mount", "true"]).output();
    let reason = match &output {
        Ok(output) if output.status.success() => return false,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    skip(&format!("a mount namespace ({reason})"));
    true
}

/// True if a process has the kernel count the runs of programs (a descriptor of BPF_ENABLE_STATS).
pub fn counts_runs(process: &Path) -> bool {
    let fds = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|link| link.as_os_str() == "anon_inode:bpf-stats")
}

/// True if the kernel counts the runs of programs, by kernel.bpf_stats_enabled or for a process.
pub fn anybody_counts_runs() -> bool {
    let on = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text.trim() == "1");
    on || fs::read_dir("/proc").unwrap().flatten().any(|process| counts_runs(&process.path()))
}

/// Returns the numbers before and behind the first point of the kernel's version.
pub fn kernel_version() -> Vec<u32> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release.split(['.', '-']).take(2).map(|number| number.parse().unwrap()).collect()
}

/// Polls for up to a minute, which is several times what a busy host needs, until `look` returns a value.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_seconds(60, what, look)
}

/// Polls for up to this many seconds until `look` returns a value.
#[track_caller]
pub fn wait_seconds<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < until, "waited {seconds} seconds for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A directory for one test, with a configuration and the directories that PCP has under `PCP_VAR_DIR`.
pub struct Home {
    dir: TempDir,
    mounts: Option<&'static str>,
}

impl Home {
    pub fn new(config: &str) -> Home {
        Home::below(&std::env::temp_dir(), config)
    }

    /// Makes one below a directory.
    pub fn below(above: &Path, config: &str) -> Home {
        let dir = TempDir::new_in(above).unwrap();
        fs::create_dir_all(dir.path().join("config/pmda")).unwrap();
        let home = Home { dir, mounts: None };
        fs::write(home.config(), config).unwrap();
        home
    }

    /// Makes the agent run under a condition of `tests/mounts`, such as `with` or `without` tracefs; it needs root.
    pub fn with_mounts(mut self, condition: &'static str) -> Home {
        self.mounts = Some(condition);
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn config(&self) -> PathBuf {
        self.path("corebcc.conf")
    }

    /// Makes the agent keep its files here.
    pub fn keep<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let dir = self.dir.path();
        command.env("PCP_VAR_DIR", dir).env("PCP_RUN_DIR", dir).current_dir(dir)
    }

    /// Returns the agent's command with its configuration and, unless the arguments name a log, its log here.
    pub fn agent(&self, args: &[&str]) -> Command {
        let mut command = match self.mounts {
            None => Command::new(BINARY),
            Some(condition) => {
                let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mounts"));
                command.args([condition, BINARY]);
                command
            }
        };
        self.keep(&mut command).arg("-c").arg(self.config()).args(args).stdin(Stdio::null());
        command
    }

    /// Runs the agent to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.agent(args).output().unwrap()
    }

    /// Creates a file here.
    pub fn create(&self, name: &str) -> File {
        File::create(self.path(name)).unwrap()
    }

    pub fn read(&self, name: &str) -> String {
        fs::read(self.path(name)).map_or(String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the agent's log.
    pub fn log(&self) -> String {
        self.read("corebcc.log")
    }

    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        wait_for(&format!("`{text}` in the log"), || self.log().contains(text).then_some(()));
    }
}

impl Drop for Home {
    /// Fails the test if a log contains a panic of the agent.
    fn drop(&mut self) {
        for entry in fs::read_dir(self.dir.path()).unwrap().flatten() {
            if !entry.file_name().to_string_lossy().contains(".log") {
                continue;
            }
            let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default()).into_owned();
            if thread::panicking() {
                println!("--- {}\n{text}", entry.path().display());
            } else {
                assert!(!text.contains("panicked") && !text.contains("a fault of the agent"), "{text}");
            }
        }
    }
}

/// A child process that is killed on drop.
pub struct Proc(pub Child);

impl Proc {
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Waits for it to end by itself.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        wait_for("the process to end", || self.0.try_wait().unwrap())
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that leads a group, which is killed with it on drop.
pub struct Group(pub Proc);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(self.0.pid()), nix::sys::signal::Signal::SIGKILL);
    }
}

/// Runs work in a thread of this name, which BPF programs take for the command name.
pub fn as_thread(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.into()).spawn(work).unwrap().join().unwrap();
}

/// Makes this many system calls of a kind.
pub fn load(calls: usize) {
    as_thread("pairs-load", move || {
        (0..calls).for_each(|_| {
            nix::unistd::getppid();
        })
    });
}

/// Returns the identifiers of the BPF programs that a process holds directly or by links.
pub fn programs_of(pid: i32) -> Vec<u32> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        ids.extend(text.lines().filter_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok()));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns the BPF objects of a process: the identifier of each, and one of the kernel's numbers about it.
pub fn bpf_of(pid: i32, id: &str, number: &str) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        // Links name the program that they attach, but have no numbers of it.
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        found.extend(field(id).zip(field(number)));
    }
    found
}

/// Returns the kernel memory of the maps and programs of a process, in bytes.
pub fn kernel_memory(pid: i32) -> u64 {
    ["map_id:", "prog_id:"].iter().flat_map(|id| bpf_of(pid, id, "memlock:").into_values()).sum()
}

/// Returns a number of `/proc/PID/status`, such as `VmRSS` in KiB.
pub fn status_of(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    value.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the number of tasks that the kernel has created.
pub fn tasks_created() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    stat.lines().find_map(|line| line.strip_prefix("processes ")).unwrap().parse().unwrap()
}

/// Returns those of the programs that the kernel still has.
pub fn still_loaded(ids: &[u32]) -> Vec<u32> {
    libbpf_rs::query::ProgInfoIter::default().map(|info| info.id).filter(|id| ids.contains(id)).collect()
}

/// Writes a file to the disk with the build, and reads it back from there; true if a disk that counts requests completed one.
pub fn use_disk() -> bool {
    let completed = || -> u64 {
        let of_requests = |name: &str| !["ram", "zram", "dm-", "md"].iter().any(|kind| name.starts_with(kind));
        let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let requests = |row: Vec<&str>| [3, 7].iter().filter_map(|&at| row.get(at)?.parse::<u64>().ok()).sum::<u64>();
        rows.filter(|row| row.get(2).is_some_and(|name| of_requests(name))).map(requests).sum()
    };
    let before = completed();
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(4096).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
    completed() > before
}

/// Returns the status, standard output and standard error of a tool.
pub fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
