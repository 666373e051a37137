//! cgroup_disk and cgroup_runq: work of a known amount in cgroups of the test's own.

use crate::biolatency::map_words;
use crate::common::{lacks, skip};
use crate::support::{alone, python, run, settle, Agent, Completions, Disk, UnseenArrivals};
use corebcc::bpf::types::cgroup_owner;
use corebcc::host::{Cgroups, Controller};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A cgroup of the test's own, until it is dropped.
pub struct Cgroup {
    directory: PathBuf,
    /// As a series is called.
    pub name: String,
}

/// Where cgroups have this controller; says that the test was skipped where none have.
pub fn hierarchy(of: Controller) -> Option<Cgroups> {
    let cgroups = Cgroups::of(of).inspect_err(|none| skip(&none.to_string())).ok()?;
    if of == Controller::BlockIo && !cgroups.is_v1 {
        fs::write(cgroups.mount().join("cgroup.subtree_control"), "+io").unwrap();
    }
    Some(cgroups)
}

impl Cgroup {
    pub fn make(cgroups: &Cgroups, name: &str) -> Cgroup {
        let name = format!("corebcc-{}-{name}", std::process::id());
        let directory = cgroups.mount().join(&name);
        fs::create_dir(&directory).unwrap();
        Cgroup { directory, name: format!("/{name}") }
    }

    pub fn id(&self) -> u64 {
        fs::metadata(&self.directory).unwrap().ino()
    }

    /// A command in this cgroup.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.directory.display());
        run("sh", &[&["-c", &enter, "sh", program], arguments].concat())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// So many reads of 4 KB each, past the page cache.
fn reads(cgroups: &Cgroups, cgroup: &Cgroup, disk: &Disk, reads: u64) {
    let device = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECT).open(&disk.device).unwrap();
    let home = home(cgroups);
    enter(&cgroup.directory, cgroups.is_v1);
    (0..reads).for_each(|_| read_once(&device));
    enter(&home, cgroups.is_v1);
    settle();
}

/// The cgroup that this process is in.
fn home(cgroups: &Cgroups) -> PathBuf {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap();
    let mine = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it =
            if cgroups.is_v1 { controllers.split(',').any(|name| name == "blkio") } else { controllers.is_empty() };
        is_it.then(|| path.trim_start_matches('/').to_owned())
    });
    cgroups.mount().join(mine.unwrap())
}

/// Columns of a series: of reads count and p99, and the bytes.
const COUNT: usize = 0;
const P99: usize = 4;
const BYTES: usize = 7 * 4 + 1;

fn column(agent: &mut Agent, column: usize) -> BTreeMap<String, u64> {
    agent.numbers(column)
}

#[test]
fn direct_reads_count_for_the_cgroup_that_read() {
    reads_count("");
}

#[test]
fn reads_of_a_cgroup_count_the_same_with_probe_reads() {
    reads_count("tp_btf");
}

fn reads_count(avoid: &str) {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    let disk = Disk::new(16);
    let (busy, quiet) = (Cgroup::make(&cgroups, "busy"), Cgroup::make(&cgroups, "quiet"));
    let mut agent = Agent::avoiding(avoid, "cgroup_disk", "");
    let completions = Completions::record();
    reads(&cgroups, &busy, &disk, 100);
    let (counts, bytes) = (column(&mut agent, COUNT), column(&mut agent, BYTES));
    let completed = completions.of(&disk);
    assert_eq!(counts.get(&busy.name), Some(&(100 - completed.unseen)), "{counts:?}");
    assert_eq!(bytes.get(&busy.name), Some(&(100 * 4096 - completed.unseen_bytes)));
    assert!(!counts.contains_key(&quiet.name) && counts.contains_key("other"), "{counts:?}");
    reads(&cgroups, &quiet, &disk, 7);
    assert!((1..=7).contains(&column(&mut agent, COUNT)[&quiet.name]));
    assert_eq!(column(&mut agent, COUNT)[&busy.name], 100 - completed.unseen);
}

