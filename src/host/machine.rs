//! Sizes of the machine for maps, read from sysfs and procfs. A file that cannot be read counts as a small machine.

use crate::kit::Host;
use nix::time::{clock_gettime, ClockId};
use nix::unistd::{sysconf, SysconfVar};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads the sizes of this machine.
pub fn host() -> Host {
    let mut disks = 0;
    let mut requests = 0;
    for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        disks += 1;
        requests += requests_of(&disk.path());
    }
    Host {
        pid_namespace: super::in_namespace(),
        cpus: cpus(),
        disks,
        requests,
        memory: fs::read_to_string("/proc/meminfo").ok().and_then(|text| megabytes(&text)).unwrap_or(0),
        threads: fs::read_to_string("/proc/loadavg").ok().and_then(|text| threads(&text)).unwrap_or(256),
    }
}

/// Returns the file systems that the kernel has loaded by now (/proc/filesystems).
pub fn file_systems() -> Vec<String> {
    let list = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    list.lines().filter_map(|line| line.split_whitespace().last()).map(String::from).collect()
}

/// True if the kernel has this module loaded, or built in with parameters.
pub fn has_kernel_module(name: &str) -> bool {
    Path::new("/sys/module").join(name).exists()
}

/// Returns the highest number of requests in flight on a disk: 0 for disks without request queues, such as zram, or
/// without a medium, such as a loop device without a file.
fn requests_of(disk: &Path) -> usize {
    let of = |file: &str| number(&disk.join(file).display().to_string());
    let queues = fs::read_dir(disk.join("mq")).map_or(0, Iterator::count);
    match of("size") {
        0 => 0,
        _ => of("queue/nr_requests") * queues,
    }
}

/// Returns the size of a page of memory in bytes.
pub fn page_size() -> u64 {
    sysconf(SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, |size| size as u64)
}

/// Returns the seconds since 1970; 0 if the clock is before that.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the time of the monotonic clock, which is that of the programs.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// Converts a time of the monotonic clock, in nanoseconds, to milliseconds since 1970.
pub fn since_1970(monotonic: u64) -> u64 {
    let now = self::monotonic();
    let ago = now.saturating_sub(Duration::from_nanos(monotonic));
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    today.saturating_sub(ago).as_millis() as u64
}

/// Returns when the machine was started, in milliseconds since 1970, by its clock now.
pub fn boot_time() -> u64 {
    let up = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    today.saturating_sub(up).as_millis() as u64
}

/// Returns the highest possible CPU id plus one, for rows indexed by id. Ids can have gaps, so there may be fewer CPUs.
pub fn cpus() -> usize {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").ok();
    let configured = || sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten()?.try_into().ok();
    possible.and_then(|list| rows_of(&list)).or_else(configured).unwrap_or(1)
}

/// Returns the ids of online CPUs; of all possible ones if the kernel does not list them.
pub fn online_cpus() -> BTreeSet<usize> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    online.and_then(|list| ids_of(&list)).unwrap_or_else(|| (0..cpus()).collect())
}

/// Parses a list of ids: `0-1,8` is 0, 1 and 8.
fn ids_of(list: &str) -> Option<BTreeSet<usize>> {
    let mut ids = BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        ids.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(ids)
}

/// Returns the highest id of a list plus one: `0-3,8-11` gives 12.
fn rows_of(list: &str) -> Option<usize> {
    let last = |range: &str| range.rsplit('-').next()?.parse::<usize>().ok();
    let ids: Option<Vec<usize>> = list.trim().split(',').map(last).collect();
    ids?.into_iter().max()?.checked_add(1)
}

fn number(path: &str) -> usize {
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the number of threads from /proc/loadavg: `0.00 0.01 0.05 1/234 5678` gives 234.
fn threads(loadavg: &str) -> Option<usize> {
    loadavg.split(' ').nth(3)?.split('/').nth(1)?.parse().ok()
}

/// Returns the memory in megabytes: `MemTotal:        2048000 kB` gives 2000.
fn megabytes(meminfo: &str) -> Option<usize> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix(" kB")?.parse::<usize>().ok()? / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_reach_to_the_highest_cpu_where_ids_have_gaps() {
        assert_eq!(rows_of("0-1\n"), Some(2));
        assert_eq!(rows_of("0\n"), Some(1));
        assert_eq!(rows_of("0-3,8-11\n"), Some(12), "and not 8, of which CPUs 8 to 11 would find no row");
        assert_eq!(rows_of("0,2,4-5"), Some(6));
        assert_eq!([rows_of(""), rows_of("0-x"), rows_of("rubbish")], [None; 3]);
        assert_eq!(ids_of("0-1,8\n"), Some([0, 1, 8].into()));
        assert_eq!([ids_of(""), ids_of("0-x"), ids_of("2,")], [None, None, None]);
    }

    #[test]
    fn only_disks_with_queues_and_a_medium_have_requests() {
        let folder = tempfile::tempdir().unwrap();
        let disk = |name: &str, size: &str, queues: usize| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.join("queue")).unwrap();
            (0..queues).for_each(|queue| fs::create_dir_all(path.join(format!("mq/{queue}"))).unwrap());
            fs::write(path.join("queue/nr_requests"), "128\n").unwrap();
            fs::write(path.join("size"), size).unwrap();
            requests_of(&path)
        };
        assert_eq!([disk("vda", "2048\n", 2), disk("loop0", "0\n", 1), disk("zram0", "2048\n", 0)], [256, 0, 0]);
    }

    #[test]
    fn memory_is_the_first_line_of_meminfo_in_megabytes() {
        assert_eq!(megabytes("MemTotal:        2048000 kB\nMemFree:         1 kB\n"), Some(2000));
        assert_eq!(megabytes("rubbish"), None);
    }

    #[test]
    fn threads_are_the_second_half_of_the_fourth_field() {
        assert_eq!(threads("0.00 0.01 0.05 1/234 5678\n"), Some(234));
        assert_eq!(threads("rubbish"), None);
    }

    /// The values agree with those of getconf(1), which come from other sources: sysinfo(2), and a directory of sysfs
    /// for each CPU.
    #[test]
    fn this_machine_has_the_cpus_and_memory_it_has() {
        let page = sysconf(SysconfVar::PAGE_SIZE).unwrap().unwrap();
        let pages = sysconf(SysconfVar::_PHYS_PAGES).unwrap().unwrap();
        assert_eq!(host().memory as i64, (page * pages) >> 20);
        let directories = fs::read_dir("/sys/devices/system/cpu").unwrap().flatten();
        let ids =
            directories.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse::<usize>().ok());
        assert!(host().cpus > ids.max().unwrap());
    }
}
