//! cgroup_disk and cgroup_runq against known amounts of work in cgroups of the test.

use crate::biolatency::map_words;
use crate::common::tracers::{Completions, UnseenArrivals};
use crate::common::{lacks, skip};
use crate::support::{alone, diskstats, python, run, run_again, settle, Agent, Disk, Sleeper, WRITTEN};
use corebcc::bpf::types::place_owner;
use corebcc::host::{Cgroups, Controller};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A cgroup of the test, removed when it is dropped.
pub struct Cgroup {
    directory: PathBuf,
    /// The name of its series.
    pub name: String,
}

/// Returns the hierarchy with this controller; if there is none, prints that the test was skipped.
pub fn hierarchy(of: Controller) -> Option<Cgroups> {
    let cgroups = Cgroups::of(of).inspect_err(|none| skip(&none.to_string())).ok()?;
    if of == Controller::BlockIo && !cgroups.is_v1 {
        enable(&cgroups, "io").unwrap();
    }
    Some(cgroups)
}

/// Enables a controller for cgroups of v2.
fn enable(cgroups: &Cgroups, controller: &str) -> std::io::Result<()> {
    fs::write(cgroups.mount().join("cgroup.subtree_control"), format!("+{controller}"))
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

    /// Moves a process into this cgroup.
    pub fn take(&self, pid: u32) {
        fs::write(self.directory.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Runs a command in this cgroup.
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

/// Opens a disk for reads that bypass the page cache.
fn direct(disk: &Disk) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_DIRECT).open(&disk.device).unwrap()
}

/// Makes a number of reads of 4 KB each from a cgroup, past the page cache.
fn reads(cgroups: &Cgroups, cgroup: &Cgroup, disk: &Disk, reads: u64) {
    let device = direct(disk);
    let home = home(cgroups);
    enter(&cgroup.directory, cgroups.is_v1);
    (0..reads).for_each(|_| read_once(&device));
    enter(&home, cgroups.is_v1);
    settle();
}

/// Returns the cgroup of this process.
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

/// Columns of a series: count and p99 of reads, and the bytes.
const COUNT: usize = 0;
const P99: usize = 4;
const WRITES: usize = 2 * 7;
const BYTES: usize = 7 * 4 + 1;
const WRITTEN_BYTES: usize = BYTES + 1;

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
    let completed = completions.of(disk.name());
    assert_eq!(counts.get(&busy.name), Some(&(100 - completed.unseen)), "{counts:?}");
    assert_eq!(bytes.get(&busy.name), Some(&(100 * 4096 - completed.unseen_bytes)));
    assert!(!counts.contains_key(&quiet.name) && counts.contains_key("other"), "{counts:?}");
    reads(&cgroups, &quiet, &disk, 7);
    assert!((1..=7).contains(&column(&mut agent, COUNT)[&quiet.name]));
    assert_eq!(column(&mut agent, COUNT)[&busy.name], 100 - completed.unseen);
}

/// Two cgroups write 8 KB and read 4 KB at a time.
#[test]
fn direct_io_counts_by_cgroup_operation_and_bytes() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    direct_io_counts(&cgroups);
}

fn direct_io_counts(cgroups: &Cgroups) {
    let disk = Disk::spare("nvme0n1").unwrap_or_else(|| Disk::new(16));
    let all =
        [("one", 60, 20), ("two", 9, 33)].map(|(name, reads, writes)| (Cgroup::make(cgroups, name), reads, writes));
    let mut agent = Agent::new("cgroup_disk", "prometheus = True");
    let completions = Completions::record();
    let device = direct(&disk);
    let home = home(cgroups);
    for (cgroup, reads, writes) in &all {
        enter(&cgroup.directory, cgroups.is_v1);
        (0..*reads).for_each(|_| read_once(&device));
        (0..*writes).for_each(|at| write_once(&device, 2 * at));
        enter(&home, cgroups.is_v1);
    }
    settle();
    let of = [COUNT, BYTES, WRITES, WRITTEN_BYTES].map(|metric| column(&mut agent, metric));
    let completed = completions.of(disk.name());
    let counted = |cgroup: &Cgroup| of.each_ref().map(|of| of.get(&cgroup.name).copied().unwrap_or(0));
    let counted = all.each_ref().map(|(cgroup, ..)| counted(cgroup));
    let expected = all.each_ref().map(|(_, reads, writes)| [*reads, reads * 4096, *writes, writes * 8192]);
    let scraped = [0, 2].map(|histogram| agent.scraped("cgroup_disk", 436, histogram));
    for ((cgroup, ..), [reads, _, writes, _]) in all.iter().zip(counted) {
        assert_eq!(scraped.each_ref().map(|of| of.get(&cgroup.name).copied().unwrap_or(0)), [reads, writes]);
    }
    println!("{counted:?}, expected {expected:?}, {completed:?}");
    let most = counted.iter().flatten().zip(expected.iter().flatten()).all(|(counted, expected)| counted <= expected);
    let sum = |of: &[[u64; 4]; 2]| of.iter().fold((0, 0), |sum, of| (sum.0 + of[0] + of[2], sum.1 + of[1] + of[3]));
    let (counted, expected) = (sum(&counted), sum(&expected));
    assert!(most, "{of:?}");
    assert_eq!((counted.0 + completed.unseen, counted.1 + completed.unseen_bytes), expected, "{of:?}");
}