#[test]
fn cgroups_beyond_the_limit_count_for_other() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    let disk = Disk::new(16);
    let mut agent = Agent::new("cgroup_disk", "max_cgroups = 2");
    let all: Vec<Cgroup> = (0..6).map(|n| Cgroup::make(&cgroups, &n.to_string())).collect();
    let completions = Completions::record();
    let before: u64 = column(&mut agent, COUNT).values().sum();
    completions.reading(|| ());
    all.iter().for_each(|cgroup| reads(&cgroups, cgroup, &disk, 20));
    let counts = column(&mut agent, COUNT);
    completions.reading(|| ());
    let completed = completions.of(&disk);
    let (total, own) = (counts.values().sum::<u64>() - before, 120 - completed.unseen);
    let (_, others) = completed.elsewhere.unwrap_or((0, u64::MAX - own));
    assert!((own..=own + others).contains(&total), "{own} and {others}: {counts:?}");
    let named: Vec<u64> = all.iter().filter_map(|cgroup| counts.get(&cgroup.name).copied()).collect();
    assert!(counts.len() <= 3 && named.iter().all(|&count| count <= 20), "{counts:?}");
    assert!(counts["other"] >= own - named.iter().sum::<u64>() && counts["other"] >= 60, "{counts:?}");
}

#[test]
fn a_removed_cgroup_ends_and_returns_without_a_lost_count() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    let disk = Disk::new(16);
    let mut agent = Agent::new("cgroup_disk", "");
    let completions = Completions::record();
    let first = Cgroup::make(&cgroups, "returns");
    let (name, id) = (first.name.clone(), first.id());
    reads(&cgroups, &first, &disk, 20);
    assert!(column(&mut agent, COUNT).contains_key(&name));
    drop(first);
    // Within its minute it goes on where it was.
    let second = Cgroup::make(&cgroups, "returns");
    assert_ne!(second.id(), id);
    reads(&cgroups, &second, &disk, 30);
    let counts = column(&mut agent, COUNT);
    let unseen = completions.of(&disk).unseen;
    assert_eq!(counts[&name], 50 - unseen);
    drop(second);
    let mut ended = None;
    for tick in 0..80 {
        agent.tick();
        let now = column(&mut agent, COUNT);
        assert!(now.values().sum::<u64>() >= counts.values().sum(), "{counts:?}, then {now:?}");
        if !now.contains_key(&name) {
            assert!(now["other"] >= counts["other"] + 50 - unseen, "{counts:?}, then {now:?}");
            ended = ended.or(Some(tick));
        }
    }
    assert!(ended.is_some_and(|tick| tick >= 60), "{ended:?}");
    assert!(!owners().contains(&id));
    let third = Cgroup::make(&cgroups, "returns");
    reads(&cgroups, &third, &disk, 5);
    assert!((1..=5).contains(&column(&mut agent, COUNT)[&third.name]));
}

/// The ids of the cgroups that have a place in the latest table of owners.
fn owners() -> Vec<u64> {
    let words = map_words::<cgroup_owner>();
    words.chunks(size_of::<cgroup_owner>() / 8).map(|owner| owner[0]).filter(|&id| id != 0).collect()
}

/// Moves the calling thread or process into a cgroup.
fn enter(directory: &Path, is_v1: bool) {
    let file = if is_v1 { "tasks" } else { "cgroup.procs" };
    fs::write(directory.join(file), "0").unwrap();
}

/// Each comes, reads once and goes.
#[test]
fn a_thousand_short_lived_cgroups_leave_nothing_behind() {
    const TIMES: u64 = 1000;
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    let disk = Disk::new(16);
    let mut agent = Agent::new("cgroup_disk", "max_cgroups = 64");
    let device = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECT).open(&disk.device).unwrap();
    let completions = Completions::record();
    let before: u64 = column(&mut agent, COUNT).values().sum();
    completions.reading(|| ());
    let start = std::time::Instant::now();
    let (mut total, home) = (before, home(&cgroups));
    for time in 0..TIMES {
        let cgroup = Cgroup::make(&cgroups, "short");
        enter(&cgroup.directory, cgroups.is_v1);
        read_once(&device);
        enter(&home, cgroups.is_v1);
        drop(cgroup);
        if time % 16 == 0 {
            agent.tick();
            let now = column(&mut agent, COUNT).values().sum();
            assert!(now >= total, "{total}, then {now}");
            total = now;
        }
    }
    println!("{TIMES} in {:?}", start.elapsed());
    settle();
    let counts = column(&mut agent, COUNT);
    completions.reading(|| ());
    let completed = completions.of(&disk);
    let own = TIMES - completed.unseen;
    let (_, others) = completed.elsewhere.unwrap_or((0, u64::MAX - own));
    let total = counts.values().sum::<u64>() - before;
    assert!((own..=own + others).contains(&total), "{own} and {others}: {counts:?}");
    (0..80).for_each(|_| agent.tick());
    let left = column(&mut agent, COUNT);
    assert!(left.len() <= 4 && left.values().sum::<u64>() >= total, "{left:?}");
    assert!(owners().len() <= 3, "{:?}", owners());
}

