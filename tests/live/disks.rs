//! Disks of each kind against /proc/diskstats, and disks without requests with the option `stacked`: zram where it exists,
//! device-mapper over a loop device. A virtual machine of tests/vm also has other disks, which may be written to.

use crate::common::skip;
use crate::common::slow_disk::SlowDisk;
use crate::common::tracers::Completions;
use crate::support::{alone, diskstats, number, run, settle, Agent, Disk};
use corebcc::catalog::Instances;
use corebcc::kit::{Key, SeriesLabel, Table, TableSpec};
use corebcc::pcp::Atom;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };
pub const BLOCK: usize = 4096;

/// A disk opened by its path, for I/O past the page cache.
pub struct Direct(File);

impl Direct {
    pub fn open(device: &str) -> Direct {
        Direct(OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(device).unwrap())
    }

    fn with<R>(bytes: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut buffer = vec![1; bytes + BLOCK];
        let at = buffer.as_ptr().align_offset(BLOCK);
        work(&mut buffer[at..at + bytes])
    }

    pub fn read(&self, bytes: usize, offset: u64) {
        Direct::with(bytes, |buffer| self.0.read_exact_at(buffer, offset)).unwrap();
    }

    pub fn write(&self, bytes: usize, offset: u64) {
        Direct::with(bytes, |buffer| self.0.write_all_at(buffer, offset)).unwrap();
    }

    fn flush(&self) {
        self.0.sync_data().unwrap();
    }
}

pub fn table(agent: &mut Agent, cluster: u32) -> (&'static TableSpec, Table) {
    let tables = corebcc::modules::find("biolatency").unwrap().tables;
    let spec = tables.iter().find(|spec| spec.cluster == cluster).unwrap();
    (spec, agent.other(spec))
}

/// Clusters of the tables of disks, and of disks without requests.
pub const DEV: u32 = 320;
const STACKED: u32 = 330;
/// Clusters of the table of disks and sizes, and of the slowest requests.
pub const SIZE: u32 = 325;
const SLOWEST: u32 = 337;

/// Returns the values of a disk by the ends of their names, as `read.total.count`; 0 for a disk without a row.
pub fn values<const N: usize>(agent: &mut Agent, cluster: u32, disk: &str, ends: [&str; N]) -> [u64; N] {
    let (spec, table) = table(agent, cluster);
    let Some(row) = row(&table, disk) else { return [0; N] };
    ends.map(|end| {
        let is_it = |name: &str| {
            name.strip_suffix(end)
                .is_some_and(|x| ["disk.dev.", "disk.stacked.", "disk.size.", "disk.slowest."].contains(&x))
        };
        number(&table, row, spec.metrics.iter().position(|metric| is_it(metric.name)).unwrap())
    })
}

pub fn row(table: &Table, disk: &str) -> Option<usize> {
    table.keys().iter().position(|key| matches!(key, Key::Name(name) if table.text(name) == disk.as_bytes()))
}

pub fn bios(agent: &mut Agent, disk: &str) -> [u64; 4] {
    let ends = ["read.total.count", "write.total.count", "flush.total.count", "discard.total.count"];
    values(agent, STACKED, disk, ends)
}

pub fn since<const N: usize>(after: [u64; N], before: [u64; N]) -> [u64; N] {
    std::array::from_fn(|at| after[at] - before[at])
}

pub const READS: usize = 0;
pub const WRITES: usize = 4;

/// A zram device of the test.
pub struct Zram(pub String);

impl Zram {
    pub fn new() -> Option<Zram> {
        let Ok(number) = fs::read_to_string("/sys/class/zram-control/hot_add") else {
            skip("zram");
            return None;
        };
        let zram = Zram(format!("zram{}", number.trim()));
        fs::write(format!("/sys/block/{}/disksize", zram.0), "16M").unwrap();
        Some(zram)
    }

    pub fn device(&self) -> Direct {
        Direct::open(&format!("/dev/{}", self.0))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write("/sys/class/zram-control/hot_remove", self.0.trim_start_matches("zram"));
    }
}

