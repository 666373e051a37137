//! biolatency against /proc/diskstats, fio, and requests held up for a known time. The disks are loop devices of the test over files
//! in memory; requests of other disks in that time are taken from /proc/diskstats too.

use crate::bioperpid::direct;
use crate::common::tracers::{Bpftrace, Completed, Completions};
use crate::common::{lacks, skip};
use crate::support::{alone, run, settle, since, Agent, Disk, Script};
use corebcc::bpf::types::{bio_row, bio_size_row, bio_small, fine_hist};
use corebcc::host::{Cgroup, Cgroups, Controller};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Completed requests of a disk in /proc/diskstats: with data, and flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Done {
    reads: u64,
    writes: u64,
    discards: u64,
    flushes: u64,
}

impl Done {
    fn all(self) -> u64 {
        self.reads + self.writes + self.discards + self.flushes
    }

    fn since(self, earlier: Done) -> Done {
        Done {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            discards: self.discards - earlier.discards,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

/// Reads /proc/diskstats for all disks with requests: zram has none (it handles bios), and those of device-mapper are requests of the
/// disks below.
fn diskstats() -> BTreeMap<String, Done> {
    let text = std::fs::read_to_string("/proc/diskstats").unwrap();
    let disk = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |field: usize| fields.get(field).map_or(0, |number| number.parse().unwrap());
        let name = fields[2].to_string();
        let requests = std::path::Path::new("/sys/block").join(&name).join("mq").exists() && !name.starts_with("dm-");
        requests
            .then(|| (name, Done { reads: number(3), writes: number(7), discards: number(14), flushes: number(18) }))
    };
    text.lines().filter_map(disk).collect()
}

/// Requests during some work: of the test's disk, of all others, and as the module counted them.
#[derive(Debug)]
struct Work {
    own: Done,
    others: Done,
    /// Requests that ftrace saw.
    completed: Completed,
    counted: u64,
    histogram: Vec<u64>,
}

impl Work {
    /// Returns the smallest and largest number of requests of other disks in the module's count. The largest comes from
    /// /proc/diskstats if there is no tracefs.
    fn of_others(&self) -> RangeInclusive<u64> {
        let (least, most) = self.completed.elsewhere.unwrap_or((0, self.others.all()));
        least..=most
    }

    /// Returns the smallest and largest number of requests of the test's disk in the module's count, less those of other disks.
    fn of_own(&self) -> RangeInclusive<u64> {
        let others = self.of_others();
        self.counted.saturating_sub(*others.end())..=self.counted - others.start()
    }
}

/// Does some work, and returns the requests during it.
fn over(agent: &mut Agent, disk: &Disk, work: impl FnOnce()) -> Work {
    let completions = Completions::record();
    let outer_0 = diskstats();
    let before = completions.reading(|| agent.histogram());
    settle();
    work();
    settle();
    let histogram = since(&completions.reading(|| agent.histogram()), &before);
    let outer_1 = diskstats();
    let (own, others, completed) = (Done::default(), Done::default(), completions.of(disk.name()));
    let mut done = Work { own, others, completed, counted: histogram.iter().sum(), histogram };
    for (name, later) in outer_1 {
        let grown = later.since(outer_0.get(&name).copied().unwrap_or_default());
        if name == disk.name() {
            done.own = grown;
        } else {
            let sum = done.others;
            done.others = Done {
                reads: sum.reads + grown.reads,
                writes: sum.writes + grown.writes,
                discards: sum.discards + grown.discards,
                flushes: sum.flushes + grown.flushes,
            };
        }
    }
    println!("{done:?}");
    done
}

/// Checks that the module counted as many requests of this disk as programs can have seen.
fn same(work: &Work, expected: u64) {
    let expected = expected - work.completed.unseen;
    assert!(work.of_own().contains(&expected), "expected {expected}: {work:?}");
}

fn fio(disk: &Disk, options: &str) -> Vec<String> {
    let filename = format!("--filename={}", disk.device);
    let mut arguments =
        vec!["--name=x", "--minimal", "--direct=1", "--bs=4k", "--size=16m", "--allow_mounted_write=1", &filename];
    arguments.extend(options.split_whitespace());
    run("fio", &arguments).trim().split(';').map(str::to_string).collect()
}

/// Returns the mean submission latency plus the mean completion latency of fio's reads, in microseconds (terse format, version 3).
fn clat(terse: &[String]) -> f64 {
    terse[11].parse::<f64>().unwrap() + terse[15].parse::<f64>().unwrap()
}

/// Returns the smallest possible mean of a histogram.
fn least_mean(histogram: &[u64]) -> f64 {
    let sum: u64 =
        histogram.iter().enumerate().map(|(slot, count)| count * if slot == 0 { 0 } else { 1 << slot }).sum();
    sum as f64 / histogram.iter().sum::<u64>() as f64
}

/// Feature to avoid, so that the kernel's clock counts as one that is read for each request, as before 6.9: then the programs do not
/// see requests being issued.
const NO_ISSUE: &str = "plug_clock";

/// Counts of an operation on a disk in the rows of the programs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    requests: u64,
    bytes: u64,
    /// Number of requests by phase: all, in the device, before it.
    phases: [u64; 3],
    /// Nanoseconds by phase.
    ns: [u64; 3],
}

/// Returns the words of this process's latest array with values of this size.
pub fn map_words<T>() -> Vec<u64> {
    let number = |text: &str, field: &str| -> Option<usize> {
        text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok())
    };
    let found = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten().filter_map(|entry| {
        let text = std::fs::read_to_string(entry.path()).ok()?;
        let is_mapped = text.contains("map_flags:\t0x400");
        let is_it =
            is_mapped && number(&text, "map_type:") == Some(2) && number(&text, "value_size:") == Some(size_of::<T>());
        let fd: i32 = entry.file_name().to_str()?.parse().ok()?;
        is_it.then(|| (number(&text, "map_id:"), fd, number(&text, "max_entries:").unwrap() * size_of::<T>()))
    });
    let (_, fd, bytes) = found.max().expect("the agent holds its maps");
    // SAFETY: a mapping of its own of an array that is as long, copied out before it is unmapped; the agent keeps the descriptor open.
    unsafe {
        let fd = BorrowedFd::borrow_raw(fd);
        let at = mmap(None, bytes.try_into().unwrap(), ProtFlags::PROT_READ, MapFlags::MAP_SHARED, fd, 0).unwrap();
        let words = std::slice::from_raw_parts(at.cast::<u64>().as_ptr(), bytes / 8).to_vec();
        munmap(at.cast::<c_void>(), bytes).unwrap();
        words
    }
}