/// With hierarchies of v1 beside that of v2, disks are counted by the one with blkio, tasks by v2 only.
#[test]
fn a_hierarchy_of_v1_counts_disks_and_v2_beside_it_tasks() {
    const HERE: &str = "COREBCC_CGROUPS_V1";
    if std::env::var_os(HERE).is_none() {
        let mut unshare = std::process::Command::new("unshare");
        unshare.env(HERE, "1");
        // A controller leaves v2 once nobody uses it there.
        let mount = "{ [ -z \"$COREBCC_DISKS\" ] || echo -io -memory -cpu >/sys/fs/cgroup/cgroup.subtree_control; } && \
                     directory=$(mktemp -d) && mount -t tmpfs tmpfs $directory && mkdir $directory/blkio $directory/cpu && \
                     mount -t cgroup -o blkio blkio $directory/blkio && mount -t cgroup -o cpu cpu $directory/cpu";
        run_again("cgroup v1 with blkio and cpu", mount, unshare);
        return until(|| Cgroups::of(Controller::BlockIo).is_ok());
    }
    let _alone = alone();
    let cgroups = hierarchy(Controller::BlockIo).unwrap();
    assert!(cgroups.is_v1);
    let before_all = numbers_of_cgroups();
    direct_io_counts(&cgroups);
    let Some(unified) = hierarchy(Controller::Unified) else { return };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let is_cpu = |mount: &Vec<&str>| mount[2] == "cgroup" && mount[3].split(',').any(|name| name == "cpu");
    // Another mount may hide one of the host's.
    let is_there = |mount: &Vec<&str>| Path::new(mount[1]).join("cgroup.procs").exists();
    let cpu = mounts.filter(is_cpu).find(is_there);
    let of_v1 = PathBuf::from(cpu.unwrap()[1]).join(format!("corebcc-{}-cpu", std::process::id()));
    fs::create_dir(&of_v1).unwrap();
    let cgroup = Cgroup::make(&unified, "both");
    let mut agent = Agent::new("cgroup_runq", "");
    let unseen = UnseenArrivals::record();
    let mut sleeper = Sleeper::new();
    let before = sleeper.arrivals();
    for to in [&of_v1, &cgroup.directory] {
        fs::write(to.join("cgroup.procs"), sleeper.pid().to_string()).unwrap();
    }
    sleeper.sleep(50);
    let arrivals = sleeper.arrivals() - before;
    let counts = agent.numbers(COUNT);
    let unseen = unseen.either();
    drop(sleeper);
    fs::remove_dir(&of_v1).unwrap();
    assert!((arrivals.saturating_sub(unseen)..=arrivals).contains(&counts[&cgroup.name]), "{arrivals}: {counts:?}");
    assert!(!counts.keys().any(|name| name.ends_with("-cpu")), "{counts:?}");
    // A hierarchy that is unmounted while the kernel still knows one of its cgroups keeps its controllers.
    until(|| numbers_of_cgroups() == before_all);
}

