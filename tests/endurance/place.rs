//! The place of a campaign: namespaces of its own, a pmcd with the agent, a pmlogger, a disk, and work of known size.

use crate::instance::{blocks, pipe, session, values, Pmcd};
use crate::support::loops::{read_blocks, Loop};
use crate::support::tracers::without_bpf;
use crate::support::{lacks, lacks_bpf, lacks_mounts, skip, tasks_created, told, wait_for, Home, Proc, BINARY};
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{unshare, CloneFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NOTHING: Option<&str> = None;
pub const PINS: &str = "/sys/fs/bpf";
/// Reads of the disk, sessions over TCP and processes of one portion of work.
const READS: u64 = 16;
const SESSIONS: u64 = 4;
const PROCESSES: u64 = 5;

const DISK_READS: &str = "bcc.disk.dev.read.total.count";
const TASKS: &str = "bcc.proc.sysfork";
const SENDS: &str = "bcc.proc.net.tcp.send.calls";
const SINCE: &str = "bcc.agent.state.since";
const STATUS: &str = "bcc.agent.state.status";

/// A place, with all that runs in it.
pub struct Place {
    pub pmcd: Pmcd,
    disk: Loop,
    /// Directory of pmlogger, which no fault fills or hides.
    pub archives: TempDir,
    logger: Option<Proc>,
    loggers: u32,
    log_conf: &'static str,
    base: Option<Base>,
    /// False if this kernel runs no program on top of some threads.
    all_are_seen: bool,
    /// Longest time in which an agent has to serve right.
    patience: Duration,
    /// Report of the campaign.
    pub told: Told,
    /// Work is counted by this process, so there is one place at a time.
    _alone: MutexGuard<'static, ()>,
}

/// Fates of pinned counts, and of agents.
#[derive(Default, Debug)]
pub struct Told {
    /// Number of times that they began again.
    pub began_again: u64,
    /// Number of agents that said that no program ran before them.
    pub gaps: u64,
    /// Reads that were made, and those of them that were not counted since an agent was just taking over.
    pub reads: u64,
    pub reads_missing: u64,
    /// The most tasks that the kernel created and the agent did not count.
    pub tasks_missing: u64,
    /// Number of agents that told that there was no memory for a module, and were started again.
    pub restarted: u64,
}

/// The witnesses' counts and the agent's at one moment.
struct Base {
    agent: Option<i32>,
    since: BTreeMap<String, String>,
    reads: (u64, u64),
    tasks: (u64, u64),
}

/// Effects that a fault may have on pinned counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    Nothing,
    /// Reads that are made while an agent takes over may be missing: at most a portion for each agent.
    Takeover,
    AnotherBeginning,
}

/// The work as one fetch has it.
struct Seen {
    reads: u64,
    tasks: u64,
    sends: u64,
    since: BTreeMap<String, String>,
    /// True if the counts of the disk are said to lack something.
    has_gap: bool,
}

/// Gives this thread, and all that it starts, mounts and a network of its own. `None`, with a report, where that is not possible.
fn own_namespaces() -> Option<()> {
    if lacks_bpf() || lacks_mounts() || lacks(&["ip", "pmlogger", "pmdumplog", "pminfo", "pmstore"]) {
        return None;
    }
    if unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).is_err() {
        skip("namespaces of mounts and networks");
        return None;
    }
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING).unwrap();
    mount_pins();
    if !Path::new("/sys/kernel/tracing/events").exists() {
        mount(Some("tracefs"), "/sys/kernel/tracing", Some("tracefs"), MsFlags::empty(), NOTHING).unwrap();
    }
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    Some(())
}

/// Mounts a new BPF file system where the agent pins.
pub fn mount_pins() {
    mount(Some("bpf"), PINS, Some("bpf"), MsFlags::empty(), Some("mode=0700")).unwrap();
}