/// Returns the programs' counts of reads, writes, flushes and discards of a disk.
fn counted(disk: &Disk) -> [Counted; 4] {
    let (major, minor) = disk.number();
    let key = 1 << 63 | u64::from(major) << 32 | u64::from(minor);
    let mut all = [Counted::default(); 4];
    let fulls = [bio_row::total, bio_row::device, bio_row::queue].map(|phase| phase.offset() / 8);
    let parts = [
        (map_words::<bio_row>(), size_of::<bio_row>() / 8, bio_row::unmeasured.offset() / 8, &fulls[..], 0),
        (map_words::<bio_small>(), size_of::<bio_small>() / 8, bio_small::unmeasured.offset() / 8, &fulls[..1], 2),
    ];
    for (words, per_row, unmeasured, phases, first) in parts {
        for (at, row) in words.chunks(per_row).enumerate().filter(|(_, row)| row[0] == key) {
            let counted = &mut all[first + at % 2];
            counted.bytes += row[1];
            for (phase, &at) in phases.iter().enumerate() {
                let histogram = &row[at..at + size_of::<fine_hist>() / 8];
                counted.ns[phase] += histogram[0];
                counted.phases[phase] += histogram[1..].iter().sum::<u64>();
            }
            counted.requests += row[unmeasured];
        }
    }
    all.map(|counted| Counted { requests: counted.requests + counted.phases[0], ..counted })
}

/// Returns the numbers of reads, writes, flushes and discards of a disk in /proc/diskstats, each with its sectors.
fn by_operation(disk: &Disk) -> [(u64, u64); 4] {
    let text = std::fs::read_to_string("/proc/diskstats").unwrap();
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fields = lines.into_iter().find(|fields| fields[2] == disk.name()).unwrap();
    let number = |field: usize| -> u64 { fields.get(field).map_or(0, |number| number.parse().unwrap()) };
    [(number(3), number(5)), (number(7), number(9)), (number(18), 0), (number(14), number(16))]
}

#[test]
fn operations_of_a_disk_count_as_the_kernel_counts_them() {
    for (avoid, options) in [("", ""), ("tp_btf", ""), ("", "issue = False"), ("", ALL), ("tp_btf", ALL)] {
        println!("avoiding `{avoid}`, with `{options}`");
        operations(avoid, options);
    }
}

/// All options that add counters for a request.
const ALL: &str = "devices = ^loop\nby_size = True\nexemplars = True";

