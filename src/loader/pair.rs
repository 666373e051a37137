//! The object of a pair: opened by libbpf as an object of its own, loaded without the programs that the kernel refuses,
//! attached by the names of its sections, and read.

use super::mark::post_attach_mark;
use super::outcome::PinRequest;
use super::pair_advice::{advised, explained, listened, Ways};
use super::pair_code::{may_not, variable};
use super::pair_events::EventReader;
use super::pair_options::PairOptions;
use super::pair_sampling::Sampling;
use super::permission::lock_memory;
use super::pins::{wait_for_ended_programs, PinUser, Unit};
use super::refusal::{chain, errno, listening, Refusal};
use super::usage;
use crate::host::{Cgroups, Controller};
use libbpf_rs::libbpf_sys;
use libbpf_rs::{
    Link, Map, MapCore, MapFlags, MapType, Object, ObjectBuilder, OpenObject, ProgramAttachType, ProgramMut,
    ProgramType,
};
use nix::libc;
use std::collections::{BTreeMap, HashSet};
use std::ffi::c_void;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Largest size of an object in bytes.
pub const MAX_OBJECT: u64 = 16 << 20;

/// Highest number of maps of an object.
const MAX_MAPS: usize = 1024;

/// Memory of an entry of a hash besides key and value, in bytes (`struct htab_elem`), with its share of the buckets.
const HASH_ENTRY: u64 = 64;

/// Number of rows read by one system call.
const BATCH: usize = 4096;

/// Highest number of rows read from a map.
const MAX_ROWS: usize = 1 << 20;

/// A map as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairMap {
    /// Name.
    pub name: String,
    /// Size of a key in bytes.
    pub key_size: usize,
    /// Size of a value in bytes.
    pub value_size: usize,
    /// True if each CPU has its own value.
    pub by_cpu: bool,
    /// True if its rows can be read by key.
    pub is_table: bool,
    /// True if programs send events through it: a perf event array or a ring buffer.
    pub is_events: bool,
    /// Kernel memory of the full map in bytes, without the kernel's rounding up.
    pub memory: u64,
}

/// Settings for loading, from the YAML of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairSetup {
    /// Values of 8-byte constants by name.
    pub constants: Vec<(String, u64)>,
    /// Path of the cgroup that `cgroup_skb` programs are attached to, below the mount of cgroup v2.
    pub cgroup: Option<String>,
    /// Maps that are to outlive the agent.
    pub pin: Option<PinRequest>,
}

/// A program, and the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairProgram {
    /// Name.
    pub name: String,
    /// Section, which names the place of attachment.
    pub section: String,
    /// Success if attached, else the reason.
    pub result: Result<(), Refusal>,
}

/// An object that is opened, not loaded.
pub struct OpenPair {
    name: String,
    bytes: Vec<u8>,
    btf: Option<PathBuf>,
    object: OpenObject,
}

/// A loaded object. Dropping it detaches its programs.
pub struct LoadedPair {
    // Links are dropped first: a program is detached before its maps go.
    links: Vec<Link>,
    samplings: Vec<Sampling>,
    object: Object,
    programs: Vec<PairProgram>,
    maps: BTreeMap<String, PairMap>,
    refused: BTreeMap<String, Refusal>,
    cgroup: Option<String>,
    pin: Option<PinUser>,
}

/// A section in a format that libbpf does not know: `perf_event/type=1,config=0,frequency=99` and `xdp/eth0`.
enum Special<'a> {
    PerfEvent(&'a str),
    Xdp(&'a str),
}

impl Special<'_> {
    fn of(section: &str) -> Option<Special<'_>> {
        let (kind, place) = section.split_once('/')?;
        match kind {
            "perf_event" => Some(Special::PerfEvent(place)),
            "xdp" if !matches!(place, "devmap" | "cpumap") => Some(Special::Xdp(place)),
            _ => None,
        }
    }
}