/// Returns a configuration with counts that are pinned where modules can do that.
pub fn pinned(mut config: String) -> String {
    for module in ["biolatency", "sysfork", "runqlat", "exectop", "syscount"] {
        let section = format!("module = {module}\n");
        config = config.replace(&section, &format!("{section}pin = True\n"));
    }
    config
}

impl Place {
    /// Makes a place with this configuration of the agent and of pmlogger. `None`, with a report, if this host lacks something for it.
    /// A campaign has ten seconds of patience; a test, which may share the machine, has more.
    pub fn new(config: &str, log_conf: &'static str, is_campaign: bool) -> Option<Place> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        own_namespaces()?;
        let disk = Loop::several(1)?.pop().unwrap();
        // Files of the agent and of pmcd have a file system of their own, which can be full.
        let prepare = |home: &Home| {
            let root = home.path("");
            mount(Some("tmpfs"), &root, Some("tmpfs"), MsFlags::empty(), Some("size=32m,mode=0755")).unwrap();
            fs::create_dir_all(home.path("config/pmda")).unwrap();
            fs::write(home.config(), config).unwrap();
            pipe()
        };
        let pmcd = Pmcd::serving(config, &[], prepare)?;
        let archives = tempfile::tempdir().unwrap();
        let mut place = Place {
            pmcd,
            disk,
            archives,
            logger: None,
            loggers: 0,
            log_conf,
            base: None,
            all_are_seen: without_bpf().is_empty(),
            patience: Duration::from_secs(if is_campaign { 10 } else { 90 }),
            told: Told::default(),
            _alone: alone,
        };
        place.log();
        Some(place)
    }

    /// Starts a pmlogger, with an archive of its own.
    pub fn log(&mut self) {
        self.loggers += 1;
        fs::write(self.archives.path().join("log.conf"), self.log_conf).unwrap();
        fs::create_dir_all(self.pmcd.home.path("pmlogger")).unwrap();
        let name = format!("a{}", self.loggers);
        let mut command = self.pmcd.client("pmlogger");
        command.current_dir(self.archives.path()).args(["-c", "log.conf", "-l"]).arg(format!("{name}.log")).arg(&name);
        self.logger = Some(Proc(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()));
    }

    /// Ends pmlogger and returns the paths of all archives.
    pub fn end_logging(&mut self) -> Vec<PathBuf> {
        self.signal_logger(Signal::SIGTERM);
        if let Some(mut logger) = self.logger.take() {
            logger.end();
        }
        (1..=self.loggers).map(|number| self.archives.path().join(format!("a{number}"))).collect()
    }

    /// Sends pmcd a signal, if there is one.
    pub fn signal_pmcd(&mut self, signal: Signal) {
        if self.pmcd.process.0.try_wait().unwrap().is_none() {
            self.pmcd.process.signal(signal);
        }
    }

    /// Ends pmcd by a signal, and starts another one.
    pub fn renew_pmcd(&mut self, signal: Signal) {
        self.pmcd.again(signal);
    }

    /// Sends pmlogger a signal, if there is one.
    pub fn signal_logger(&mut self, signal: Signal) {
        let Some(logger) = &mut self.logger else { return };
        if logger.0.try_wait().unwrap().is_none() {
            logger.signal(signal);
        }
    }