fn operations(avoid: &str, options: &str) {
    let _alone = alone();
    if lacks(&["fio", "blkdiscard"]) {
        return;
    }
    let disk = Disk::new(16);
    disk.set("scheduler", "mq-deadline");
    let nomerges = format!("/sys/block/{}/queue/nomerges", disk.name());
    let merging = std::fs::read_to_string(&nomerges).unwrap();
    disk.set("nomerges", "0");
    let agent = Agent::avoiding(avoid, "biolatency", options);
    assert!(!options.contains("issue") || !agent.is_attached("block_rq_issue"));
    let completions = Completions::record();
    let (stats, rows) = (by_operation(&disk), counted(&disk));
    settle();
    fio(&disk, "--ioengine=libaio --iodepth=32 --iodepth_batch_submit=32 --rw=randrw --number_ios=3000");
    fio(&disk, "--ioengine=libaio --iodepth=32 --iodepth_batch_submit=32 --iodepth_batch_complete_min=32 --rw=write");
    for at in 0..20 {
        run("blkdiscard", &["-o", &(at * 65_536).to_string(), "-l", "65536", &disk.device]);
    }
    run("blkdiscard", &["-z", "-l", "1M", &disk.device]);
    settle();
    let (stats_1, rows_1) = (by_operation(&disk), counted(&disk));
    disk.set("nomerges", merging.trim());
    let completed = completions.of(disk.name());
    // 16 MB in blocks of 4 KB, one after the other, and half of 3,000 requests.
    assert!(stats_1[1].0 - stats[1].0 < 4096, "no request was merged: {stats:?} {stats_1:?}");
    let mut missing = (0, 0);
    let flushes = stats_1[2].0 - stats[2].0;
    for operation in 0..4 {
        let (before, after) = (rows[operation], rows_1[operation]);
        // A flush without data has a parent, which completes without bytes and which /proc/diskstats counts among the writes.
        let parents = if operation == 1 { flushes } else { 0 };
        let requests = stats_1[operation].0 - stats[operation].0 - parents;
        let bytes = (stats_1[operation].1 - stats[operation].1) * 512;
        let ours = (after.requests - before.requests, after.bytes - before.bytes);
        println!("operation {operation}: {ours:?}, expected {requests}, {bytes}; {completed:?}");
        assert!(requests > 0 || operation == 2, "{stats:?} {stats_1:?}");
        assert!(ours.0 <= requests && ours.1 <= bytes, "operation {operation}: {ours:?} of {requests}, {bytes}");
        if operation == 2 {
            assert!(ours.0 + completed.unseen_empty >= requests, "{ours:?} of {requests}");
        } else {
            missing = (missing.0 + requests - ours.0, missing.1 + bytes - ours.1);
        }
        let phases: Vec<u64> = after.phases.iter().zip(before.phases).map(|(after, before)| after - before).collect();
        let ns: Vec<u64> = after.ns.iter().zip(before.ns).map(|(after, before)| after - before).collect();
        if operation < 2 {
            assert_eq!(phases, [ours.0; 3], "every request has both start times here");
            assert!(ns[0].abs_diff(ns[1] + ns[2]) <= ns[0] / 1000, "the phases add up: {ns:?}");
        } else {
            assert_eq!(phases[0], ours.0);
        }
    }
    assert_eq!(missing, (completed.unseen, completed.unseen_bytes), "only what no program can see is missing");
}

/// The rows are compared with /proc/diskstats above.
#[test]
fn the_metrics_of_a_disk_are_what_its_rows_have() {
    let _alone = alone();
    if lacks(&["fio"]) {
        return;
    }
    let disk = Disk::new(16);
    let mut agent = Agent::new("biolatency", "window = 10");
    fio(&disk, "--ioengine=libaio --iodepth=32 --rw=randrw --number_ios=3000");
    settle();
    agent.tick();
    let spec = corebcc::modules::find("biolatency").unwrap().tables.iter().find(|spec| spec.cluster == 320).unwrap();
    let (table, rows) = (agent.other(spec), counted(&disk));
    let row = table.keys().iter().position(|key| match key {
        corebcc::kit::Key::Name(name) => table.text(name) == disk.name().as_bytes(),
        _ => false,
    });
    let row = row.unwrap();
    let value = |name: &str| {
        let column = spec.metrics.iter().position(|metric| metric.name == format!("disk.dev.{name}")).unwrap();
        table.value(row, column).map(|value| match value {
            corebcc::pcp::Atom::U64(value) => value,
            other => panic!("{name}: {other:?}"),
        })
    };
    for (operation, counted) in ["read", "write"].into_iter().zip(rows) {
        for (at, phase) in ["total", "device", "queue"].into_iter().enumerate() {
            let of = |metric: &str| value(&format!("{operation}.{phase}.{metric}"));
            assert_eq!(
                (of("count"), of("sum")),
                (Some(counted.phases[at]), Some(counted.ns[at])),
                "{operation}.{phase}"
            );
            let quantiles = ["p50", "p90", "p99", "p999", "max"].map(|quantile| of(quantile).unwrap());
            assert!(counted.phases[at] > 100 && quantiles.is_sorted(), "{operation}.{phase}: {quantiles:?}");
            let mean = counted.ns[at] / counted.phases[at] / 1000;
            assert!((1..=quantiles[4] + 1).contains(&(mean + 1)), "{operation}.{phase}: {mean} and {quantiles:?}");
        }
        assert_eq!(value(&format!("{operation}.bytes")), Some(counted.bytes));
    }
    let label = table.labels(row).unwrap().iter().find(|(name, _)| *name == "disk").unwrap();
    assert_eq!(label.1, corebcc::kit::SeriesLabel::Text(disk.name().to_owned()));
}