impl OpenPair {
    /// Opens an object without loading it.
    pub fn open(name: &str, bytes: Vec<u8>, options: &PairOptions) -> Result<OpenPair, Refusal> {
        if let Some(refusal) = may_not(&bytes, &options.allow_helpers) {
            return Err(refusal);
        }
        let btf = options.btf.clone();
        let object = open(name, &bytes, btf.as_deref())?;
        let maps = object.maps().count();
        if maps > MAX_MAPS {
            return Err(Refusal::new(libc::E2BIG, format!("expected at most {MAX_MAPS} maps, got {maps}")));
        }
        Ok(OpenPair { name: name.into(), bytes, btf, object })
    }

    /// Returns the maps by name.
    pub fn maps(&self) -> BTreeMap<String, PairMap> {
        let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1) as u64;
        let map = |map: libbpf_rs::OpenMap<'_>| {
            let name = map.name().to_string_lossy().into_owned();
            let kind = map.map_type();
            let is_table = kind.is_hash_map() || matches!(kind, MapType::Array | MapType::PercpuArray);
            let is_events = matches!(kind, MapType::PerfEventArray | MapType::RingBuf);
            let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
            let by_cpu = kind.is_percpu();
            let value = value_size.next_multiple_of(8) as u64 * if by_cpu { cpus } else { 1 };
            let row = match kind {
                MapType::RingBuf => 1,
                kind if kind.is_hash_map() => HASH_ENTRY + key_size.next_multiple_of(8) as u64 + value,
                _ => value,
            };
            let memory = u64::from(map.max_entries()).saturating_mul(row);
            (name.clone(), PairMap { name, key_size, value_size, by_cpu, is_table, is_events, memory })
        };
        self.object.maps().map(map).collect()
    }

    /// Returns the number of programs.
    pub fn programs(&self) -> usize {
        self.object.progs().count()
    }

    /// Loads the object without the programs that the kernel refuses. An error concerns the whole object.
    pub fn load(self, setup: &PairSetup) -> Result<LoadedPair, Refusal> {
        lock_memory();
        let maps = self.maps();
        let OpenPair { name, bytes, btf, mut object } = self;
        let mut refused: BTreeMap<String, Refusal> = BTreeMap::new();
        let unit = setup.pin.as_ref().and_then(|pin| Unit::find(pin, &object));
        let object = loop {
            let reused = unit.iter().try_for_each(|unit| unit.reuse(&mut object));
            reused.map_err(|error| explained(Refusal::read("", errno(&error)), &error))?;
            set_constants(&mut object, &bytes, &setup.constants)?;
            for mut program in object.progs_mut() {
                let section = program.section().to_string_lossy().into_owned();
                match Special::of(&section) {
                    Some(Special::PerfEvent(_)) => program.set_prog_type(ProgramType::PerfEvent),
                    Some(Special::Xdp(_)) => {
                        program.set_prog_type(ProgramType::Xdp);
                        program.set_attach_type(ProgramAttachType::Xdp);
                    }
                    None => {}
                }
                if refused.contains_key(&*program.name().to_string_lossy()) {
                    program.set_autoload(false);
                }
            }
            let (loaded, said) = listening(|| object.load());
            let error = match loaded {
                Ok(object) => break object,
                Err(error) => error,
            };
            let refusal = match verifiers(&said) {
                Some(log) => Refusal::of_program(&std::io::Error::from_raw_os_error(said_errno(&said)), log),
                None => explained(Refusal::read(&said, 0), &error),
            };
            match culprit(&said).filter(|culprit| !refused.contains_key(culprit)) {
                Some(culprit) => drop(refused.insert(culprit, refusal)),
                None => return Err(advised(refusal)),
            }
            object = open(&name, &bytes, btf.as_deref())?;
        };
        let cgroup = setup.cgroup.clone();
        let pin = unit.and_then(|unit| unit.keep(&object.maps().collect::<Vec<_>>()));
        let (links, samplings, programs) = (Vec::new(), Vec::new(), Vec::new());
        Ok(LoadedPair { links, samplings, object, programs, maps, refused, cgroup, pin })
    }
}

fn open(name: &str, bytes: &[u8], btf: Option<&Path>) -> Result<OpenObject, Refusal> {
    let (opened, said) = listening(|| {
        let mut builder = ObjectBuilder::default();
        builder.name(name)?;
        if let Some(btf) = btf {
            builder.btf_custom_path(btf)?;
        }
        builder.open_memory(bytes)
    });
    opened.map_err(|error| advised(explained(Refusal::read(&said, errno(&error)), &error)))
}