/// A disk of device-mapper.
pub struct Mapped {
    name: &'static str,
    /// Name of the disk, as `dm-0`.
    pub disk: String,
}

impl Mapped {
    pub fn new(name: &'static str, lines: &str) -> Option<Mapped> {
        let create = Command::new("dmsetup").args(["create", name, "--table", lines]).output();
        if !create.is_ok_and(|create| create.status.success()) {
            skip("device-mapper with dmsetup");
            return None;
        }
        let disk = run("dmsetup", &["info", "-c", "--noheadings", "-o", "blkdevname", name]).trim().to_owned();
        Some(Mapped { name, disk })
    }

    fn device(&self) -> Direct {
        Direct::open(&format!("/dev/{}", self.disk))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup").args(["remove", "--retry", self.name]).status();
    }
}

#[test]
fn bios_of_zram_count_as_the_kernel_counts_them() {
    zram_counts("");
}

#[test]
fn bios_of_zram_count_the_same_with_probe_reads() {
    zram_counts("tp_btf");
}

fn zram_counts(avoid: &str) {
    let _alone = alone();
    let Some(zram) = Zram::new() else { return };
    let mut agent = Agent::avoiding(avoid, "biolatency", "stacked = True\nprometheus = True");
    let stats = diskstats(&zram.0, [READS, WRITES]);
    let device = zram.device();
    for at in 0..500 {
        device.write(BLOCK, at * BLOCK as u64);
    }
    (0..300).for_each(|at| device.read(4 * BLOCK, at * BLOCK as u64));
    settle();
    let [reads, writes] = since(diskstats(&zram.0, [READS, WRITES]), stats);
    assert!(reads >= 300 && writes == 500, "{reads} reads, {writes} writes");
    assert_eq!(bios(&mut agent, &zram.0), [reads, writes, 0, 0]);
    assert_eq!([0, 1].map(|histogram| agent.scraped("biolatency", 433, histogram)[&zram.0]), [reads, writes]);
    let (_, table) = table(&mut agent, STACKED);
    let labels = table.labels(row(&table, &zram.0).unwrap()).unwrap();
    assert!(!labels.iter().any(|(label, _)| *label == "below"), "{labels:?}");
    assert_eq!(values(&mut agent, DEV, &zram.0, ["read.total.count"]), [0], "it has no requests");
    assert_eq!(agent.warnings(), [""; 0]);
}

#[test]
fn without_the_option_there_are_no_bios() {
    let _alone = alone();
    let Some(zram) = Zram::new() else { return };
    let mut agent = Agent::new("biolatency", "");
    zram.device().write(BLOCK, 0);
    assert!(table(&mut agent, STACKED).1.is_empty());
    assert!(!agent.is_attached("block_bio_queue") && !agent.is_attached("block_bio_complete"));
}

/// 100 reads, half of which cross from one target to the other, 20 writes and 5 flushes.
#[test]
fn a_bio_that_device_mapper_splits_counts_once() {
    let _alone = alone();
    let disk = Disk::new(16);
    let device = &disk.device;
    let Some(mapped) =
        Mapped::new("corebcc-split", &format!("0 8192 linear {device} 8192\n8192 8192 linear {device} 0"))
    else {
        return;
    };
    let mut agent = Agent::new("biolatency", "stacked = True");
    let below = diskstats(disk.name(), [READS]);
    let device = mapped.device();
    for at in 0..50 {
        device.read(4 * BLOCK, at * BLOCK as u64);
        device.read(4 * BLOCK, (4 << 20) - 2 * BLOCK as u64);
    }
    (0..20).for_each(|at| device.write(BLOCK, at * BLOCK as u64));
    (0..5).for_each(|_| device.flush());
    settle();
    let [below] = since(diskstats(disk.name(), [READS]), below);
    let counted = bios(&mut agent, &mapped.disk);
    println!("{counted:?} above, {below} reads below");
    assert_eq!((counted, below), ([100, 20, 5, 0], 150));
    let (_, table) = table(&mut agent, STACKED);
    assert!(row(&table, disk.name()).is_none(), "it has requests");
    let labels = table.labels(row(&table, &mapped.disk).unwrap()).unwrap();
    assert!(labels.contains(&("below", SeriesLabel::Text(disk.name().to_owned()))), "{labels:?}");
    assert_eq!(agent.warnings(), [""; 0]);
}