/// Reads the values of these metrics by instance, in the module's table with this cluster.
fn values(agent: &mut Agent, cluster: u32, metrics: &[&str]) -> BTreeMap<String, Vec<Option<String>>> {
    let spec =
        corebcc::modules::find("biolatency").unwrap().tables.iter().find(|spec| spec.cluster == cluster).unwrap();
    let table = agent.other(spec);
    let value = |row: usize, metric: &&str| {
        let column = spec.metrics.iter().position(|def| def.name == *metric).unwrap_or_else(|| panic!("{metric}"));
        table.value(row, column).map(|value| match value {
            corebcc::pcp::Atom::U64(value) => value.to_string(),
            corebcc::pcp::Atom::U32(value) => value.to_string(),
            corebcc::pcp::Atom::Str(text) => String::from_utf8_lossy(text).into_owned(),
            other => panic!("{metric}: {other:?}"),
        })
    };
    let row = |(row, key): (usize, &corebcc::kit::Key)| match key {
        corebcc::kit::Key::Name(name) => {
            let name = String::from_utf8_lossy(table.text(name)).into_owned();
            (name, metrics.iter().map(|metric| value(row, metric)).collect())
        }
        other => panic!("{other:?}"),
    };
    table.keys().iter().enumerate().map(row).collect()
}

/// Python that keeps the descriptor open until the test continues, so that no other process probes the disk after closing.
const UNTIL_TOLD: &str = "say('done')\nsys.stdin.readline()";

/// Python for forty reads of 64 KB from 12 KB before the end of the file behind the disk.
const READS_IN_PARTS: &str = "for i in range(40):\n try: os.preadv(fd, [page], 10 << 20)\n except OSError: pass\n";

/// Reads from a disk with O_DIRECT: for each size in bytes a number of times. The descriptor stays open so that no other process
/// probes the disk after closing.
fn read_sizes(disk: &Disk, sizes: &[(u32, u32)]) -> Script {
    let source = format!(
        "{}for size, times in {sizes:?}:\n\
         \x20pages = mmap.mmap(-1, size)\n\
         \x20for i in range(times):\n\
         \x20\x20try: os.preadv(fd, [pages], 0)\n\
         \x20\x20except OSError: pass\n\
         {UNTIL_TOLD}",
        direct(disk)
    );
    let mut script = Script::python(&source);
    script.line();
    script
}

/// Returns the number of reads for each size, and of all reads of the disk.
fn read_counts(agent: &mut Agent, disk: &Disk) -> (BTreeMap<String, u64>, u64) {
    let number = |value: &Option<String>| value.as_ref().unwrap().parse::<u64>().unwrap();
    let sizes = values(agent, 325, &["disk.size.read.total.count"]);
    let own = |name: &str| name.strip_prefix(disk.name())?.strip_prefix("::").map(str::to_owned);
    let sizes = sizes.iter().filter_map(|(name, counts)| Some((own(name)?, number(&counts[0])))).collect();
    let disks = values(agent, 320, &["disk.dev.read.total.count"]);
    (sizes, disks.get(disk.name()).map_or(0, |counts| number(&counts[0])))
}

#[test]
fn without_the_options_there_is_one_row_by_size() {
    let _alone = alone();
    let agent = Agent::new("biolatency", "");
    assert_eq!(map_words::<bio_size_row>().len() * 8, size_of::<bio_size_row>());
    assert!(!agent.is_attached("block_io_start"));
    drop(agent);
    let agent = Agent::new("biolatency", ALL);
    assert!(map_words::<bio_size_row>().len() * 8 >= 16 * size_of::<bio_size_row>());
    assert!(agent.is_attached("block_io_start"));
}

#[test]
fn reads_are_counted_by_their_size() {
    let _alone = alone();
    let disk = Disk::new(16);
    disk.set("read_ahead_kb", "0");
    let mut agent = Agent::new("biolatency", "by_size = True");
    let completions = Completions::record();
    let script = read_sizes(&disk, &[(512, 3), (4096, 5), (4608, 7), (8192, 11), (65_536, 13), (69_632, 17)]);
    settle();
    let (sizes, all) = read_counts(&mut agent, &disk);
    let completed = completions.of(disk.name());
    let done = by_operation(&disk)[0].0;
    script.end();
    println!("{sizes:?}, {all}, {completed:?}");
    assert_eq!(sizes.values().sum::<u64>(), all, "the sizes are all of it: {sizes:?}");
    assert!(all <= done);
    let expected = [("4K", 8), ("8K", 18), ("64K", 13), ("128K", 17)];
    let counts = expected.map(|(size, _)| sizes.get(size).copied().unwrap_or(0));
    // What looks at a new disk reads blocks of 4 KB, and what programs could not see is in no size.
    let seen = counts.iter().sum::<u64>() + completed.unseen;
    assert!(seen >= expected.iter().map(|(_, count)| count).sum(), "{sizes:?} {completed:?}");
    for ((size, expected), count) in expected.into_iter().zip(counts).skip(1) {
        assert!(
            (expected - completed.unseen.min(expected)..=expected).contains(&count),
            "{size}: {count}, not {expected}"
        );
    }
}