/// Sets constants (`const volatile`), whose values the verifier then knows.
fn set_constants(object: &mut OpenObject, bytes: &[u8], constants: &[(String, u64)]) -> Result<(), Refusal> {
    for (name, value) in constants {
        let missing = || Refusal::missing(format!("expected a variable `const volatile __u64 {name}`"));
        let (section, at) = variable(bytes, name).ok_or_else(missing)?;
        let mut maps = object.maps_mut();
        let mut map = maps.find(|map| map.name().to_string_lossy().ends_with(section)).ok_or_else(missing)?;
        let place = map.initial_value_mut().and_then(|values| values.get_mut(at..)?.first_chunk_mut::<8>());
        *place.ok_or_else(missing)? = value.to_ne_bytes();
    }
    Ok(())
}

/// Extracts the verifier's log from libbpf's messages.
fn verifiers(said: &str) -> Option<&str> {
    let (_, log) = said.split_once("-- BEGIN PROG LOAD LOG --\n")?;
    Some(log.split("-- END PROG LOAD LOG --").next().unwrap_or(log))
}

/// Returns the error number at the end of libbpf's messages.
fn said_errno(said: &str) -> i32 {
    Refusal::read(said, 0).errno
}

/// Returns the program that libbpf names as the one that failed: `prog 'NAME': failed to load: -22`.
fn culprit(said: &str) -> Option<String> {
    let named = |line: &str| Some(line.split_once("prog '")?.1.split_once('\'')?.0.to_owned());
    said.lines().rev().filter(|line| line.contains("fail") || line.contains("missing")).find_map(named)
}