    /// Returns the agent's process: the child of pmcd that runs it. [`Pmcd::agent`] reads its log, which a fault can take away.
    pub fn agent(&self) -> Option<i32> {
        let pmcd = self.pmcd.process.pid();
        let children = fs::read_to_string(format!("/proc/{pmcd}/task/{pmcd}/children")).ok()?;
        let is_agent =
            |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(BINARY.as_bytes()));
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_agent)
    }

    /// Sends the agent a signal, if there is one.
    pub fn signal_agent(&mut self, signal: Signal) {
        if let Some(agent) = self.agent() {
            let _ = kill(Pid::from_raw(agent), signal);
        }
    }

    /// Sends the agent a signal by which it ends, and waits for its end.
    pub fn end_agent(&mut self, signal: Signal) {
        if let Some(agent) = self.agent() {
            let _ = kill(Pid::from_raw(agent), signal);
            wait_for("the agent to end", || (self.agent() != Some(agent)).then_some(()));
        }
    }

    /// Makes pmcd start an agent that has ended: at a request, at most once a minute, or when it is told to read its configuration.
    pub fn revive(&mut self) {
        if self.pmcd.process.0.try_wait().unwrap().is_some() {
            self.renew_pmcd(Signal::SIGCONT);
        } else if self.agent().is_none() {
            self.signal_pmcd(Signal::SIGHUP);
            let _ = self.pmcd.run("pmprobe", &["pmcd.numagents"]);
        }
        if self.logger.as_mut().is_none_or(|logger| logger.0.try_wait().unwrap().is_some()) {
            self.log();
        }
    }

    fn seen(&self) -> Result<Seen, String> {
        let output = self.pmcd.run("pminfo", &["-f", DISK_READS, TASKS, SENDS, SINCE, STATUS, "bcc.runq.latency"]);
        let text = told(&output);
        // A metric that is not served has an error. One without values has no disk yet, or no process that sent something.
        if !output.status.success() || text.contains("Error: ") {
            let errors: Vec<&str> = text.lines().filter(|line| line.contains("Error: ")).take(3).collect();
            return Err(format!("pminfo, {}: {errors:?}", output.status));
        }
        let of = values_of(&text);
        let none = Vec::new();
        let all = |metric: &str| of.get(metric).unwrap_or(&none);
        let sum = |metric: &str, is_it: &dyn Fn(&str) -> bool| {
            let values = all(metric).iter().filter(|(name, _)| is_it(name));
            values.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
        };
        let (disk, own) = (self.disk.name(), format!("{:06} ", std::process::id()));
        let lacks = |(module, status): &(String, String)| module == "biolatency" && status.contains("without what");
        Ok(Seen {
            reads: sum(DISK_READS, &|name| name == disk),
            tasks: sum(TASKS, &|_| true),
            sends: sum(SENDS, &|name| name.starts_with(&own)),
            since: all(SINCE).iter().cloned().collect(),
            has_gap: all(STATUS).iter().any(lacks),
        })
    }

    /// Makes one portion of work.
    pub fn work(&self) {
        read_blocks(&self.disk.open(), 0..READS);
        (0..SESSIONS).for_each(|_| {
            session();
        });
        (0..PROCESSES).for_each(|_| assert!(Command::new("true").status().unwrap().success()));
    }

    /// Waits until the agent serves right: a portion of work is counted, no more and no less, and what is pinned is as much as the
    /// kernel counted. Returns the time that took; the error says what was wrong at the end of that time.
    pub fn serves_right(&mut self, allowed: Allowed) -> Result<Duration, String> {
        let begun = Instant::now();
        let mut wrong;
        loop {
            self.revive();
            match self.trial(allowed) {
                Ok(()) => {
                    self.no_panic()?;
                    return Ok(begun.elapsed());
                }
                Err(reason) => wrong = reason,
            }
            if self.log_text("corebcc.log").contains("(errno 12)") {
                self.told.restarted += 1;
                self.end_agent(Signal::SIGTERM);
            }
            if begun.elapsed() > self.patience {
                return Err(wrong);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns a log, unless a fault has put something else in its place.
    pub fn log_text(&self, name: &str) -> String {
        let is_file = fs::symlink_metadata(self.pmcd.home.path(name)).is_ok_and(|about| about.is_file());
        if is_file {
            self.pmcd.home.read(name)
        } else {
            String::new()
        }
    }

    /// Looks for a panic in the log, and in that of the agent before.
    fn no_panic(&self) -> Result<(), String> {
        let logs = ["corebcc.log", "corebcc.log.prev"].map(|name| self.log_text(name));
        let panics = |text: &String| text.contains("panicked") || text.contains("a fault of the agent");
        logs.into_iter().find(panics).map_or(Ok(()), Err)
    }

    /// Takes the next counts for right.
    pub fn forget(&mut self) {
        self.base = None;
    }

    fn trial(&mut self, allowed: Allowed) -> Result<(), String> {
        let tasks_before = tasks_created();
        let before = self.seen()?;
        self.work();
        let after = self.seen()?;
        if before.since != after.since {
            return Err("another agent answered".into());
        }
        self.told.reads += READS;
        let grown = [after.reads - before.reads, after.sends.saturating_sub(before.sends)];
        // Each session has a call of either side.
        let wanted = [READS, 2 * SESSIONS];
        if grown != wanted {
            return Err(format!("reads and sends have grown by {grown:?} instead of {wanted:?}"));
        }
        if after.tasks < before.tasks + PROCESSES {
            return Err(format!("{} tasks instead of {PROCESSES}", after.tasks - before.tasks));
        }
        let agent = self.agent();
        let pinned =
            |since: &BTreeMap<String, String>| ["biolatency", "sysfork"].map(|module| since.get(module).cloned());
        let reads = (after.reads, self.disk.completed_reads());
        let begins = match &self.base {
            None => true,
            Some(base) if pinned(&base.since) != pinned(&after.since) => {
                if allowed != Allowed::AnotherBeginning {
                    return Err(format!("counts began again: since {:?} instead of {:?}", after.since, base.since));
                }
                self.told.began_again += 1;
                true
            }
            Some(base) if after.has_gap && base.agent != agent && reads.0 - base.reads.0 < reads.1 - base.reads.1 => {
                self.told.gaps += 1;
                true
            }
            Some(base) => {
                let (counted, made) = (reads.0 - base.reads.0, reads.1 - base.reads.1);
                let missing = made.wrapping_sub(counted);
                let may_miss = allowed == Allowed::Takeover && base.agent != agent;
                // What completes on top of a thread on which this kernel runs no program is nobody's loss.
                let unseen = if self.all_are_seen { 0 } else { 1 + made / 2000 };
                if missing > unseen.max(if may_miss { READS } else { 0 }) {
                    return Err(format!("{counted} reads counted, {made} made"));
                }
                let is_takeover = missing > unseen;
                self.told.reads_missing += if is_takeover { missing } else { 0 };
                let counted_tasks = before.tasks.checked_sub(base.tasks.0).ok_or("the count of tasks stepped back")?;
                let created = tasks_before - base.tasks.1;
                self.told.tasks_missing = self.told.tasks_missing.max(created.saturating_sub(counted_tasks));
                let most = tasks_created() - base.tasks.1;
                if after.tasks - base.tasks.0 > most {
                    return Err(format!("{} tasks counted, {most} created", after.tasks - base.tasks.0));
                }
                is_takeover
            }
        };
        if begins {
            self.base = Some(Base { agent, since: after.since, reads, tasks: (before.tasks, tasks_before) });
        }
        Ok(())
    }
}

impl Drop for Place {
    /// Ends what writes to the place's own file system, and takes that away.
    fn drop(&mut self) {
        self.end_logging();
        self.signal_pmcd(Signal::SIGTERM);
        let _ = self.pmcd.process.0.wait();
        if std::thread::panicking() {
            println!("{}\n{}", self.log_text("corebcc.log"), self.log_text("pmcd.log"));
        }
        let _ = umount2(&self.pmcd.home.path(""), MntFlags::MNT_DETACH);
    }
}

/// Returns the values by instance of each metric in the output of `pminfo -f`. Instances without a name are left out: on a busy machine the
/// agent may answer one of the thousand requests for names that it should be asked again.
pub fn values_of(text: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let is_named = |line: &&String| !line.contains("inst [") || line.contains(" or \"");
    let values = |lines: Vec<String>| lines.iter().filter(is_named).flat_map(|line| values(line)).collect();
    blocks(text).into_iter().map(|(metric, lines)| (metric, values(lines))).collect()
}