/// A read beyond the end of the file completes in two parts: its size is the sum of both.
#[test]
fn a_request_in_parts_has_the_size_of_the_whole() {
    let _alone = alone();
    let disk = Disk::new(16);
    disk.truncate((10 << 20) + 3 * 4096);
    let mut agent = Agent::new("biolatency", "by_size = True\nexemplars = True");
    let completions = Completions::record();
    let mut script = Script::python(&(direct(&disk) + READS_IN_PARTS + UNTIL_TOLD));
    script.line();
    settle();
    agent.tick();
    let (sizes, all) = read_counts(&mut agent, &disk);
    let completed = completions.of(disk.name());
    let slowest = values(&mut agent, 337, &["disk.slowest.bytes", "disk.slowest.sector"]);
    script.end();
    println!("{sizes:?}, {all}, {completed:?}, {slowest:?}");
    // A request has another size if a part of it completed where no program runs.
    let counted = sizes.get("64K").copied().unwrap_or(0);
    assert!(counted <= 40 && counted + completed.unseen >= 40, "{sizes:?}");
    let whole = [Some("65536".to_owned()), Some((10u64 << 11).to_string())];
    let may_differ = all > 40 || completed.unseen > 0;
    assert!(slowest.get(disk.name()).is_some_and(|slowest| may_differ || *slowest == whole), "{slowest:?}");
}

#[test]
fn disks_that_do_not_match_are_not_counted_for_long() {
    let _alone = alone();
    let (disk, other) = (Disk::new(16), Disk::new(16));
    let mut agent = Agent::new("biolatency", &format!("devices = ^{}$", disk.name()));
    let once = |disk: &Disk, times: u32| read_sizes(disk, &[(4096, times)]).end();
    once(&other, 10);
    settle();
    assert!(counted(&other)[0].requests >= 10, "the agent has not looked at it yet");
    agent.tick();
    settle();
    let (before, done) = (counted(&other)[0].requests, by_operation(&other)[0].0);
    once(&other, 200);
    settle();
    assert!(by_operation(&other)[0].0 - done >= 200);
    let more = counted(&other)[0].requests - before;
    assert_eq!(more, 0, "the programs ignore it");
    let histogram: u64 = agent.histogram().iter().sum();
    once(&disk, 100);
    settle();
    let own: u64 = counted(&disk).iter().map(|operation| operation.requests).sum();
    assert!(own >= 100, "a disk is counted from its first request");
    assert_eq!(agent.histogram().iter().sum::<u64>() - histogram, own, "all latency is that of the disk");
    let names: Vec<String> = values(&mut agent, 320, &["disk.dev.name"]).into_keys().collect();
    assert_eq!(names, [disk.name()]);
}

#[test]
fn the_slowest_request_has_the_name_of_its_process() {
    for avoid in ["", "tp_btf"] {
        println!("avoiding `{avoid}`");
        slowest(avoid);
    }
}

