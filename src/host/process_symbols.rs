//! The names of code in processes: of what they execute from files, of the kernel's part in them (the vDSO), and of code they made
//! themselves and named in a perf map (`/tmp/perf-PID.map`).
//!
//! A process decides where its mappings are, what its files and its perf map say and what its stacks look like. So its files
//! are read, not mapped, within the bounds of [`Elf`]; no file stays open; what is kept has a bound ([`ProcessSymbols::ROOM`]); and
//! so has the time that reading takes ([`Allowance`]): beyond it, frames have no names.

use super::demangle::{demangled, MANGLED};
use super::executables::{each_line, Mapped, Mapping};
use super::identity::ProcessIdentity;
use super::{elf::CodeSymbols, open_regular_of, Elf};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The function that an address is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name, of which there are at most [`Symbol::NAME`] bytes.
    pub name: String,
    /// Bytes from its beginning to the address.
    pub offset: u64,
}

impl Symbol {
    /// Bytes of a name: they may be many, and they are others' to choose.
    pub const NAME: usize = 256;
}

/// What is known of processes and their files.
#[derive(Default)]
pub(super) struct ProcessSymbols {
    spaces: HashMap<u32, Space>,
    files: HashMap<(u64, u64, u64, i64, i64), Rc<CodeSymbols>>,
    vdso: Option<Rc<CodeSymbols>>,
    /// Bytes of all of them.
    bytes: usize,
    allowance: Allowance,
    /// Addresses that have no name since the time was up.
    unnamed: u64,
}

/// Memory that looks like a file: shared memory, and where .NET puts what it compiles.
const OWN: [&str; 2] = ["/dev/zero", "/memfd:doublemapper"];

/// The code of a process.
struct Space {
    life: ProcessIdentity,
    read: Instant,
    /// In the order of their addresses.
    parts: Vec<Part>,
    perf_map: Option<PerfMap>,
    /// When the perf map was looked at.
    looked: Option<Instant>,
}

/// A mapping that is executed.
struct Part {
    start: u64,
    end: u64,
    offset: u64,
    kind: Kind,
}

enum Kind {
    File(Mapped),
    /// A file whose functions were looked for.
    Known(Option<Rc<CodeSymbols>>),
    Vdso,
    /// Memory without a file.
    Own,
}

impl Space {
    fn part(&self, address: u64) -> Option<usize> {
        let at = self.parts.partition_point(|part| part.start <= address).checked_sub(1)?;
        (address < self.parts[at].end).then_some(at)
    }
}

impl ProcessSymbols {
    /// Bytes that are kept, beyond which all is forgotten; what is read next comes on top, less than twice as much.
    const ROOM: usize = 16 << 20;
    /// Files, and processes, that are kept.
    const MOST: usize = 512;
    /// Mappings of a process.
    const PARTS: usize = 16384;
    /// A process's mappings are read again after so long, or after the shorter time if an address is in none of them.
    const FRESH: Duration = Duration::from_secs(1);
    const FRESH_ENOUGH: Duration = Duration::from_millis(100);

    /// Addresses that have no name since looking for it would have taken too long.
    pub(super) fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Forgets what it knows.
    pub(super) fn forget(&mut self) {
        *self = ProcessSymbols { unnamed: self.unnamed, ..ProcessSymbols::default() };
    }

    /// The functions of addresses, in order.
    pub(super) fn symbols(&mut self, pid: u32, addresses: &[u64]) -> Vec<Option<Symbol>> {
        if self.bytes > Self::ROOM || self.files.len() >= Self::MOST || self.spaces.len() >= Self::MOST {
            (self.spaces, self.files, self.bytes) = Default::default();
        }
        let life = ProcessIdentity::of(pid);
        let is_fresh = |space: &Space| {
            let all = addresses.iter().all(|&address| space.part(address).is_some());
            let most = if all { Self::FRESH } else { Self::FRESH_ENOUGH };
            // One that has ended was as it was.
            life.is_none_or(|life| life == space.life && space.read.elapsed() < most)
        };
        if !self.spaces.get(&pid).is_some_and(is_fresh) {
            self.spaces.remove(&pid);
            let Some(space) = life.and_then(|life| self.within_time(|| Some(Space::read(pid, life)))) else {
                return vec![None; addresses.len()];
            };
            self.bytes += space.bytes();
            self.spaces.insert(pid, space);
        }
        addresses.iter().map(|&address| self.symbol(pid, address)).collect()
    }