/// Reads 4 KB past the page cache.
fn read_once(device: &fs::File) {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Box::new(Page([0; 4096]));
    // SAFETY: the page is as long as the read, and nobody else has it.
    let read = unsafe { nix::libc::pread(device.as_raw_fd(), page.0.as_mut_ptr().cast(), 4096, 0) };
    assert_eq!(read, 4096);
}

/// Its disk lies on a file system that is held up again and again.
#[test]
fn a_slow_cgroup_stands_out_among_quiet_ones() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    if lacks(&["fsfreeze", "mkfs.ext4"]) {
        return;
    }
    let held = crate::biolatency::Held::new();
    let disk = Disk::new(16);
    let mut agent = Agent::new("cgroup_disk", "");
    let quiet: Vec<Cgroup> = (0..3).map(|n| Cgroup::make(&cgroups, &format!("quiet{n}"))).collect();
    let slow = Cgroup::make(&cgroups, "slow");
    let write = |cgroup: &Cgroup, disk: &Disk| {
        let to = format!("of={}", disk.device);
        let _ = cgroup.run("dd", &["if=/dev/zero", &to, "bs=4k", "count=20", "oflag=direct", "status=none"]);
    };
    std::thread::scope(|scope| {
        held.freeze();
        let writer = scope.spawn(|| write(&slow, &held.upper));
        quiet.iter().for_each(|cgroup| write(cgroup, &disk));
        std::thread::sleep(std::time::Duration::from_millis(400));
        held.thaw();
        writer.join().unwrap();
    });
    settle();
    agent.tick();
    // writes are the third histogram
    let p99 = column(&mut agent, 2 * 7 + P99);
    let worst = p99.iter().max_by_key(|(_, p99)| **p99);
    assert_eq!(worst.map(|(name, _)| name), Some(&slow.name), "{p99:?}");
    assert!(p99[&slow.name] >= 300_000 && quiet.iter().all(|cgroup| p99[&cgroup.name] < 300_000), "{p99:?}");
}

/// A process in a cgroup that sleeps: how often it arrived on a CPU, at least by its own count (proc(5), `schedstat`), at most by how
/// often it left one (getrusage(2)).
fn sleeps(cgroup: &Cgroup, times: u32) -> (u64, u64) {
    let source = format!(
        "import time\n\
         arrivals = lambda: int(open('/proc/self/schedstat').read().split()[2])\n\
         before = arrivals()\n\
         for time_ in range({times}): time.sleep(0.001)\n\
         print(arrivals() - before)"
    );
    let before = switches_of_children();
    let said = cgroup.run(python(), &["-c", &source]);
    (said.trim().parse().unwrap(), switches_of_children() - before)
}

fn switches_of_children() -> u64 {
    // SAFETY: a struct of integers, which the call fills.
    let usage = unsafe {
        let mut usage: nix::libc::rusage = std::mem::zeroed();
        assert_eq!(nix::libc::getrusage(nix::libc::RUSAGE_CHILDREN, &mut usage), 0);
        usage
    };
    (usage.ru_nvcsw + usage.ru_nivcsw) as u64
}

#[test]
fn tasks_count_for_their_cgroup_as_often_as_they_ran() {
    tasks_count("", "");
}

#[test]
fn tasks_of_a_cgroup_count_the_same_with_probe_reads() {
    tasks_count("tp_btf", "");
}

#[test]
fn tasks_of_a_cgroup_count_the_same_by_wake_ups() {
    tasks_count("no_sched_info", "window = 10");
}

