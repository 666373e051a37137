//! stalls against ftrace's records of the same events, and against what the kernel counts.

use crate::cgroups::hierarchy;
use crate::common::skip;
use crate::common::tracers::{Event, Readings};
use crate::files::{FileSystem, EXT4};
use crate::oomkill::Limited;
use crate::support::{alone, names, number, run, Agent};
use corebcc::host::Controller;
use corebcc::modules::find;
use nix::fcntl::{posix_fadvise, PosixFadviseAdvice};
use nix::sys::stat::{major, minor};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Returns count and time of a cause, by its number in the table.
fn of_cause(agent: &mut Agent, cause: usize) -> [u64; 2] {
    let table = agent.table();
    [7 * cause, 7 * cause + 1].map(|column| number(&table, 0, column))
}

const DIRECT: usize = 0;
const MEMCG: usize = 1;
const COMPACT: usize = 2;
const DIRTY: usize = 3;

/// Compares a cause during some work with the ends that ftrace records of it. Returns the number of pauses.
fn is_recorded(
    agent: &mut Agent,
    cause: usize,
    event: &str,
    is_pause: fn(&Event) -> bool,
    work: &dyn Fn(),
) -> Option<u64> {
    let Some(readings) = Readings::record(&[event]) else {
        skip("tracefs");
        return None;
    };
    let before = readings.reading(|| of_cause(agent, cause));
    work();
    let after = readings.reading(|| of_cause(agent, cause));
    let [least, most] = readings.end().map(|events| events.iter().filter(|event| is_pause(event)).count() as u64);
    let [count, time] = [0, 1].map(|column| after[column] - before[column]);
    println!("{event}: {count} of {least} to {most}, {time} ns");
    let skipped = agent.skipped_runs();
    assert!((least.saturating_sub(skipped)..=most).contains(&count), "{count}, {least} to {most}, {skipped} skipped");
    assert!(count == 0 || time > count, "{time} ns");
    Some(count)
}

/// A file system on a disk, with room for the files of these tests.
const DISK: FileSystem = EXT4.of_size(96 << 20);