fn slowest(avoid: &str) {
    let _alone = alone();
    let disk = Disk::new(16);
    let mut agent = Agent::avoiding(avoid, "biolatency", "exemplars = True\nwindow = 60");
    let source = format!(
        "open('/proc/self/comm', 'w').write('slow one')\n\
         {}for i in range(20): os.pwritev(fd, [memoryview(page)[:32768]], 1 << 20)\n\
         {UNTIL_TOLD}",
        direct(&disk)
    );
    let mut script = Script::python(&source);
    script.line();
    settle();
    agent.tick();
    let writes = counted(&disk);
    let metrics = ["pid", "command", "operation", "bytes", "sector", "time", "ended"];
    let metrics = metrics.map(|metric| -> &str { format!("disk.slowest.{metric}").leak() });
    let found = values(&mut agent, 337, &metrics);
    let cgroup = values(&mut agent, 337, &["disk.slowest.cgroup", "disk.slowest.cgroup_path"]);
    let longest = values(&mut agent, 320, &["disk.dev.write.total.max"]);
    let pid = script.pid().to_string();
    script.end();
    println!("{found:?} {cgroup:?} {longest:?} {writes:?}");
    let own = &found[disk.name()];
    let expected = [&pid, "slow one", "write", "32768", "2048"].map(|text| Some(text.to_owned()));
    assert!(writes[1].requests >= 19);
    assert_eq!(own[..5], expected);
    if let ([Some(id), path], Ok(cgroups)) = (&cgroup[disk.name()][..], Cgroups::of(Controller::BlockIo)) {
        let cgroup = Cgroup { id: id.parse().unwrap(), path: path.as_ref().unwrap().clone().into_bytes() };
        assert!(cgroups.is_there(&cgroup), "{cgroup:?}");
    }
    let number = |text: &Option<String>| text.as_ref().unwrap().parse::<f64>().unwrap();
    let (time, max) = (number(&own[5]), number(&longest[disk.name()][0]));
    assert!((time - max).abs() <= max * 0.04 + 1.0, "{time} us is the longest, {max}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as f64;
    assert!((now - number(&own[6])).abs() < 60_000.0, "{own:?}");
}

/// Makes 200 writes of 4 KB. On a disk without FUA each is a write and a flush, and the write completes a second time, without bytes.
fn write_synchronously(disk: &Disk) {
    let source = format!(
        "import mmap\n\
         fd = os.open('{}', os.O_RDWR | os.O_DSYNC | os.O_DIRECT)\n\
         page = mmap.mmap(-1, 4096)\n\
         for i in range(200): os.pwrite(fd, page, i * 4096)",
        disk.device
    );
    Script::python(&source).end();
}

#[test]
fn synchronous_writes_count_once_in_their_rows() {
    let _alone = alone();
    let disk = Disk::new(16);
    let _agent = Agent::new("biolatency", "");
    let completions = Completions::record();
    let before = counted(&disk);
    write_synchronously(&disk);
    settle();
    let after = counted(&disk);
    let completed = completions.of(disk.name());
    let writes = (after[1].requests - before[1].requests, after[1].bytes - before[1].bytes);
    assert_eq!(writes, (200 - completed.unseen, 200 * 4096 - completed.unseen_bytes));
    assert!(after[2].requests - before[2].requests + completed.unseen_empty >= 200, "{after:?}");
}

/// With the kernel's times, too.
#[test]
fn direct_reads_count_once_and_no_slower_than_fio_saw() {
    for avoid in ["", NO_ISSUE] {
        println!("avoiding `{avoid}`");
        single_direct_reads(avoid);
    }
}

fn single_direct_reads(avoid: &str) {
    let _alone = alone();
    if lacks(&["fio"]) {
        return;
    }
    let disk = Disk::new(16);
    let mut agent = Agent::avoiding(avoid, "biolatency", "");
    assert!(avoid.is_empty() || !agent.is_attached("block_rq_issue"));
    let mut terse = Vec::new();
    let work = over(&mut agent, &disk, || terse = fio(&disk, "--rw=randread --number_ios=1000 --iodepth=1"));
    assert!(work.own.reads >= 1000);
    same(&work, work.own.all());
    if *work.of_others().end() == 0 {
        let (ours, theirs) = (least_mean(&work.histogram), clat(&terse));
        println!("mean at least {ours} us, fio {theirs} us");
        assert!(ours <= theirs, "mean at least {ours} us, fio {theirs} us");
    }
    assert_eq!(agent.warnings(), [""; 0]);
}

/// With the kernel's times, too.
#[test]
fn batches_are_counted_request_by_request() {
    for avoid in ["", NO_ISSUE] {
        println!("avoiding `{avoid}`");
        batches(avoid);
    }
}

fn batches(avoid: &str) {
    let _alone = alone();
    if lacks(&["fio"]) {
        return;
    }
    let disk = Disk::new(16);
    let mut agent = Agent::avoiding(avoid, "biolatency", "");
    for engine in ["libaio", "io_uring"] {
        let options = format!(
            "--ioengine={engine} --iodepth=32 --iodepth_batch_submit=32 --iodepth_batch_complete_min=32 --rw=randread \
             --number_ios=3200"
        );
        let mut terse = Vec::new();
        let work = over(&mut agent, &disk, || terse = fio(&disk, &options));
        assert!(work.own.reads >= 2000, "{engine}: {work:?}");
        same(&work, work.own.all());
        if *work.of_others().end() == 0 {
            let (ours, theirs) = (least_mean(&work.histogram), clat(&terse));
            println!("{engine}: mean at least {ours} us, fio {theirs} us");
            assert!(ours <= theirs, "{engine}: mean at least {ours} us, fio {theirs} us");
        }
    }
    assert_eq!(agent.warnings(), [""; 0]);
}

/// A flush without data has a parent request that completes too, with no bytes: /proc/diskstats counts it as a write.
#[test]
fn a_flush_is_counted_once_and_its_parent_not() {
    let _alone = alone();
    let disk = Disk::new(16);
    let mut agent = Agent::new("biolatency", "");
    let source = format!("fd = os.open('{}', os.O_RDWR)\nfor i in range(300): os.fsync(fd)", disk.device);
    let work = over(&mut agent, &disk, || Script::python(&source).end());
    assert!(work.own.flushes >= 300 && work.own.writes == work.own.flushes, "{work:?}");
    same(&work, work.own.all() - work.own.writes);
}

#[test]
fn synchronous_writes_count_with_flushes_without_ghosts() {
    let _alone = alone();
    let disk = Disk::new(16);
    let mut agent = Agent::new("biolatency", "");
    let work = over(&mut agent, &disk, || write_synchronously(&disk));
    assert!(work.own.writes >= 200 && work.own.flushes >= 200, "{work:?}");
    let parents = work.own.writes - 200;
    same(&work, work.own.all() - parents);
}

#[test]
fn discards_and_zeroing_are_counted() {
    let _alone = alone();
    let disk = Disk::new(16);
    let mut agent = Agent::new("biolatency", "");
    let work = over(&mut agent, &disk, || {
        for _ in 0..20 {
            run("blkdiscard", &[&disk.device]);
        }
        run("blkdiscard", &["-z", "-l", "1M", &disk.device]);
    });
    assert!(work.own.discards >= 20 && work.own.writes >= 1, "{work:?}");
    // The end of a zeroing is flushed: a flush, and its parent among the writes.
    same(&work, work.own.all() - work.own.flushes);
}

/// A read beyond the end of the file behind a loop device completes in two parts: the existing data, then zeros or an error.
#[test]
fn a_request_that_completes_in_parts_is_counted_once() {
    let _alone = alone();
    let disk = Disk::new(16);
    disk.truncate((10 << 20) + 3 * 4096);
    let mut agent = Agent::new("biolatency", "");
    let source = direct(&disk) + READS_IN_PARTS;
    let work = over(&mut agent, &disk, || Script::python(&source).end());
    assert!(work.own.reads >= 40, "{work:?}");
    same(&work, work.own.all());
    assert_eq!(agent.warnings(), [""; 0]);
}

/// The root disk is always in use by others, so counts have an upper and a lower bound: parents of flushes count as writes there.
#[test]
fn a_file_system_under_fsync_is_counted_as_bpftrace_counts_it() {
    let _alone = alone();
    if lacks(&["fio", "bpftrace"]) {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut agent = Agent::new("biolatency", "");
    let outer_0 = agent.total();
    // Classic tracepoint of the same event: requests with data, and flushes (FF); parents of flushes have neither.
    let with_data = Bpftrace::count("tracepoint:block:block_rq_complete /args->nr_sector > 0/");
    let flushes = Bpftrace::count(
        "tracepoint:block:block_rq_complete /args->nr_sector == 0 && strncmp(args->rwbs, \"FF\", 2) == 0/",
    );
    let inner_0 = agent.total();
    let filename = directory.path().join("data");
    let filename = format!("--filename={}", filename.display());
    run("fio", &["--name=x", "--minimal", "--rw=randwrite", "--bs=4k", "--size=4m", "--fsync=4", &filename]);
    settle();
    let inner_1 = agent.total();
    let (with_data, flushes) = (with_data.end(), flushes.end());
    settle();
    let outer_1 = agent.total();
    println!("inner {} bpftrace {with_data}+{flushes} outer {}", inner_1 - inner_0, outer_1 - outer_0);
    assert!(inner_1 - inner_0 > 256);
    assert!(inner_1 - inner_0 <= with_data + flushes, "{} of {with_data}+{flushes}", inner_1 - inner_0);
    assert!(with_data + flushes <= outer_1 - outer_0, "{with_data}+{flushes} of {}", outer_1 - outer_0);
}

#[test]
fn the_queued_distribution_is_not_below_the_other() {
    let _alone = alone();
    if lacks(&["fio"]) {
        return;
    }
    let disk = Disk::new(16);
    disk.set("scheduler", "mq-deadline");
    // In this order: the first program to run at a completion is the one that measures to the issue.
    let (mut issued, mut queued) =
        (Agent::new("biolatency", "queued = False"), Agent::new("biolatency", "queued = True"));
    let (issued_0, queued_0) = (issued.histogram(), queued.histogram());
    fio(&disk, "--ioengine=libaio --iodepth=64 --iodepth_batch_submit=32 --rw=randread --number_ios=4000");
    settle();
    let (issued, queued) = (since(&issued.histogram(), &issued_0), since(&queued.histogram(), &queued_0));
    println!("issued {issued:?}\nqueued {queued:?}");
    let up_to = |histogram: &[u64], slot: usize| histogram.iter().take(slot + 1).sum::<u64>();
    // Others' requests that were counted by one at the time of reading and not by the other.
    let slack = 5 + up_to(&issued, 31).abs_diff(up_to(&queued, 31));
    assert!(slack < 50, "issued {issued:?}\nqueued {queued:?}");
    for slot in 0..32 {
        assert!(
            up_to(&queued, slot) <= up_to(&issued, slot) + slack,
            "slot {slot}: issued {issued:?}\nqueued {queued:?}"
        );
    }
    assert!(least_mean(&queued) >= least_mean(&issued), "issued {issued:?}\nqueued {queued:?}");
}

/// Checks requests that /proc/diskstats does not count, by ftrace's number, or without it by fio's, with a few blocks more that are
/// read when the device is opened.
fn unaccounted(work: &Work) {
    let expected = match work.completed.elsewhere {
        Some(_) => work.completed.seen..=work.completed.seen,
        None => 1000..=1030,
    };
    let counted = work.of_own();
    assert!(counted.start() <= expected.end() && expected.start() <= counted.end(), "{work:?}");
    assert!(work.completed.elsewhere.is_none() || work.completed.seen + work.completed.unseen >= 1000, "{work:?}");
}

#[test]
fn unaccounted_disks_are_measured_or_counted_as_unmeasured() {
    let _alone = alone();
    if lacks(&["fio"]) {
        return;
    }
    let disk = Disk::new(16);
    disk.set("iostats", "0");
    let mut plain = Agent::new("biolatency", "");
    let work = over(&mut plain, &disk, || drop(fio(&disk, "--rw=randread --number_ios=1000")));
    assert_eq!(work.own, Done::default());
    unaccounted(&work);
    let has_no_total = |lines: Vec<String>| lines.len() == 1 && lines[0].ends_with("not in total and queue");
    assert!(has_no_total(plain.warnings()));
    drop(plain);
    let mut queued = Agent::new("biolatency", "queued = True");
    let work = over(&mut queued, &disk, || drop(fio(&disk, "--rw=randread --number_ios=1000")));
    assert_eq!(*work.of_own().start(), 0, "{work:?}");
    // Kernels from 6.13 leave the time of an earlier request, seconds ago, in the field: it must not be taken.
    let long: u64 = work.histogram.iter().skip(20).sum();
    assert!(long <= *work.of_others().end(), "{work:?}");
    assert!(has_no_total(queued.warnings()));
}

/// A disk over a file of a file system: while that is frozen, writes to its files wait, and so do the requests of the disk.
pub struct Held {
    pub upper: Disk,
    mounted: Mounted,
    _lower: Disk,
}

struct Mounted(tempfile::TempDir);

impl Mounted {
    fn at(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut thaw = std::process::Command::new("fsfreeze");
        let _ = thaw.args(["-u", self.at()]).stderr(std::process::Stdio::null()).status();
        let _ = std::process::Command::new("umount").arg(self.at()).status();
    }
}

impl Held {
    pub fn new() -> Held {
        let lower = Disk::new(64);
        run("mkfs.ext4", &["-q", "-F", &lower.device]);
        let mounted = Mounted(tempfile::tempdir().unwrap());
        run("mount", &[&lower.device, mounted.at()]);
        let path = format!("{}/disk", mounted.at());
        run("dd", &["if=/dev/zero", &format!("of={path}"), "bs=1M", "count=16", "conv=fsync", "status=none"]);
        Held { upper: Disk::over(&path), mounted, _lower: lower }
    }

    pub fn freeze(&self) {
        run("fsfreeze", &["-f", self.mounted.at()]);
    }

    pub fn thaw(&self) {
        run("fsfreeze", &["-u", self.mounted.at()]);
    }
}

#[test]
fn a_request_held_up_for_400_ms_is_in_its_slot() {
    let _alone = alone();
    if lacks(&["fsfreeze", "mkfs.ext4"]) {
        return;
    }
    let held = Held::new();
    let mut agent = Agent::new("biolatency", "");
    let before = agent.histogram();
    held.freeze();
    let start = Instant::now();
    let source = format!(
        "import mmap\n\
         fd = os.open('{}', os.O_RDWR | os.O_DIRECT)\n\
         page = mmap.mmap(-1, 4096)\n\
         say('writing')\n\
         os.pwrite(fd, page, 8192)\n\
         os._exit(0)",
        held.upper.device
    );
    let mut script = Script::python(&source);
    script.line();
    std::thread::sleep(Duration::from_millis(50));
    let issued_by = start.elapsed();
    std::thread::sleep(Duration::from_millis(400));
    held.thaw();
    script.end();
    let ended = start.elapsed();
    settle();
    let added = since(&agent.histogram(), &before);
    println!("held between {:?} and {ended:?}: {added:?}", ended - issued_by);
    // 400 ms are in slot 18 (262 to 524 ms); a machine that stalls may add to it, up to what the whole took.
    let highest = (ended.as_micros() as u64).ilog2() as usize;
    assert!((18..=highest).any(|slot| added.get(slot).is_some_and(|&count| count > 0)), "{added:?}");
}

#[test]
fn a_disk_that_works_on_bios_does_not_disturb() {
    let _alone = alone();
    let Some(zram) = zram() else {
        skip("no zram device that is not in use");
        return;
    };
    let disk = Disk::new(16);
    let mut agent = Agent::new("biolatency", "");
    let source = format!(
        "import mmap\n\
         page = mmap.mmap(-1, 4096)\n\
         for device, count in ('/dev/{zram}', 500), ('{}', 100):\n\
         \x20fd = os.open(device, os.O_RDWR | os.O_DIRECT)\n\
         \x20for i in range(count): os.pwrite(fd, page, i * 4096)",
        disk.device
    );
    let work = over(&mut agent, &disk, || Script::python(&source).end());
    std::fs::write(format!("/sys/block/{zram}/reset"), "1").unwrap();
    assert!(work.own.writes >= 100, "{work:?}");
    same(&work, work.own.all());
}

/// Gives an unused zram device 16 MB, and returns its name; `None` if there is none.
fn zram() -> Option<String> {
    let disks = std::fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.file_name().into_string().unwrap());
    let size = |name: &str| format!("/sys/block/{name}/disksize");
    let unused = |name: &String| std::fs::read_to_string(size(name)).is_ok_and(|size| size.trim() == "0");
    let name = disks.filter(|name| name.starts_with("zram")).find(unused)?;
    std::fs::write(size(&name), "16M").ok()?;
    Some(name)
}
