//! Statistics of the kernel about loaded programs and maps: `bpf_obj_get_info_by_fd`, `/proc/self/fdinfo`, and
//! `BPF_ENABLE_STATS`. Reading them costs system calls, so it is done only for fetches that ask for them.

use super::fdinfo::{fdinfo, number_in};
use super::{held, Loaded};
use libbpf_rs::libbpf_sys::{self, bpf_prog_info};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use nix::libc;
use nix::time::{clock_gettime, ClockId};
use std::fs;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A loaded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramUsage {
    /// Name in the BPF object.
    pub name: String,
    /// Kind, the first part of its section: `tp_btf`, `raw_tp`, `fentry`, `kprobe`, ...
    pub kind: String,
    /// Tracepoint or function, if the section names one; for a template, the number of its targets.
    pub hook: Option<String>,
    /// True if it is attached now.
    pub attached: bool,
    /// Number of runs while the kernel counted them.
    pub runs: u64,
    /// Time of these runs in nanoseconds.
    pub time: u64,
    /// Number of runs skipped because a program was already running on the CPU (5.12; `None` before).
    pub misses: Option<u64>,
}

/// A map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapUsage {
    /// Name in the BPF object.
    pub name: String,
    /// Type: `array`, `hash`, `ringbuf`, ...
    pub kind: String,
    /// Size of a key in bytes; 0 for a ring.
    pub key_size: u32,
    /// Size of a value in bytes; 0 for a ring.
    pub value_size: u32,
    /// Highest number of entries; of a ring, its size in bytes.
    pub capacity: u32,
    /// Entries in use of a hash, waiting bytes of a ring; `None` for an array, whose entries always exist.
    pub used: Option<u64>,
    /// Kernel memory in bytes (`memlock` of fdinfo; exact since 6.4, an estimate before).
    pub memory: Option<u64>,
}

/// Makes the kernel count the runs of all BPF programs and their time, as long as the descriptor is open: 20 to 30 ns a
/// run. `BPF_ENABLE_STATS`, 5.8.
pub fn count_runs() -> std::io::Result<OwnedFd> {
    // SAFETY: an integer goes in, a descriptor or a negative error number comes out.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call that returned it opened it, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// True if the kernel counts runs for others (`kernel.bpf_stats_enabled`).
pub fn counts_runs() -> bool {
    fs::read("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text.trim_ascii() == b"1")
}

impl Loaded {
    /// Returns the loaded programs, with the copies of a template added up. One system call per program.
    pub fn programs(&self) -> Vec<ProgramUsage> {
        let Some(object) = &self.object else { return Vec::new() };
        let links = held(&self.links);
        let attached = |name: &str| links.values().flatten().any(|(program, _)| *program == name);
        let mut usage = Vec::new();
        for program in &object.programs {
            let name = program.name.clone();
            let loaded = self.program(name.as_str());
            let Some(own) = loaded.and_then(|program| info(program.as_fd())) else { continue };
            let (kind, hook) = program.section();
            let (kind, hook) = (kind.to_owned(), (!hook.is_empty()).then(|| hook.to_owned()));
            if !program.is_template() {
                let attached = attached(&name);
                usage.push(ProgramUsage { kind, hook, attached, name, ..own });
                continue;
            }
            let copies = held(&self.copies);
            let copies = copies.iter().filter(|((of, _, _), _)| *of == name);
            let sum = copies.filter_map(|(_, copy)| info(copy.as_fd())).fold(own, |sum, copy| ProgramUsage {
                runs: sum.runs + copy.runs,
                time: sum.time + copy.time,
                misses: sum.misses.zip(copy.misses).map(|(sum, copy)| sum + copy),
                ..sum
            });
            let targets = self.targets(&name);
            let hook = Some(format!("{targets} target{}", if targets == 1 { "" } else { "s" }));
            usage.push(ProgramUsage { kind, hook, attached: targets > 0, name, ..sum });
        }
        usage
    }

    /// Returns the maps. Three system calls each, and for a hash one more per 4096 entries.
    pub fn maps(&self) -> Vec<MapUsage> {
        let usage = |map: &MapHandle| {
            let name = map.name().to_string_lossy().into_owned();
            let used = match map.map_type() {
                MapType::RingBuf => self.rings.get(name.as_str()).map(super::ring::Ring::waiting),
                kind if kind.is_hash_map() => {
                    map.lookup_batch(4096, MapFlags::ANY, MapFlags::ANY).ok().map(|entries| entries.count() as u64)
                }
                _ => None,
            };
            MapUsage {
                kind: format!("{:?}", map.map_type()).to_lowercase(),
                key_size: map.key_size(),
                value_size: map.value_size(),
                capacity: map.max_entries(),
                used,
                memory: memory(map.as_fd()),
                name,
            }
        };
        self.object.iter().flat_map(|object| &object.maps).map(usage).collect()
    }
}

impl Loaded {
    /// Returns the kernel memory of maps and programs in bytes, with the copies of templates.
    pub fn memory(&self) -> u64 {
        let maps = self.object.iter().flat_map(|object| &object.maps);
        let maps: u64 = maps.filter_map(|map| memory(map.as_fd())).sum();
        let programs: u64 = self.loaded_programs().filter_map(|program| memory(program.as_fd())).sum();
        let copies: u64 = held(&self.copies).values().filter_map(|copy| memory(copy.as_fd())).sum();
        maps + programs + copies
    }
}

/// Returns the kernel's statistics of a program; the caller fills in the names.
pub(super) fn info(program: BorrowedFd<'_>) -> Option<ProgramUsage> {
    let mut info = bpf_prog_info::default();
    let mut length = size_of::<bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes into `info`, and into no array, since all lengths in it are zero.
    let failed = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), std::ptr::from_mut(&mut info).cast(), &mut length)
    };
    let knows_misses = length as usize >= offset_of!(bpf_prog_info, recursion_misses) + size_of::<u64>();
    (failed == 0).then(|| ProgramUsage {
        name: String::new(),
        kind: String::new(),
        hook: None,
        attached: false,
        runs: info.run_cnt,
        time: info.run_time_ns,
        misses: knows_misses.then_some(info.recursion_misses),
    })
}

/// Returns the memory of a map or program from its fdinfo, in bytes.
pub(super) fn memory(map: BorrowedFd<'_>) -> Option<u64> {
    number_in(&fdinfo(map)?, "memlock:")
}

/// Returns the resident memory of this process in bytes.
pub fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: it takes and returns numbers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page).ok()?)
}

/// Returns the CPU time of this process, with all threads, ended ones included.
pub fn cpu_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok().map(Duration::from)
}