/// The delay of 240 ms is in the middle of a bucket. If the timer is late, as in an emulated machine, the reader sees that too.
#[test]
fn a_delay_shows_in_the_disk_above_and_not_below() {
    const DELAY: u64 = 240_000;
    let _alone = alone();
    let disk = Disk::new(16);
    let Some(mapped) = Mapped::new("corebcc-delay", &format!("0 32768 delay {} 0 {}", disk.device, DELAY / 1000))
    else {
        return;
    };
    let mut agent = Agent::new("biolatency", "stacked = True");
    let device = mapped.device();
    let mut seen = [0, 1, 2, 3].map(|at| {
        let begin = Instant::now();
        device.read(BLOCK, at * BLOCK as u64);
        begin.elapsed().as_micros() as u64
    });
    seen.sort_unstable();
    settle();
    agent.tick();
    let [reads, above] = values(&mut agent, STACKED, &mapped.disk, ["read.total.count", "read.total.p50"]);
    let [below] = values(&mut agent, DEV, disk.name(), ["read.total.p50"]);
    println!("{above} us above, {below} us below, delay {DELAY} us, reader {seen:?} us");
    assert_eq!(reads, 4);
    // The median is the second of four.
    assert!(
        above >= DELAY - DELAY / 20 && above.abs_diff(seen[1]) <= seen[1] / 20,
        "{above} us above, reader {seen:?}"
    );
    assert!(below < DELAY / 10, "{below} us below");
}

/// The kernel does not keep the allocation times of this disk's requests.
#[test]
fn a_disk_without_iostats_has_no_total_until_it_has_them_again() {
    let _alone = alone();
    let disk = Disk::new(16);
    disk.set("iostats", "0");
    let device = Direct::open(&disk.device);
    settle();
    let mut agent = Agent::new("biolatency", "by_size = True\nexemplars = True");
    let ends = ["read.total.count", "read.total.sum", "read.device.count", "read.bytes"];
    (0..20).for_each(|at| device.read(BLOCK, at * BLOCK as u64));
    settle();
    agent.tick();
    assert_eq!(values(&mut agent, DEV, disk.name(), ends), [0, 0, 20, 20 * BLOCK as u64]);
    let warnings = agent.warnings();
    assert!(warnings.len() == 1 && warnings[0].ends_with("not in total and queue"), "{warnings:?}");
    let size = format!("{}::4K", disk.name());
    assert!(row(&table(&mut agent, SIZE).1, &size).is_none());
    assert!(row(&table(&mut agent, SLOWEST).1, disk.name()).is_none());
    disk.set("iostats", "1");
    (0..10).for_each(|at| device.read(BLOCK, at * BLOCK as u64));
    settle();
    let [totals, _, devices, _] = values(&mut agent, DEV, disk.name(), ends);
    assert_eq!((totals, devices), (10, 30));
    assert!(row(&table(&mut agent, SIZE).1, &size).is_some());
}

