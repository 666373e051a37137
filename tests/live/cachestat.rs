//! cachestat against files of a known number of pages, on a file system on a loop device of the test, and against /proc/vmstat and
//! /proc/meminfo.

use crate::common::tracers::Recorder;
use crate::common::{lacks, skip};
use crate::support::{alone, run, settle, Agent, Disk};
use corebcc::kit::Table;
use corebcc::pcp::Atom;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PAGES: u64 = 4096;

/// Reads the module's values: total, misses, hits, dirtied, buffers, cached.
fn values(agent: &mut Agent) -> [Option<u64>; 6] {
    settle();
    agent.tick();
    let table: Table = agent.table();
    [0, 1, 2, 3, 4, 5].map(|column| match table.value(0, column) {
        Some(Atom::U64(value)) => Some(value),
        None => None,
        other => panic!("{other:?}"),
    })
}

/// Returns the growth of the first four values during some work.
fn during(agent: &mut Agent, work: impl FnOnce()) -> [Option<u64>; 4] {
    let before = values(agent);
    work();
    let after = values(agent);
    [0, 1, 2, 3].map(|column| Some(after[column]? - before[column]?))
}

/// Reads a field of /proc/vmstat.
fn vmstat(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    line.parse().unwrap()
}

/// A file system on a disk of the test.
struct FileSystem {
    at: tempfile::TempDir,
    disk: Disk,
}

impl FileSystem {
    fn new() -> FileSystem {
        let disk = Disk::new(96);
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", &disk.device]);
        let at = tempfile::tempdir().unwrap();
        run("mount", &["-o", "noatime", &disk.device, at.path().to_str().unwrap()]);
        FileSystem { at, disk }
    }

    fn path(&self) -> PathBuf {
        self.at.path().join("data")
    }

    /// Makes a new file, which is on disk and in the cache.
    fn file(&self) {
        let mut file = File::create(self.path()).unwrap();
        for _ in 0..PAGES {
            file.write_all(&[7; 4096]).unwrap();
        }
        file.sync_all().unwrap();
    }

    /// Drops all pages of this file system from the cache, and none of others.
    fn drop_cache(&self) {
        let at = self.at.path().to_str().unwrap();
        run("mount", &["-o", "remount", at]);
        let file = File::open(self.path()).unwrap();
        nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.at.path()).stderr(Stdio::null()).status();
    }
}

fn read(path: &Path) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; 65536];
    while file.read(&mut buffer).unwrap() > 0 {}
}

/// Counts of the module and events of ftrace during some work of known amount.
#[derive(Debug)]
struct Seen {
    /// Growth of the module's total, misses, hits and dirtied.
    counted: [Option<u64>; 4],
    /// Pages of the test's disk, from before the first reading of the module to after the second.
    own: Pages,
    /// Pages of its file that came into the cache.
    file: u64,
    /// Pages of all other disks.
    others: Pages,
}

/// Numbers of pages that came into the cache, and of buffers dirtied.
#[derive(Debug, Default)]
struct Pages {
    added: u64,
    buffers: u64,
}

/// Does work on a file system while other processes do theirs. Their work adds to the module's counts, by no more than ftrace saw of
/// it.
fn during_with_others(agent: &mut Agent, files: &FileSystem, work: impl FnOnce()) -> Option<Seen> {
    let recorder = Recorder::start(&["filemap/mm_filemap_add_to_page_cache", "block/block_dirty_buffer"]);
    let Some(recorder) = recorder else {
        skip("tracefs");
        return None;
    };
    let counted = during(agent, work);
    let mut seen = Seen { counted, own: Pages::default(), file: 0, others: Pages::default() };
    let file = format!(" ino {:x} ", fs::metadata(files.path()).unwrap().ino());
    let (major, minor) = files.disk.number();
    let ours = [format!("dev {major}:{minor} "), format!("{major},{minor} ")];
    for event in recorder.end() {
        let pages = if ours.iter().any(|disk| event.text.starts_with(disk)) { &mut seen.own } else { &mut seen.others };
        if event.name == "block_dirty_buffer" {
            pages.buffers += 1;
            continue;
        }
        let added = 1 << event.text.split_once("order=").map_or(0, |(_, order)| order.parse::<u32>().unwrap());
        pages.added += added;
        if ours[0] == event.text[..ours[0].len()] && event.text.contains(&file) {
            seen.file += added;
        }
    }
    println!("{seen:?}");
    Some(seen)
}