impl LoadedPair {
    /// Attaches the programs. Those at `post_attach_mark` run once and are then detached.
    pub fn attach(&mut self) {
        // Until now those of an agent before have counted.
        self.pin.iter().for_each(PinUser::end_programs_before);
        wait_for_ended_programs();
        let LoadedPair { links, samplings, object, programs, refused, cgroup, pin, .. } = self;
        let (mut marked, mut ways) = (Vec::new(), None);
        for program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let section = program.section().to_string_lossy().into_owned();
            let result = match refused.remove(&name) {
                Some(refusal) => Err(refusal),
                None if !program.autoload() => {
                    Err(Refusal::missing("its section begins with `?`, so it is not loaded"))
                }
                None => match Special::of(&section) {
                    Some(Special::PerfEvent(event)) => Sampling::begin(&program, event).map(|sampling| {
                        samplings.push(sampling);
                        None
                    }),
                    _ => attach(&program, &section, cgroup.as_deref()).map(Some),
                },
            };
            let result = result.map_err(|refusal| ways.get_or_insert_with(Ways::read).advised(&section, refusal));
            let result = result.map(|attached| match section.ends_with(":post_attach_mark") {
                true => marked.extend(attached),
                false => {
                    if let (Some(pin), Some(link)) = (&pin, &attached) {
                        pin.let_run(&name, link.as_fd());
                    }
                    links.extend(attached);
                }
            });
            programs.push(PairProgram { name, section, result });
        }
        if !marked.is_empty() {
            post_attach_mark();
        }
    }

    /// True if counts are pinned and the programs can be detached quickly: a uprobe takes the kernel a tenth of a
    /// second.
    pub fn can_let_go(&self) -> bool {
        let is_slow = |program: &PairProgram| {
            ["uprobe", "uretprobe", "usdt"].iter().any(|kind| program.section.starts_with(kind))
        };
        self.pin.is_some() && !self.programs.iter().any(is_slow)
    }

    /// Attaches programs at perf events on all CPUs that are online now. Returns new refusals with the program's name.
    pub fn follow_cpus(&mut self) -> Vec<(String, Refusal)> {
        let LoadedPair { samplings, object, .. } = self;
        let mut refused = Vec::new();
        for sampling in samplings {
            let program = object.progs_mut().find(|program| program.name().to_string_lossy() == sampling.program);
            let refusal = program.and_then(|program| sampling.follow(&program));
            refused.extend(refusal.map(|refusal| (sampling.program.clone(), refusal)));
        }
        refused
    }

    /// Returns the programs with their outcomes.
    pub fn programs(&self) -> &[PairProgram] {
        &self.programs
    }

    /// Returns the maps as they are declared.
    pub fn maps(&self) -> &BTreeMap<String, PairMap> {
        &self.maps
    }

    /// Returns the number of runs of the programs and their time in nanoseconds, as far as the kernel counted them.
    pub fn runs(&self) -> (u64, u64) {
        let programs = self.object.progs().filter(|program| program.autoload());
        let of_each = programs.filter_map(|program| usage::info(program.as_fd()));
        of_each.fold((0, 0), |(runs, time), usage| (runs + usage.runs, time + usage.time))
    }

    /// Returns the kernel memory of maps and programs in bytes.
    pub fn memory(&self) -> u64 {
        let maps = self.object.maps().filter(Map::autocreate).filter_map(|map| usage::memory(map.as_fd()));
        let programs = self.object.progs().filter(|program| program.autoload());
        maps.sum::<u64>() + programs.filter_map(|program| usage::memory(program.as_fd())).sum::<u64>()
    }

    fn map(&self, name: &str) -> std::io::Result<Map<'_>> {
        let found = self.object.maps().find(|map| map.name().to_string_lossy() == name);
        found.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Starts reading the first `size` bytes of each event of a map, with a buffer of `room` bytes for each CPU.
    pub fn events(&self, map: &str, size: usize, room: usize) -> Result<EventReader, Refusal> {
        let map = self.map(map)?;
        let (reader, said) = listening(|| EventReader::new(&map, size, room));
        reader.map_err(|error| explained(Refusal::read(&said, errno(&error)), &error))
    }

    /// Sets the value of a key, or deletes the key.
    pub fn set(&self, map: &str, key: &[u8], value: Option<&[u8]>) -> Result<(), Refusal> {
        let map = self.map(map)?;
        let done = match value {
            Some(value) => map.update(key, value, MapFlags::ANY),
            None => map.delete(key),
        };
        done.map_err(|error| Refusal::new(errno(&error), chain(&error)))
    }

    /// Reads the rows of a map, each once: the key, and the value or, for maps by CPU, a value for each possible CPU.
    pub fn read(&self, map: &PairMap, row: &mut dyn FnMut(&[u8], &[u64])) -> std::io::Result<()> {
        let found = self.map(&map.name)?;
        let sizes = (found.key_size() as usize, found.value_size(), found.map_type().is_percpu());
        if sizes != (map.key_size, 8, map.by_cpu) {
            // The kernel writes as much as the map has, whatever there is room for.
            let reason = format!("map {}: expected values of 8 bytes, and the key of the object", map.name);
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, reason));
        }
        let values = if map.by_cpu { libbpf_rs::num_possible_cpus().map_err(std::io::Error::other)? } else { 1 };
        let shape = RowShape { key: map.key_size, values };
        // No map of anybody's has a row twice, but a walk can meet one twice.
        let mut seen = HashSet::new();
        let is_array = matches!(found.map_type(), MapType::Array | MapType::PercpuArray);
        let mut rows = 0;
        let mut once = |key: &[u8], values: &[u64]| {
            if rows <= MAX_ROWS && (is_array || seen.insert(Box::<[u8]>::from(key))) {
                rows += 1;
                row(key, values);
            }
        };
        let most = (found.max_entries() as usize).min(MAX_ROWS);
        let mut lookup = |from: Option<&mut [u8]>, next: &mut [u8], keys: &mut [u8], values: &mut [u64]| {
            look_up_batch(found.as_fd(), shape, from, next, keys, values)
        };
        match batches(&mut lookup, shape, most, &mut once)? {
            Batches::Read => {}
            Batches::Unknown => walk(found.as_fd(), shape, most, &mut once)?,
        }
        if rows > MAX_ROWS {
            return Err(too_many());
        }
        Ok(())
    }
}

/// Error number that is internal to the kernel but reaches processes.
const ENOTSUPP: i32 = 524;

/// Sizes of a row's key and values.
#[derive(Clone, Copy)]
struct RowShape {
    key: usize,
    values: usize,
}