fn reclaim_is_counted(start: fn(&str) -> Agent) {
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let Some(limited) = Limited::make(cgroups.mount()) else { return };
    DISK.mounted(|directory| {
        let mut agent = start("by_cgroup = True\nprometheus = True");
        // The pages of a file that is larger than the limit. They are read: what writes to a loop device in memory pays for that, too, and
        // a cgroup that has written, be it a time of access, lives on for a while.
        run("mount", &["-o", "remount,noatime", directory.to_str().unwrap()]);
        let path = directory.join("file");
        fs::write(&path, vec![1; 64 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let enter = format!("echo $$ > {}/cgroup.procs; ", limited.directory.display());
        let work = enter + &format!("exec dd if={} of=/dev/null bs=1M 2>&1", path.display());
        let count = is_recorded(&mut agent, MEMCG, "vmscan/mm_vmscan_memcg_reclaim_end", |_| true, &|| {
            run("sh", &["-c", &work]);
        });
        let Some(count) = count else { return };
        assert!(count > 0);
        agent.tick();
        let table = agent.other(find("stalls").unwrap().tables[2]);
        let columns = |name: &str| {
            let row = names(&table).iter().position(|of| of == name);
            row.map(|row| [2, 3].map(|column| number(&table, row, column)))
        };
        // Where v1 limits memory, the task is in the root of v2.
        let name = limited.directory.strip_prefix(cgroups.mount()).map(|path| format!("/{}", path.display()));
        let columns = columns(&name.unwrap_or_else(|_| "/".into()));
        let [pauses, time] = columns.unwrap_or_else(|| panic!("{:?}", names(&table)));
        println!("{pauses} pauses of the cgroup, {time} ns");
        assert!(pauses > 0 && pauses <= count && time > pauses, "{pauses} of {count}");
    });
}

#[test]
fn reclaim_below_a_limit_is_what_ftrace_records_of_it() {
    let _alone = alone();
    reclaim_is_counted(|options| Agent::new("stalls", options));
}

#[test]
fn reclaim_below_a_limit_counts_the_same_by_raw_tracepoints() {
    let _alone = alone();
    reclaim_is_counted(|options| Agent::avoiding("tp_btf", "stalls", options));
}

#[test]
fn compaction_by_a_task_is_what_ftrace_records_of_it() {
    let _alone = alone();
    let mut agent = Agent::new("stalls", "");
    // The kernel's own threads are in the record, too: they are told by the number of the thread.
    let own = |event: &Event| event.thread == nix::unistd::gettid().as_raw() as u32;
    let count = is_recorded(&mut agent, COMPACT, "compaction/mm_compaction_end", own, &|| {
        for _ in 0..3 {
            fs::write("/proc/sys/vm/compact_memory", "1").unwrap();
        }
    });
    assert!(count.is_none_or(|count| count >= 3), "{count:?}");
}

/// Limits on dirty pages that are as they were when it is dropped.
struct DirtyLimits([(&'static str, String); 2]);

impl DirtyLimits {
    /// Lowers the limits of the machine, and of the disk with this directory, however fast it is.
    fn lower(directory: &Path) -> DirtyLimits {
        // Setting one of the bytes sets the ratio beside it to 0, and the other way round.
        let limits = ["/proc/sys/vm/dirty_background_ratio", "/proc/sys/vm/dirty_ratio"];
        let before = limits.map(|file| (file, fs::read_to_string(file).unwrap()));
        fs::write("/proc/sys/vm/dirty_background_bytes", "1048576").unwrap();
        fs::write("/proc/sys/vm/dirty_bytes", "4194304").unwrap();
        let disk = fs::metadata(directory).unwrap().dev();
        fs::write(format!("/sys/class/bdi/{}:{}/max_ratio", major(disk), minor(disk)), "1").unwrap();
        DirtyLimits(before)
    }
}

impl Drop for DirtyLimits {
    fn drop(&mut self) {
        for (file, value) in &self.0 {
            fs::write(file, value).unwrap();
        }
    }
}

fn writers_pause(start: fn(&str) -> Agent) {
    if fs::read_to_string("/proc/sys/vm/dirty_bytes").unwrap().trim() != "0" {
        return skip("limits on dirty pages that are ratios (vm.dirty_bytes is set)");
    }
    // `bdi 254:0: ... paused=0 pause=8 period=8 think=0`: milliseconds.
    let is_pause = |event: &Event| {
        let pause = event.text.split(' ').find_map(|word| word.strip_prefix("pause="));
        pause.unwrap().parse::<i64>().unwrap() > 0
    };
    DISK.mounted(|directory| {
        let mut agent = start("");
        let limits = DirtyLimits::lower(directory);
        let count = is_recorded(&mut agent, DIRTY, "writeback/balance_dirty_pages", is_pause, &|| {
            // A disk in memory may keep up with a writer for a while.
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                fs::write(directory.join("file"), vec![1; 48 << 20]).unwrap();
            }
        });
        drop(limits);
        assert!(count.is_none_or(|count| count > 0), "{count:?}");
    });
}

#[test]
fn writers_that_make_too_much_dirty_pause_as_ftrace_records() {
    let _alone = alone();
    writers_pause(|options| Agent::new("stalls", options));
}

#[test]
fn writers_pause_the_same_by_raw_tracepoints() {
    let _alone = alone();
    writers_pause(|options| Agent::avoiding("tp_btf", "stalls", options));
}

/// Direct reclaims that the kernel counts.
fn direct_reclaims() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    let counts = text.lines().filter(|line| line.starts_with("allocstall"));
    counts.map(|line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

/// Reads a disk through the page cache, many pages at a time, with a priority at which no other thread of the kernel makes room for them.
fn read_greedily(disk: &str) {
    let ahead = format!("/sys/block/{disk}/queue/read_ahead_kb");
    let before = fs::read_to_string(&ahead).unwrap();
    fs::write(&ahead, "16384").unwrap();
    run("chrt", &["-f", "50", "dd", &format!("if=/dev/{disk}"), "of=/dev/null", "bs=1M"]);
    fs::write(&ahead, before).unwrap();
}

/// Only a small machine can be brought to reclaim for all: its disks are as large as its memory, and all of it is page cache then.
#[test]
fn direct_reclaim_is_what_the_kernel_counts() {
    let _alone = alone();
    let disks = std::env::var("COREBCC_DISKS").unwrap_or_default();
    let disks: Vec<&str> = disks.split_whitespace().filter(|disk| ["nvme0n1", "vda"].contains(disk)).collect();
    let is_small = disks.len() == 2;
    let mut agent = Agent::new("stalls", "");
    let before = direct_reclaims();
    let count = is_recorded(&mut agent, DIRECT, "vmscan/mm_vmscan_direct_reclaim_end", |_| true, &|| match is_small {
        true => thread::scope(|scope| disks.iter().for_each(|disk| drop(scope.spawn(|| read_greedily(disk))))),
        false => drop(vec![1u8; 256 << 20]),
    });
    let counted = direct_reclaims() - before;
    println!("{counted} in /proc/vmstat");
    // One may be under way at each end.
    assert!(count.is_none_or(|count| count <= counted + 1), "{count:?} of {counted}");
    if !is_small {
        return skip("a small machine with two disks as large as its memory (tests/vm has one)");
    }
    assert!(count.is_none_or(|count| count > 0), "{count:?}");
}