/// Returns true if accesses are counted here; if not, prints that and checks that there is no value in their place.
fn sees_accesses(agent: &mut Agent) -> bool {
    let [total, misses, hits, dirtied, ..] = values(agent);
    assert!(misses.is_some() && dirtied.is_some());
    assert_eq!(total.is_some(), hits.is_some());
    if total.is_none() {
        skip("total and hits: fentry or kprobes");
        let said = agent.warnings();
        assert!(said.iter().all(|line| !line.contains("not counted")), "{said:?}");
    }
    total.is_some()
}

#[test]
fn a_cold_read_misses_every_page_and_a_warm_read_none() {
    let _alone = alone();
    if lacks(&["mkfs.ext4"]) {
        return;
    }
    let files = FileSystem::new();
    files.file();
    let mut agent = Agent::new("cachestat", "");
    let sees_accesses = sees_accesses(&mut agent);
    let path = files.path();
    let before = vmstat("nr_dirtied");
    let cold = during_with_others(&mut agent, &files, || {
        files.drop_cache();
        read(&path);
    });
    let Some(cold) = cold else { return };
    // Pages that are dirtied take away from the misses; the kernel adds up what each CPU counted from time to time only.
    let dirtied = vmstat("nr_dirtied") - before + 256;
    // Blocks of the file system that say where the file's are come in too.
    let misses = cold.counted[1].unwrap();
    assert!((PAGES..=PAGES + 32).contains(&cold.file), "read ahead, up to behind its end: {cold:?}");
    assert!(misses + dirtied >= PAGES && misses <= cold.own.added + cold.others.added, "{dirtied} dirtied {cold:?}");
    let warm = during_with_others(&mut agent, &files, || read(&path)).unwrap();
    // The kernel may take a page back at any time.
    assert!(warm.file < PAGES / 100, "{warm:?}");
    assert!(warm.counted[1].unwrap() <= warm.own.added + warm.others.added, "{warm:?}");
    if sees_accesses {
        // A cold read of the loop device is a read of the file in memory behind it, which is an access to each of its pages.
        let once = PAGES - PAGES / 100..2 * PAGES;
        assert!(once.contains(&cold.counted[2].unwrap()), "{cold:?}");
        assert!(once.contains(&warm.counted[2].unwrap()), "{warm:?}");
        assert_eq!(warm.counted[0], Some(warm.counted[1].unwrap() + warm.counted[2].unwrap()));
    }
}

#[test]
fn a_file_written_dirties_its_blocks_and_misses_nothing() {
    let _alone = alone();
    if lacks(&["mkfs.ext4"]) {
        return;
    }
    let files = FileSystem::new();
    let mut agent = Agent::new("cachestat", "");
    let before = vmstat("nr_dirtied");
    let Some(written) = during_with_others(&mut agent, &files, || files.file()) else { return };
    // The kernel adds up what each CPU counted from time to time only.
    assert!(vmstat("nr_dirtied") - before + 256 >= PAGES);
    // Some blocks of the file system itself are dirtied on the way, several times each.
    assert!((PAGES..2 * PAGES).contains(&written.own.buffers), "{written:?}");
    let dirtied = written.counted[3].unwrap();
    assert!((written.own.buffers..=written.own.buffers + written.others.buffers).contains(&dirtied), "{written:?}");
    assert!(written.counted[1].unwrap() <= PAGES / 10 + written.others.added, "{written:?}");
}

#[test]
fn sizes_are_meminfos_however_often_they_are_fetched() {
    let _alone = alone();
    let mut agent = Agent::new("cachestat", "");
    let cached = || -> u64 {
        let text = fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Cached:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
    };
    for _ in 0..5 {
        let (before, [.., ours], after) = (cached(), values(&mut agent), cached());
        let (low, high) = (before.min(after), before.max(after));
        // A file that comes and goes between the readings.
        let slack = 64;
        assert!((low.saturating_sub(slack)..=high + slack).contains(&ours.unwrap()), "{ours:?} of {before} to {after}");
    }
}