/// Reads of three sizes and writes of one.
#[test]
fn requests_count_by_size_and_the_slowest_has_its_process() {
    let _alone = alone();
    let disk = Disk::new(16);
    let device = Direct::open(&disk.device);
    let mut agent = Agent::new("biolatency", "by_size = True\nexemplars = True\nprometheus = True");
    let completions = Completions::record();
    let stats = diskstats(disk.name(), [READS, WRITES]);
    let expected = [("4K", 1, [10, 0]), ("16K", 4, [6, 5]), ("64K", 16, [3, 0])];
    for (_, blocks, [reads, writes]) in expected {
        (0..writes).for_each(|_| device.write(blocks * BLOCK, 1 << 20));
        (0..reads).for_each(|_| device.read(blocks * BLOCK, 1 << 20));
    }
    settle();
    assert_eq!(since(diskstats(disk.name(), [READS, WRITES]), stats), [19, 5], "somebody else reads it");
    agent.tick();
    let ends = ["read.total.count", "write.total.count"];
    let counted = expected.map(|(size, ..)| values(&mut agent, SIZE, &format!("{}::{size}", disk.name()), ends));
    let all = values(&mut agent, DEV, disk.name(), ends);
    let [bytes, sector] = values(&mut agent, SLOWEST, disk.name(), ["bytes", "sector"]);
    // Where only bios tell who submits, no request does.
    let is_known = !agent.way_of("block_io_start").ends_with("of bios");
    let pid = is_known.then(|| values(&mut agent, SLOWEST, disk.name(), ["pid"])[0]);
    let unseen = completions.of(disk.name()).unseen;
    println!("{counted:?} of {all:?}, the slowest {bytes} bytes of {pid:?} at {sector}");
    let sums = [0, 1].map(|operation| counted.iter().map(|count| count[operation]).sum::<u64>());
    assert_eq!(sums, all);
    assert_eq!(all[0] + all[1] + unseen, 24);
    // Writes are the fourth histogram of disks, and the second of sizes.
    assert_eq!([0, 3].map(|histogram| agent.scraped("biolatency", 430, histogram)[disk.name()]), all);
    for ((size, ..), counted) in expected.iter().zip(counted) {
        let series = format!("{}::{size}", disk.name());
        let scraped = [0, 1].map(|histogram| agent.scraped("biolatency", 432, histogram).get(&series).copied());
        assert_eq!(scraped.map(Option::unwrap_or_default), counted, "{series}");
    }
    assert!(agent.scraped("biolatency", 431, 0)["all"] >= all[0]);
    for ((size, _, expected), counted) in expected.iter().zip(counted) {
        assert!(counted == *expected || unseen > 0, "{size}: {counted:?}, not {expected:?}");
    }
    assert_eq!(sector, 1 << 11);
    assert!(pid.is_none_or(|pid| pid == u64::from(std::process::id())), "{pid:?}");
    assert!(expected.iter().any(|(_, blocks, _)| bytes == (blocks * BLOCK) as u64), "{bytes}");
    assert_eq!(agent.warnings(), [""; 0]);
}

/// Rows of slow requests of a disk.
const SLOW: u32 = 311;

/// Returns the latest slow requests of a disk, the first first: bytes, sector, time, process.
fn slow_requests(agent: &mut Agent, disk: &str) -> Vec<([u64; 3], Option<u64>, String)> {
    let (_, table) = table(agent, SLOW);
    let is_its = |row: &usize| table.value(*row, 2) == Some(Atom::Str(disk.as_bytes()));
    let rows = (0..table.len()).rev().filter(is_its);
    let text = |row, column| match table.value(row, column) {
        Some(Atom::Str(text)) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    };
    let pid = |row| table.value(row, 0).map(|_| number(&table, row, 0));
    rows.map(|row| ([4, 5, 6].map(|column| number(&table, row, column)), pid(row), text(row, 3))).collect()
}