/// Returns the kernel's numbers of cgroups in the hierarchies with blkio and cpu.
fn numbers_of_cgroups() -> Vec<String> {
    let text = fs::read_to_string("/proc/cgroups").unwrap();
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|line| ["blkio", "cpu"].contains(&line[0])).map(|line| line[2].to_owned()).collect()
}

/// Waits for a change that takes the kernel moments.
fn until(done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() && Instant::now() < end {
        settle();
    }
}

/// A cgroup writes 4 MB to the page cache, and another one has them written to the disk.
#[test]
fn what_is_written_back_belongs_to_the_cgroup_that_wrote() {
    const BYTES: u64 = 4 << 20;
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    if cgroups.is_v1 || enable(&cgroups, "memory").is_err() {
        return skip("cgroup v2 with memory and io");
    }
    if lacks(&["mkfs.ext4"]) {
        return;
    }
    let (disk, mount) = (Disk::spare("sda").unwrap_or_else(|| Disk::new(16)), tempfile::tempdir().unwrap());
    let at = mount.path().to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", &disk.device]);
    run("mount", &["-t", "ext4", &disk.device, at]);
    let owner = Cgroup::make(&cgroups, "owner");
    let mut agent = Agent::new("cgroup_disk", "");
    let completions = Completions::record();
    let home = home(&cgroups);
    enter(&owner.directory, false);
    let path = mount.path().join("file");
    fs::write(&path, vec![1; BYTES as usize]).unwrap();
    enter(&home, false);
    settle();
    let written = |agent: &mut Agent| column(agent, WRITTEN_BYTES).get(&owner.name).copied().unwrap_or(0);
    let (early, [before]) = (written(&mut agent), diskstats(disk.name(), [WRITTEN]));
    let file = fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    settle();
    let [after] = diskstats(disk.name(), [WRITTEN]);
    let own = written(&mut agent);
    drop(file);
    run("umount", &[at]);
    let unseen = completions.of(disk.name()).unseen_bytes;
    println!("{early} bytes before it was told to, {own} then; the kernel {} for all", (after - before) * 512);
    // Blocks that say where those of the file are may be among them.
    assert!(early < BYTES / 2 && own + unseen >= BYTES && own < BYTES + BYTES / 16, "{own}");
    assert!(own - early <= (after - before) * 512);
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
    let completed = completions.of(disk.name());
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
    let unseen = completions.of(disk.name()).unseen;
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

/// Returns the ids of the cgroups with a place in the latest table of owners.
fn owners() -> Vec<u64> {
    let words = map_words::<place_owner>();
    words.chunks(size_of::<place_owner>() / 8).map(|owner| owner[0]).filter(|&id| id != 0).collect()
}

/// Moves the calling thread or process into a cgroup.
fn enter(directory: &Path, is_v1: bool) {
    let file = if is_v1 { "tasks" } else { "cgroup.procs" };
    fs::write(directory.join(file), "0").unwrap();
}

/// Each cgroup comes, reads once and goes.
#[test]
fn a_thousand_short_lived_cgroups_leave_nothing_behind() {
    const TIMES: u64 = 1000;
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::BlockIo) else { return };
    let disk = Disk::new(16);
    let mut agent = Agent::new("cgroup_disk", "max_cgroups = 64");
    let device = direct(&disk);
    let completions = Completions::record();
    let before: u64 = column(&mut agent, COUNT).values().sum();
    completions.reading(|| ());
    let start = Instant::now();
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
    let completed = completions.of(disk.name());
    let own = TIMES - completed.unseen;
    let (_, others) = completed.elsewhere.unwrap_or((0, u64::MAX - own));
    let total = counts.values().sum::<u64>() - before;
    assert!((own..=own + others).contains(&total), "{own} and {others}: {counts:?}");
    (0..80).for_each(|_| agent.tick());
    let left = column(&mut agent, COUNT);
    assert!(left.len() <= 4 && left.values().sum::<u64>() >= total, "{left:?}");
    assert!(owners().len() <= 3, "{:?}", owners());
}

#[repr(align(4096))]
struct Pages([u8; 8192]);

/// Reads 4 KB past the page cache.
fn read_once(device: &fs::File) {
    let mut pages = Box::new(Pages([0; 8192]));
    device.read_exact_at(&mut pages.0[..4096], 0).unwrap();
}