    fn symbol(&mut self, pid: u32, address: u64) -> Option<Symbol> {
        let space = self.spaces.get(&pid)?;
        let at = space.part(address)?;
        let Part { start, offset, kind, .. } = &space.parts[at];
        let in_file = (address - start).wrapping_add(*offset);
        let known = match kind {
            Kind::Known(known) => known.clone(),
            Kind::Vdso => self.vdso(),
            Kind::Own => return self.own_symbol(pid, address),
            Kind::File(file) => {
                let file = file.clone();
                let known = self.file(&file);
                if let Some(part) = self.spaces.get_mut(&pid).and_then(|space| space.parts.get_mut(at)) {
                    part.kind = Kind::Known(known.clone());
                }
                known
            }
        };
        let known = known?;
        let (name, offset) = known.at(in_file, MANGLED)?;
        Some(Symbol { name: demangled(&String::from_utf8_lossy(name), Symbol::NAME), offset })
    }

    /// The functions of a file.
    fn file(&mut self, file: &Mapped) -> Option<Rc<CodeSymbols>> {
        let opened = file.open().ok()?;
        let about = opened.metadata().ok()?;
        let identity = (about.dev(), about.ino(), about.size(), about.ctime(), about.ctime_nsec());
        if let Some(known) = self.files.get(&identity) {
            return Some(Rc::clone(known));
        }
        let symbols = self.within_time(|| Some(Rc::new(Elf::of(opened, &file.path).ok()?.code_symbols())))?;
        self.bytes += symbols.bytes();
        self.files.insert(identity, Rc::clone(&symbols));
        Some(symbols)
    }

    /// The kernel's code in every process, which is the same as in this one. What other processes have there they can have changed.
    fn vdso(&mut self) -> Option<Rc<CodeSymbols>> {
        if self.vdso.is_none() {
            let mut range = None;
            each_line(std::process::id(), |line| {
                range =
                    Mapping::of(line).filter(|mapping| mapping.path == "[vdso]").and_then(|mapping| mapping.range());
                range.is_none()
            });
            let range = range?;
            let mut image = vec![0; (range.end - range.start).min(1 << 20) as usize];
            File::open("/proc/self/mem").ok()?.read_exact_at(&mut image, range.start).ok()?;
            self.vdso = Some(Rc::new(Elf::in_memory(image)?.code_symbols()));
        }
        self.vdso.clone()
    }

    /// The function that a process has in memory of its own, by its perf map.
    fn own_symbol(&mut self, pid: u32, address: u64) -> Option<Symbol> {
        let space = self.spaces.get(&pid)?;
        if space.looked.is_none_or(|looked| looked.elapsed() >= Self::FRESH) {
            let known = space.perf_map.as_ref().map(|map| map.stamp);
            let read = self.within_time(|| Some(PerfMap::read(pid, known)));
            let space = self.spaces.get_mut(&pid)?;
            space.looked = Some(Instant::now());
            if let Some(Some(map)) = read {
                self.bytes += map.bytes();
                space.perf_map = Some(map);
            }
        }
        self.spaces.get(&pid)?.perf_map.as_ref()?.at(address)
    }

    /// Reads something if there is time left.
    fn within_time<T>(&mut self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        let began = Instant::now();
        if !self.allowance.is_left(began) {
            self.unnamed += 1;
            return None;
        }
        let read = read();
        self.allowance.spend(began.elapsed());
        read
    }
}

impl Space {
    fn read(pid: u32, life: ProcessIdentity) -> Space {
        let mut parts = Vec::new();
        each_line(pid, |line| {
            let part = |mapping: Mapping<'_>| {
                let range = mapping.range()?;
                let kind = match mapping.path {
                    "[vdso]" => Kind::Vdso,
                    path if !path.starts_with('/') || OWN.iter().any(|own| path.starts_with(own)) => Kind::Own,
                    _ => Kind::File(mapping.file(pid)?),
                };
                Some(Part { start: range.start, end: range.end, offset: mapping.offset()?, kind })
            };
            parts.extend(Mapping::of(line).filter(Mapping::is_executed).and_then(part));
            parts.len() < ProcessSymbols::PARTS
        });
        Space { life, read: Instant::now(), parts, perf_map: None, looked: None }
    }

    fn bytes(&self) -> usize {
        let path = |part: &Part| match &part.kind {
            Kind::File(file) => 2 * file.path.as_os_str().len() + 64,
            _ => 0,
        };
        self.parts.iter().map(|part| size_of::<Part>() + path(part)).sum::<usize>() + size_of::<Space>()
    }
}