fn too_many() -> std::io::Error {
    std::io::Error::other(format!("not read to its end: more than {MAX_ROWS} rows, or rows that go while it is read"))
}

/// Outcome of reading a map in batches; unknown to kernels before 5.6 and to some types of maps.
enum Batches {
    Read,
    Unknown,
}

/// Reads rows from a position in a map on; returns their number, and the kernel's error or 0. `next` receives the next
/// position.
fn look_up_batch(
    map: BorrowedFd<'_>,
    shape: RowShape,
    from: Option<&mut [u8]>,
    next: &mut [u8],
    keys: &mut [u8],
    values: &mut [u64],
) -> (usize, i32) {
    let mut count = (keys.len() / shape.key).min(values.len() / shape.values) as u32;
    // SAFETY: the buffers have room for `count` keys and values of the map's sizes; a place in a map takes at most a key, or 8
    // bytes. The kernel writes no more than `count` of each.
    let failed = unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_raw_fd(),
            from.map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr).cast::<c_void>(),
            next.as_mut_ptr().cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &mut count,
            std::ptr::null(),
        )
    };
    (count as usize, -failed)
}

/// BPF_MAP_LOOKUP_BATCH of a map. Parameters: position, next position, keys, values; result: number of rows and the
/// error.
type Lookup<'a> = dyn FnMut(Option<&mut [u8]>, &mut [u8], &mut [u8], &mut [u64]) -> (usize, i32) + 'a;

/// Reads a map in batches. An error with missing rows fails the whole reading, since sums without them would decrease.
fn batches(
    lookup: &mut Lookup<'_>,
    shape: RowShape,
    most: usize,
    row: &mut dyn FnMut(&[u8], &[u64]),
) -> std::io::Result<Batches> {
    // What the kernel goes on from: 4 bytes for a hash, a key for others.
    let mut at = vec![0_u8; shape.key.max(8)];
    let mut next = at.clone();
    let mut size = most.clamp(1, BATCH);
    let mut is_first = true;
    let (mut keys, mut values) = (vec![0_u8; size * shape.key], vec![0_u64; size * shape.values]);
    for _ in 0..2 * (most / size + 1) + 64 {
        let from = (!is_first).then_some(&mut at[..]);
        let (count, failed) = lookup(from, &mut next, &mut keys, &mut values);
        match failed {
            libc::ENOSPC if size < 16 * BATCH.max(most) => {
                // A hash gives the rows of one of its buckets at once or not at all.
                size *= 2;
                (keys, values) = (vec![0; size * shape.key], vec![0; size * shape.values]);
                continue;
            }
            0 | libc::ENOENT => {}
            libc::EINVAL | libc::EOPNOTSUPP | ENOTSUPP if is_first => return Ok(Batches::Unknown),
            failed => return Err(std::io::Error::from_raw_os_error(failed)),
        }
        let rows = keys.chunks_exact(shape.key).zip(values.chunks_exact(shape.values));
        rows.take(count).for_each(|(key, values)| row(key, values));
        if failed != 0 {
            return Ok(Batches::Read);
        }
        is_first = false;
        std::mem::swap(&mut at, &mut next);
    }
    Err(too_many())
}

/// Reads a map key by key. A row deleted meanwhile is left out. If the current key is deleted, the kernel starts from
/// the beginning.
fn walk(map: BorrowedFd<'_>, shape: RowShape, most: usize, row: &mut dyn FnMut(&[u8], &[u64])) -> std::io::Result<()> {
    let (mut key, mut next) = (vec![0_u8; shape.key], vec![0_u8; shape.key]);
    let mut values = vec![0_u64; shape.values];
    for step in 0..2 * most + 64 {
        let from = if step == 0 { std::ptr::null() } else { key.as_ptr().cast::<c_void>() };
        // SAFETY: both buffers are as long as a key of the map.
        let failed = unsafe { libbpf_sys::bpf_map_get_next_key(map.as_raw_fd(), from, next.as_mut_ptr().cast()) };
        match failed {
            0 => {}
            _ if failed == -libc::ENOENT => return Ok(()),
            _ => return Err(std::io::Error::from_raw_os_error(-failed)),
        }
        std::mem::swap(&mut key, &mut next);
        // SAFETY: the key is one of the map's, and there is room for a value of each possible CPU, or for one.
        let failed = unsafe {
            libbpf_sys::bpf_map_lookup_elem(map.as_raw_fd(), key.as_ptr().cast(), values.as_mut_ptr().cast())
        };
        if failed == 0 {
            row(&key, &values);
        }
    }
    Err(too_many())
}