#[test]
fn with_a_threshold_of_0_every_request_has_a_row() {
    let _alone = alone();
    let disk = Disk::new(16);
    let device = Direct::open(&disk.device);
    let mut agent = Agent::new("biolatency", "slow = 0\nprocess_count = 100\ndevices = ^loop");
    let completions = Completions::record();
    // Bytes and sector.
    let wanted: Vec<([u64; 2], &str)> = (0..30u64)
        .map(|at| match at % 3 {
            0 => ([2 * BLOCK as u64, at << 9], "W"),
            _ => ([BLOCK as u64, at << 8], "R"),
        })
        .collect();
    for ([bytes, sector], operation) in &wanted {
        let (bytes, offset) = (*bytes as usize, sector << 9);
        if *operation == "R" {
            device.read(bytes, offset)
        } else {
            device.write(bytes, offset)
        };
    }
    settle();
    let rows = slow_requests(&mut agent, disk.name());
    let unseen = completions.of(disk.name()).unseen;
    let is_known = !agent.way_of("block_io_start").ends_with("of bios");
    println!("{} rows, {unseen} not seen", rows.len());
    assert_eq!(rows.len() as u64 + unseen, 30);
    let mut left = wanted.iter();
    for ([bytes, sector, time], pid, letters) in &rows {
        let its =
            |(wanted, operation): &&([u64; 2], &str)| [*bytes, *sector] == *wanted && letters.starts_with(operation);
        assert!(left.by_ref().any(|wanted| its(&wanted)), "{letters} of {bytes} at {sector} is not in turn");
        assert!(*time > 0 && *time < 10_000_000_000, "{time} ns");
        assert!(!is_known || *pid == Some(u64::from(std::process::id())), "{pid:?}");
    }
    let lost = agent.warnings();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn requests_of_at_least_the_threshold_have_rows_and_no_others() {
    let _alone = alone();
    let Some(disk) = SlowDisk::new(&[1, 60]) else { return };
    let mut agent = Agent::new("biolatency", "slow = 30\nprocess_count = 100");
    let completions = Completions::record();
    let device = Direct::open(&disk.device);
    for at in 0..20 {
        device.read(BLOCK, at * BLOCK as u64);
        device.read(BLOCK, (32 << 20) + at * BLOCK as u64);
    }
    settle();
    let rows = slow_requests(&mut agent, disk.name());
    let late = completions.of(disk.name()).unseen;
    println!("{} rows, {late} completions not seen, of 20 reads that took 60 ms", rows.len());
    assert!((20 - late..=20).contains(&(rows.len() as u64)), "{rows:?}");
    assert!(rows
        .iter()
        .all(|([bytes, sector, time], ..)| { *bytes == BLOCK as u64 && *sector >= 32 << 11 && *time >= 60_000_000 }));
}

/// Makes 40 reads and 30 writes of a disk over others, and checks the counts of both: below it each is the same, or as many copies.
fn count_above_and_below(agent: &mut Agent, above: &str, cluster: u32, below: &[&Disk], copies: u64) {
    const ENDS: [&str; 2] = ["read.total.count", "write.total.count"];
    let stats = |disk: &str| diskstats(disk, [READS, WRITES]);
    let device = Direct::open(&format!("/dev/{above}")); // which may look for partitions
    settle();
    let before = (stats(above), values(agent, cluster, above, ENDS));
    let before_below: Vec<_> =
        below.iter().map(|disk| (stats(disk.name()), values(agent, DEV, disk.name(), ENDS))).collect();
    (0..30).for_each(|at| device.write(BLOCK, at * BLOCK as u64));
    (0..40).for_each(|at| device.read(BLOCK, at * BLOCK as u64));
    settle();
    let kernel = since(stats(above), before.0);
    let counted = since(values(agent, cluster, above, ENDS), before.1);
    println!("{above}: {counted:?}, the kernel {kernel:?}");
    assert_eq!((counted, kernel), ([40, 30], [40, 30]), "{above}");
    let mut sum = [0, 0];
    for (disk, before) in below.iter().zip(before_below) {
        let kernel = since(stats(disk.name()), before.0);
        let counted = since(values(agent, DEV, disk.name(), ENDS), before.1);
        println!("{} below it: {counted:?}, the kernel {kernel:?}", disk.name());
        assert_eq!(counted, kernel, "{}", disk.name());
        sum = [sum[0] + counted[0], sum[1] + counted[1]];
    }
    assert_eq!(sum, [40, copies * 30]);
    let mut names: Vec<&str> = below.iter().map(|disk| disk.name()).collect();
    names.sort_unstable();
    let (_, table) = table(agent, cluster);
    let labels = table.labels(row(&table, above).unwrap()).unwrap();
    let label = labels.iter().find(|(label, _)| *label == "below");
    assert_eq!(
        label.map(|(_, names)| names),
        (cluster == STACKED).then(|| SeriesLabel::Text(names.join(","))).as_ref()
    );
    assert_eq!(agent.warnings(), [""; 0]);
}

/// The requests of a multipath disk are its own; each becomes one of a path.
#[test]
fn a_multipath_disk_counts_its_requests_and_paths_theirs() {
    multipath("0", DEV);
}

#[test]
fn a_multipath_disk_of_bios_counts_as_one_without_requests() {
    multipath("2 queue_mode bio", STACKED);
}

fn multipath(features: &str, cluster: u32) {
    let _alone = alone();
    let paths = [Disk::new(16), Disk::new(16)];
    let [one, other] = paths.each_ref().map(|disk| disk.device.as_str());
    let lines = format!("0 32768 multipath {features} 0 1 1 round-robin 0 2 1 {one} 1 {other} 1");
    let Some(mapped) = Mapped::new("corebcc-paths", &lines) else { return };
    let mut agent = Agent::new("biolatency", "stacked = True");
    count_above_and_below(&mut agent, &mapped.disk, cluster, &paths.each_ref(), 1);
}

/// An array of md without a superblock, with all of its disks.
struct Array(String);

impl Array {
    fn new(level: &str, disks: &[&Disk]) -> Option<Array> {
        let name = format!("md_{}", std::process::id()); // one that ended keeps its name for a while
        let _ = Command::new("modprobe").args(["-a", "md-mod", level]).output();
        if fs::write("/sys/module/md_mod/parameters/new_array", &name).is_err() {
            skip("md");
            return None;
        }
        let array = Array(name);
        let kilobytes = "8192";
        let mut settings = [("level", level), ("metadata_version", "none"), ("component_size", kilobytes)].to_vec();
        let count = disks.len().to_string();
        settings.extend([("raid_disks", &*count), ("resync_start", "none")]);
        settings.into_iter().for_each(|(file, word)| array.write(file, word));
        for (slot, disk) in disks.iter().enumerate() {
            let (major, minor) = disk.number();
            array.write("new_dev", &format!("{major}:{minor}"));
            array.write(&format!("dev-{}/size", disk.name()), kilobytes);
            array.write(&format!("dev-{}/slot", disk.name()), &slot.to_string());
        }
        array.write("array_state", "active");
        Some(array)
    }

    fn write(&self, file: &str, word: &str) {
        let path = format!("/sys/block/{}/md/{file}", self.0);
        fs::write(&path, word).unwrap_or_else(|error| panic!("{path}: {word}: {error}"));
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let _ = fs::write(format!("/sys/block/{}/md/array_state", self.0), "clear");
    }
}

/// Each write of the array becomes one of every disk.
#[test]
fn an_array_of_raid_1_counts_once_and_each_of_its_disks() {
    let _alone = alone();
    let disks = [Disk::new(16), Disk::new(16)];
    let Some(array) = Array::new("raid1", &disks.each_ref()) else { return };
    let mut agent = Agent::new("biolatency", "stacked = True");
    count_above_and_below(&mut agent, &array.0, STACKED, &disks.each_ref(), 2);
}

/// Returns the disks that a virtual machine of tests/vm has for these tests.
fn spare_disks() -> Vec<String> {
    let disks = std::env::var("COREBCC_DISKS").unwrap_or_default();
    if disks.is_empty() {
        skip("COREBCC_DISKS, the names of disks that may be written to");
    }
    disks.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn each_kind_of_disk_counts_as_the_kernel_counts_it() {
    let _alone = alone();
    let disks = spare_disks();
    let mut agent = Agent::new("biolatency", "stacked = True");
    for disk in disks {
        let ends = ["read.total.count", "read.bytes", "write.total.count", "write.bytes", "flush.total.count"];
        let stats = |disk: &str| diskstats(disk, [READS, READS + 2, WRITES, WRITES + 2, 15]);
        let (before, counted) = (stats(&disk), values(&mut agent, DEV, &disk, ends));
        let device = Direct::open(&format!("/dev/{disk}"));
        for at in 0..40 {
            device.write(BLOCK, 8 * at * BLOCK as u64);
            device.read(2 * BLOCK, 8 * at * BLOCK as u64);
        }
        std::thread::scope(|scope| {
            for at in 0..8 {
                let device = &device;
                scope.spawn(move || (0..10).for_each(|n| device.read(BLOCK, (at * 10 + n) * BLOCK as u64)));
            }
        });
        (0..5).for_each(|_| device.flush());
        settle();
        let [reads, read, writes, written, flushes] = since(stats(&disk), before);
        let counted = since(values(&mut agent, DEV, &disk, ends), counted);
        println!("{disk}: {counted:?}, the kernel {:?}", [reads, read, writes, written, flushes]);
        assert!(reads >= 120, "{disk}");
        // A flush has a parent, which completes without bytes, and which /proc/diskstats has among the writes.
        assert_eq!(counted, [reads, 512 * read, writes - flushes, 512 * written, flushes], "{disk}");
    }
    assert!(table(&mut agent, STACKED).1.is_empty(), "bios of disks with requests");
}

/// Checks that a disk that is removed and comes back under its name continues its counts.
fn comes_back(agent: &mut Agent, cluster: u32, disk: &str, go: impl FnOnce(), come: impl FnOnce()) {
    // As many ticks as it takes to see that it is gone, or there again.
    let look = |agent: &mut Agent| (0..10).for_each(|_| agent.tick());
    let (spec, before) = table(agent, cluster);
    let mut instances = Instances::new(spec.shape, 0, None);
    let mut id = |table: &Table| {
        instances.update(table, SystemTime::now());
        row(table, disk).map(|row| instances.ids()[row])
    };
    let was = id(&before);
    assert!(was.is_some_and(|id| id.is_some()), "{disk} has counted");
    go();
    look(agent);
    assert_eq!(id(&table(agent, cluster).1), None, "{disk} is gone");
    come();
    look(agent);
    assert_eq!(id(&table(agent, cluster).1), was, "{disk} is there again");
}

#[test]
fn a_zram_that_comes_back_keeps_its_identifier() {
    let _alone = alone();
    let (Some(zram), mut agent) = (Zram::new(), Agent::new("biolatency", "stacked = True")) else { return };
    let name = zram.0.clone();
    zram.device().write(BLOCK, 0);
    let mut again = None;
    comes_back(&mut agent, STACKED, &name, move || drop(zram), || again = Zram::new());
    let again = again.unwrap();
    assert_eq!(again.0, name);
    let [_, writes, ..] = bios(&mut agent, &name);
    again.device().write(BLOCK, 0);
    assert_eq!(bios(&mut agent, &name)[1], writes + 1);
}

/// Disks with the file that removes them, and the file and text that make the kernel look for them again.
const PLUGS: [(&str, &str, &str, &str); 2] = [
    ("sda", "/sys/block/sda/device/delete", "/sys/class/scsi_host/host0/scan", "- - -"),
    ("nvme0n1", "/sys/block/nvme0n1/device/device/remove", "/sys/bus/pci/rescan", "1"),
];

#[test]
fn a_disk_that_is_plugged_in_again_keeps_its_identifier() {
    let _alone = alone();
    let disks = spare_disks();
    let mut agent = Agent::new("biolatency", "");
    for (disk, remove, scan, word) in PLUGS.into_iter().filter(|(disk, ..)| disks.iter().any(|one| one == disk)) {
        let device = format!("/dev/{disk}");
        let wait = |there: bool| {
            let end = Instant::now() + Duration::from_secs(60);
            while fs::exists(&device).unwrap() != there {
                assert!(Instant::now() < end, "{disk}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        Direct::open(&device).read(BLOCK, 0);
        let go = || {
            fs::write(remove, "1").unwrap();
            wait(false);
        };
        let come = || {
            fs::write(scan, word).unwrap();
            wait(true);
        };
        comes_back(&mut agent, DEV, disk, go, come);
        let ends = ["read.total.count"];
        let before = values(&mut agent, DEV, disk, ends);
        let opened = Direct::open(&device);
        let stats = diskstats(disk, [READS]);
        opened.read(BLOCK, 0);
        settle();
        assert!(since(values(&mut agent, DEV, disk, ends), before) >= since(diskstats(disk, [READS]), stats));
    }
}