fn tasks_count(avoid: &str, options: &str) {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let cgroup = Cgroup::make(&cgroups, "sleeps");
    let mut agent = Agent::avoiding(avoid, "cgroup_runq", options);
    let unseen = UnseenArrivals::record();
    let (between, all) = sleeps(&cgroup, 300);
    let counts = agent.numbers(COUNT);
    let (_, unseen) = unseen.end();
    println!("{between} to {all}, {unseen} unseen: {counts:?}");
    assert!(between >= 300);
    assert!((between.saturating_sub(unseen)..=all + 2).contains(&counts[&cgroup.name]), "{counts:?}");
    assert!(counts.contains_key("/") && counts.contains_key("other"), "{counts:?}");
}

#[test]
fn runqlat_and_cgroup_runq_together_count_each_task_once() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let cgroup = Cgroup::make(&cgroups, "both");
    let mut agent = Agent::beside("runqlat", "cgroup_runq", "");
    let unseen = UnseenArrivals::record();
    let (between, all) = sleeps(&cgroup, 300);
    let counts = agent.numbers(COUNT);
    let (_, unseen) = unseen.end();
    assert!((between.saturating_sub(unseen)..=all + 2).contains(&counts[&cgroup.name]), "{counts:?}");
}

/// It has more threads that want to run than there are CPUs.
#[test]
fn a_cgroup_that_wants_more_than_all_cpus_waits() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let (hog, calm) = (Cgroup::make(&cgroups, "hog"), Cgroup::make(&cgroups, "calm"));
    let mut agent = Agent::new("cgroup_runq", "");
    let spin = "import time\nend = time.monotonic() + 0.7\nwhile time.monotonic() < end: pass";
    let cpus = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        (0..3 * cpus).for_each(|_| drop(scope.spawn(|| hog.run(python(), &["-c", spin]))));
    });
    sleeps(&calm, 20);
    agent.tick();
    let (sums, p99) = (agent.numbers(1), agent.numbers(P99));
    println!("{sums:?}\n{p99:?}");
    // Two of three threads wait at any time.
    assert!(sums[&hog.name] > 500_000_000 && p99[&hog.name] > 1000, "{sums:?} {p99:?}");
    assert!(sums[&hog.name] > 5 * sums[&calm.name], "{sums:?}");
}

/// A child that ends at once, born in a cgroup.
fn spawn_into(directory: &fs::File) {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // struct clone_args of linux/sched.h: the flags first, then the signal at the end, and the cgroup last
    let mut arguments = [0u64; 11];
    (arguments[0], arguments[4], arguments[10]) =
        (CLONE_INTO_CGROUP, nix::libc::SIGCHLD as u64, directory.as_raw_fd() as u64);
    // SAFETY: as fork(2); the child makes one system call, to end.
    let child = unsafe { nix::libc::syscall(nix::libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    if child == 0 {
        // SAFETY: it returns to nobody.
        unsafe { nix::libc::_exit(0) };
    }
    assert!(child > 0, "clone3: {}", std::io::Error::last_os_error());
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child as i32), None).unwrap();
}

/// Each comes with one task that runs once, and goes.
#[test]
fn short_lived_cgroups_leave_no_tasks_behind() {
    const TIMES: u64 = 500;
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let mut agent = Agent::new("cgroup_runq", "max_cgroups = 256");
    let sum = |agent: &mut Agent| agent.numbers(COUNT).values().sum::<u64>();
    let unseen = UnseenArrivals::record();
    let before = sum(&mut agent);
    let (start, mut total) = (std::time::Instant::now(), before);
    for time in 0..TIMES {
        let cgroup = Cgroup::make(&cgroups, "short");
        spawn_into(&fs::File::open(&cgroup.directory).unwrap());
        drop(cgroup);
        if time % 50 == 0 {
            agent.tick();
            let now = sum(&mut agent);
            assert!(now >= total, "{total}, then {now}");
            total = now;
        }
    }
    println!("{TIMES} in {:?}", start.elapsed());
    let (_, unseen) = unseen.end();
    total = sum(&mut agent);
    assert!(total - before + unseen >= TIMES, "{before}, then {total}");
    (0..80).for_each(|_| agent.tick());
    let left = agent.numbers(COUNT);
    assert!(!left.keys().any(|name| name.contains("short")) && left.values().sum::<u64>() >= total, "{left:?}");
    assert!(owners().len() <= left.len(), "{:?}", owners());
}