fn attach(program: &ProgramMut<'_>, section: &str, cgroup: Option<&str>) -> Result<Link, Refusal> {
    match Special::of(section) {
        Some(Special::Xdp(interface)) => {
            let index = fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).ok();
            let index = index.filter(|_| !interface.contains('/')).and_then(|index| index.trim().parse().ok());
            let index = index.ok_or_else(|| Refusal::missing(format!("there is no interface {interface}")))?;
            listened(|| program.attach_xdp(index))
        }
        _ if section.starts_with("cgroup_skb/") => attach_to_cgroup(program, cgroup),
        _ => listened(|| program.attach()),
    }
}

fn attach_to_cgroup(program: &ProgramMut<'_>, cgroup: Option<&str>) -> Result<Link, Refusal> {
    let cgroup = cgroup.ok_or_else(|| {
        Refusal::missing(
            "no cgroup to attach it to: add a line `cgroup: /`, which is the root of cgroup v2, to the YAML file",
        )
    })?;
    let cgroups = Cgroups::of(Controller::Unified).map_err(|error| Refusal::missing(error.to_string()))?;
    let path = cgroups.mount().join(cgroup.trim_start_matches('/'));
    let directory = fs::File::open(&path).map_err(|error| Refusal::missing(format!("{}: {error}", path.display())))?;
    listened(|| program.attach_cgroup(directory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_that_libbpf_does_not_know_are_understood() {
        assert!(matches!(Special::of("xdp/lo"), Some(Special::Xdp("lo"))));
        assert!(Special::of("tp_btf/sched_switch").is_none() && Special::of("xdp").is_none());
    }

    #[test]
    fn the_program_that_failed_is_named_by_libbpf() {
        let said = "libbpf: prog 'first': BPF program load failed: Invalid argument\nlibbpf: prog 'first': -- BEGIN PROG LOAD LOG --\n\
                    R0 !read_ok\n-- END PROG LOAD LOG --\nlibbpf: prog 'first': failed to load: -22\n\
                    libbpf: failed to load object 'x'\n";
        assert_eq!(culprit(said).as_deref(), Some("first"));
        assert_eq!(verifiers(said), Some("R0 !read_ok\n"));
        assert_eq!(culprit("libbpf: map 'rows': failed to create: -7\n"), None);
    }

    #[test]
    fn a_map_that_cannot_be_read_to_its_end_is_an_error() {
        let shape = RowShape { key: 4, values: 1 };
        let read = |errors: &[i32]| {
            let (mut errors, mut rows) = (errors.iter(), 0);
            let read = batches(&mut |_, _, _, _| (1, *errors.next().unwrap_or(&0)), shape, 10, &mut |_, _| rows += 1);
            (read.map(|read| matches!(read, Batches::Read)).map_err(|error| error.to_string()), rows)
        };
        assert_eq!(read(&[0, libc::ENOENT]), (Ok(true), 2));
        assert_eq!(read(&[0, libc::ENOSPC, libc::ENOENT]), (Ok(true), 2), "with more room");
        assert_eq!(read(&[libc::EINVAL]), (Ok(false), 0), "a kernel without batches");
        for error in [libc::ENOMEM, libc::EINVAL] {
            assert!(read(&[0, error]).0.is_err());
        }
        assert_eq!(read(&[]).0.unwrap_err(), too_many().to_string());
    }

    #[test]
    fn what_is_no_object_is_refused_and_nothing_panics() {
        let object = crate::bpf::OBJECT.bytes;
        assert!(OpenPair::open("x", b"not an object".to_vec(), &PairOptions::default()).is_err());
        for end in [0, 1, 63, 64, 100, object.len() / 2, object.len() - 1] {
            drop(OpenPair::open("x", object[..end].to_vec(), &PairOptions::default()));
        }
    }
}