/// The time that reading may take: a fifth of all time, and two seconds more at first.
#[derive(Default)]
struct Allowance {
    spent: Duration,
    since: Option<Instant>,
}

impl Allowance {
    const AT_FIRST: Duration = Duration::from_secs(2);
    const SHARE: u32 = 5;

    fn is_left(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(*self.since.get_or_insert(now));
        self.spent = self.spent.saturating_sub(passed / Self::SHARE);
        self.since = Some(now);
        self.spent < Self::AT_FIRST
    }

    fn spend(&mut self, time: Duration) {
        self.spent += time;
    }
}

/// The functions that a process (a virtual machine that compiles while it runs) says it has: lines `START SIZE NAME`, numbers in hex.
struct PerfMap {
    /// What tells the file from others and from what it was before.
    stamp: Stamp,
    /// Start, size and where in `names` the name begins; ordered by start, the last written of one start last.
    functions: Vec<(u64, u32, u32)>,
    /// Each with a newline behind it.
    names: Vec<u8>,
}

type Stamp = (u64, u64, i64, i64);

impl PerfMap {
    /// Bytes that are read, and functions that are kept.
    const MOST: u64 = 16 << 20;
    const FUNCTIONS: usize = 1 << 18;
    /// Bytes of a line that are looked at.
    const LINE: u64 = 1024;