/// Writes 8 KB past the page cache.
fn write_once(device: &fs::File, page: u64) {
    device.write_all_at(&Box::new(Pages([1; 8192])).0, page * 4096).unwrap();
}

/// The slow cgroup's disk is on a file system that is frozen again and again.
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
        std::thread::sleep(Duration::from_millis(400));
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

/// Starts a process in a cgroup that sleeps a number of times and waits until it is dropped. Returns the process's own count of
/// arrivals on a CPU, and the process.
fn sleeps(cgroup: &Cgroup, times: u32) -> (u64, Sleeper) {
    let mut sleeper = Sleeper::new();
    let before = sleeper.arrivals();
    fs::write(cgroup.directory.join("cgroup.procs"), sleeper.pid().to_string()).unwrap();
    sleeper.sleep(times);
    (sleeper.arrivals() - before, sleeper)
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
    let _ = enable(&cgroups, "cpu"); // where no hierarchy of v1 has it
    let all = [("sleeps", 100), ("naps", 40)].map(|(name, times)| (Cgroup::make(&cgroups, name), times));
    let mut agent = Agent::avoiding(avoid, "cgroup_runq", &format!("{options}\nprometheus = True"));
    let unseen = UnseenArrivals::record();
    let sleepers = all.each_ref().map(|(cgroup, times)| sleeps(cgroup, *times));
    let (counts, scraped) = (agent.numbers(COUNT), agent.scraped("cgroup_runq", 437, 0));
    let arrivals = sleepers.map(|(arrivals, _)| arrivals);
    let unseen = unseen.either();
    println!("{arrivals:?}, {unseen} unseen: {counts:?}");
    for ((cgroup, times), arrivals) in all.iter().zip(arrivals) {
        // A short sleep may be over before the task has left an emulated CPU.
        assert!(arrivals >= u64::from(*times) * 9 / 10, "{arrivals} of {times}");
        assert!((arrivals.saturating_sub(unseen)..=arrivals).contains(&counts[&cgroup.name]), "{counts:?}");
    }
    for (cgroup, _) in &all {
        assert_eq!(scraped[&cgroup.name], counts[&cgroup.name], "{}", cgroup.name);
    }
    assert!(counts.contains_key("/") && counts.contains_key("other"), "{counts:?}");
}

#[test]
fn runqlat_and_cgroup_runq_together_count_each_task_once() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let cgroup = Cgroup::make(&cgroups, "both");
    let mut agent = Agent::beside("runqlat", "cgroup_runq", "");
    let unseen = UnseenArrivals::record();
    let (arrivals, _sleeper) = sleeps(&cgroup, 300);
    let counts = agent.numbers(COUNT);
    let unseen = unseen.either();
    assert!((arrivals.saturating_sub(unseen)..=arrivals).contains(&counts[&cgroup.name]), "{counts:?}");
}

/// The busy cgroup has more threads that want to run than there are CPUs.
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
    drop(sleeps(&calm, 20));
    agent.tick();
    let (sums, p99) = (agent.numbers(1), agent.numbers(P99));
    println!("{sums:?}\n{p99:?}");
    // Two of three threads wait at any time.
    assert!(sums[&hog.name] > 500_000_000 && p99[&hog.name] > 1000, "{sums:?} {p99:?}");
    assert!(sums[&hog.name] > 5 * sums[&calm.name], "{sums:?}");
}

/// Spawns a child that begins in a cgroup and ends at once.
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

/// Each cgroup comes with a task that runs once, and goes.
#[test]
fn short_lived_cgroups_leave_no_tasks_behind() {
    const TIMES: u64 = 500;
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let mut agent = Agent::new("cgroup_runq", "max_cgroups = 256");
    let sum = |agent: &mut Agent| agent.numbers(COUNT).values().sum::<u64>();
    let unseen = UnseenArrivals::record();
    let before = sum(&mut agent);
    let (start, mut total) = (Instant::now(), before);
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
    let unseen = unseen.either();
    total = sum(&mut agent);
    assert!(total - before + unseen >= TIMES, "{before}, then {total}");
    (0..80).for_each(|_| agent.tick());
    let left = agent.numbers(COUNT);
    assert!(!left.keys().any(|name| name.contains("short")) && left.values().sum::<u64>() >= total, "{left:?}");
    assert!(owners().len() <= left.len(), "{:?}", owners());
}