    /// That of a process, unless it is the one that is known already.
    fn read(pid: u32, known: Option<Stamp>) -> Option<PerfMap> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let words = |key: &str| Some(status.lines().find_map(|line| line.strip_prefix(key))?.split_ascii_whitespace());
        // Its id as it knows it itself, which is the innermost.
        let own = words("NStgid:").and_then(Iterator::last).map_or(pid.to_string(), str::to_owned);
        let file = open_regular_of(pid, Path::new(&format!("/tmp/perf-{own}.map"))).ok()?;
        let about = file.metadata().ok()?;
        let owner: u32 = words("Uid:")?.nth(1)?.parse().ok()?;
        let stamp = (about.ino(), about.size(), about.mtime(), about.mtime_nsec());
        // Everybody may write to /tmp.
        let is_its = about.uid() == owner || about.uid() == 0;
        (is_its && known != Some(stamp)).then(|| PerfMap::of(file, stamp))
    }

    fn of(file: impl Read, stamp: Stamp) -> PerfMap {
        let mut map = PerfMap { stamp, functions: Vec::new(), names: Vec::new() };
        let mut file = BufReader::with_capacity(1 << 16, file.take(Self::MOST));
        let (mut line, mut begins) = (Vec::new(), true);
        while map.functions.len() < Self::FUNCTIONS {
            line.clear();
            if !file.by_ref().take(Self::LINE).read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                break;
            }
            if begins {
                map.add(&line);
            }
            begins = line.ends_with(b"\n");
        }
        map.functions.sort_by_key(|&(start, ..)| start);
        map.functions.shrink_to_fit();
        map
    }

    fn add(&mut self, line: &[u8]) -> Option<()> {
        let mut words = line.trim_ascii_end().splitn(3, |byte| *byte == b' ');
        let mut number = || u64::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 16).ok();
        let (start, size) = (number()?, u32::try_from(number()?).unwrap_or(u32::MAX));
        let name = words.next()?;
        self.functions.push((start, size, u32::try_from(self.names.len()).ok()?));
        self.names.extend(&name[..name.len().min(Symbol::NAME)]);
        self.names.push(b'\n');
        Some(())
    }

    fn at(&self, address: u64) -> Option<Symbol> {
        let at = self.functions.partition_point(|&(start, ..)| start <= address).checked_sub(1)?;
        let (start, size, name) = self.functions[at];
        let offset = address - start;
        let name = self.names[name as usize..].split(|byte| *byte == b'\n').next()?;
        (offset < size.into()).then(|| Symbol { name: String::from_utf8_lossy(name).into_owned(), offset })
    }

    fn bytes(&self) -> usize {
        self.functions.len() * size_of::<(u64, u32, u32)>() + self.names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> PerfMap {
        PerfMap::of(text.as_bytes(), (0, 0, 0, 0))
    }

    fn name(map: &PerfMap, address: u64) -> Option<(String, u64)> {
        map.at(address).map(|symbol| (symbol.name, symbol.offset))
    }

    #[test]
    fn a_perf_map_names_functions_the_last_written_of_a_place() {
        let map = map("7f00 10 first\n7f20 8 LMain;.run(int, char)\nnonsense\n7f00 20 second\n\n7f40 zz x\n7f50 4\n");
        assert_eq!(name(&map, 0x7f01), Some(("second".into(), 1)));
        assert_eq!(name(&map, 0x7f27), Some(("LMain;.run(int, char)".into(), 7)));
        assert_eq!([0x7eff, 0x7f28, 0x7f41, 0x7f50].map(|address| name(&map, address)), [const { None }; 4]);
    }

    #[test]
    fn names_of_a_perf_map_are_cut_and_endless_lines_are_no_wait() {
        let long = map(&format!("1 1 {}\n2 1 next\n", "x".repeat(1 << 20)));
        assert_eq!(name(&long, 1).map(|(name, _)| name.len()), Some(Symbol::NAME));
        assert_eq!(name(&long, 2), Some(("next".into(), 0)));
        let zeros = PerfMap::of(std::io::repeat(0), (0, 0, 0, 0));
        assert_eq!((zeros.functions.len(), zeros.names.len()), (0, 0));
        let most = PerfMap::of(std::io::repeat(b'\n'), (0, 0, 0, 0));
        assert_eq!(most.functions.len(), 0);
    }

    #[test]
    fn a_perf_map_has_so_many_functions_at_most() {
        let text = "1 1 f\n".repeat(PerfMap::FUNCTIONS + 5);
        assert_eq!(map(&text).functions.len(), PerfMap::FUNCTIONS);
    }

    #[test]
    fn reading_takes_a_share_of_the_time_and_some_at_first() {
        let (start, mut allowance) = (Instant::now(), Allowance::default());
        assert!(allowance.is_left(start));
        allowance.spend(Allowance::AT_FIRST);
        assert!(!allowance.is_left(start));
        assert!(!allowance.is_left(start - Duration::from_secs(1)), "no time is less than none");
        assert!(allowance.is_left(start + Duration::from_secs(1)));
        allowance.spend(Duration::from_secs(1));
        assert!(!allowance.is_left(start + Duration::from_secs(2)));
        assert!(allowance.is_left(start + Duration::from_secs(60)));
    }

    #[test]
    fn the_vdso_has_names() {
        let mut symbols = ProcessSymbols::default();
        let Some(vdso) = symbols.vdso() else { return println!("skipped: the_vdso_has_names: a vDSO") };
        assert!((0..1 << 14).any(|offset| vdso.at(offset, 99).is_some_and(|(name, _)| name.starts_with(b"__"))));
    }

    #[test]
    fn what_is_known_of_processes_and_files_has_a_bound() {
        if super::super::in_namespace() {
            return println!("skipped: what_is_known_of_processes_and_files_has_a_bound: the first PID namespace");
        }
        let mut symbols = ProcessSymbols::default();
        let here = [what_is_known_of_processes_and_files_has_a_bound as fn() as usize as u64];
        let mut name = || {
            let named = symbols.symbols(std::process::id(), &here);
            assert!(named[0].as_ref().is_some_and(|symbol| symbol.name.contains("has_a_bound")), "{named:?}");
            let counts = (symbols.spaces.len(), symbols.files.len());
            let file = symbols.files.values().next().map(Rc::clone).unwrap();
            for i in 0..ProcessSymbols::MOST as u64 {
                symbols.files.insert((i, 0, 0, 0, 0), Rc::clone(&file));
            }
            counts
        };
        assert_eq!([name(), name()], [(1, 1); 2]);
        symbols.bytes = ProcessSymbols::ROOM + 1;
        symbols.symbols(std::process::id(), &[]);
        assert!(symbols.bytes < ProcessSymbols::ROOM);
        symbols.forget();
        assert!(symbols.spaces.is_empty() && symbols.files.is_empty());
    }
}
