//! 64-bit ELF files (elf(5)) of this machine's byte order: offsets of functions' code, and notes.
//!
//! Any user can make the agent read a file, so headers are trusted within bounds only: nothing larger than
//! [`Elf::TABLE`] is read, and a file that grows, shrinks or is malformed affects its own values at most. Hence files
//! are read with pread(2) and not mapped (reading a mapped file that was truncated kills the reader). There is no crate
//! for it: those that parse ELF take the file as one slice, or allocate as much as a header claims and keep it until
//! they are dropped.

use super::error::HostError;
use super::open_regular;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Location of a function's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// True if the code only selects an implementation, when the program is loaded (`STT_GNU_IFUNC`).
    pub is_ifunc: bool,
}

const HEADER: u64 = 64;
const SYMBOL: usize = 24;
const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;
const SHT_DYNSYM: u32 = 11;
const PT_LOAD: u32 = 1;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Instruction at call targets under Intel's CET: a no-op, which the kernel cannot emulate.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The source of a file's bytes.
trait Bytes {
    /// Returns `length` bytes from an offset; `None` beyond the end.
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>>;
}

impl Bytes for fs::File {
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        if offset.checked_add(length)? > self.metadata().ok()?.len() {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

impl Bytes for Vec<u8> {
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let offset = usize::try_from(offset).ok()?;
        self.get(offset..offset.checked_add(usize::try_from(length).ok()?)?).map(<[u8]>::to_vec)
    }
}

/// A file, of which only the needed parts are read.
pub struct Elf {
    bytes: Box<dyn Bytes>,
    header: Vec<u8>,
    segments: Vec<Segment>,
}

impl Elf {
    /// Largest section or table that is read, in bytes.
    const TABLE: u64 = 64 << 20;
    /// Largest symbol table, and largest table of its names, whose functions are kept, in bytes: 700,000 symbols.
    const CODE: u64 = 16 << 20;
    /// Largest sum of all notes, in bytes.
    const NOTES: u64 = 16 << 20;
    /// Highest number of entries in a table of headers.
    const SEGMENTS: usize = 256;
    const SECTIONS: usize = 4096;

    /// Opens a file and reads its header.
    pub fn read(path: &Path) -> Result<Elf, HostError> {
        Elf::of(open_regular(path).map_err(HostError::of(path))?, path)
    }

    pub(super) fn of(file: fs::File, path: &Path) -> Result<Elf, HostError> {
        Elf::new(Box::new(file)).ok_or_else(|| HostError::NotElf(path.into()))
    }

    /// Reads the header of a file in memory.
    pub(super) fn in_memory(bytes: Vec<u8>) -> Option<Elf> {
        Elf::new(Box::new(bytes))
    }

    fn new(bytes: Box<dyn Bytes>) -> Option<Elf> {
        let order = if cfg!(target_endian = "little") { 1 } else { 2 };
        let header = bytes.at(0, HEADER)?;
        let good = header.starts_with(b"\x7fELF") && header[4] == 2 && header[5] == order;
        let mut elf = good.then_some(Elf { bytes, header, segments: Vec::new() })?;
        elf.segments = elf.table(32, 54, 56, Elf::SEGMENTS).iter().filter_map(|header| Segment::of(header)).collect();
        Some(elf)
    }

    fn bytes(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        (length <= Elf::TABLE).then(|| self.bytes.at(offset, length))?
    }

    /// True if the Go compiler made the file.
    pub fn is_go(&self) -> bool {
        [b".gopclntab", b".go.buildinfo" as &[u8]].iter().any(|name| self.address(name).is_some())
    }

    /// Returns the code of a function, at the offset where a probe costs least. A name may include its version
    /// (`memcpy@GLIBC_2.14`), as in symbol tables; without one the first with this name is taken.
    pub fn function(&self, name: &str) -> Option<Code> {
        let (name, version) = name.split_once('@').map_or((name, None), |(name, version)| (name, Some(version)));
        let mut found = None;
        for (table, strings) in self.symbol_tables(Elf::TABLE, |ty| matches!(ty, SHT_SYMTAB | SHT_DYNSYM)) {
            for symbol in table.chunks_exact(SYMBOL) {
                let kind = symbol[4] & 15;
                let address = u64_at(symbol, 8)?;
                if !matches!(kind, STT_FUNC | STT_GNU_IFUNC) || address == 0 {
                    continue;
                }
                let Some(full) = string(&strings, u32_at(symbol, 0)? as usize) else { continue };
                let (base, its) = split_version(full);
                if base != name.as_bytes() {
                    continue;
                }
                let exact = version.is_none() || its.is_some_and(|its| Some(its) == version.map(str::as_bytes));
                if exact || found.is_none() {
                    found = Some((address, kind));
                }
                if exact {
                    return self.code(address, kind);
                }
            }
        }
        found.and_then(|(address, kind)| self.code(address, kind))
    }

    fn code(&self, address: u64, kind: u8) -> Option<Code> {
        let mut offset = self.offset(address)?;
        if cfg!(target_arch = "x86_64") && self.bytes(offset, ENDBR64.len() as u64)? == ENDBR64 {
            offset += ENDBR64.len() as u64;
        }
        Some(Code { offset, is_ifunc: kind == STT_GNU_IFUNC })
    }

    /// Returns the file offset of the byte that is loaded to an address.
    pub(super) fn offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| segment.offset(address))
    }

    /// Returns the file's functions for lookup by address; those for the linker (`.dynsym`) only if there are no
    /// others.
    pub(super) fn code_symbols(&self) -> CodeSymbols {
        let of = |wanted| {
            let (table, strings) = self.symbol_tables(Elf::CODE, move |ty| ty == wanted).next()?;
            let mut functions: Vec<CodeSymbol> = table.chunks_exact(SYMBOL).filter_map(CodeSymbol::of).collect();
            // One without a size reaches to the next; the linker's table has gaps too wide for that.
            functions.retain(|function| wanted == SHT_SYMTAB || function.size > 0);
            functions.sort_by_key(|function| function.start);
            functions.dedup_by(|other, first| {
                let is_alias = other.start == first.start;
                first.size = if is_alias { first.size.max(other.size) } else { first.size };
                is_alias
            });
            functions.shrink_to_fit();
            let segments = self.segments.clone();
            Some(CodeSymbols { functions, strings, segments }).filter(|found| !found.functions.is_empty())
        };
        of(SHT_SYMTAB).or_else(|| of(SHT_DYNSYM)).unwrap_or_default()
    }

    /// Iterates over the symbol tables of these types, each with its strings, neither larger than `most` bytes; two at most, since linkers write one of
    /// each type.
    fn symbol_tables(&self, most: u64, of: impl Fn(u32) -> bool) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let sections = self.sections();
        let places: Vec<usize> = (0..sections.len()).filter(|&at| of(sections[at].ty)).take(2).collect();
        places.into_iter().filter_map(move |at| {
            let (table, strings) = (&sections[at], sections.get(sections[at].link)?);
            let fits = table.size.max(strings.size) <= most;
            fits.then(|| Some((self.content(table)?, self.content(strings)?)))?
        })
    }

    /// Returns the entries of a table of headers. The parameters are offsets in the file's header of the table's
    /// offset, entry size and number of entries.
    fn table(&self, offset: usize, size: usize, count: usize, most: usize) -> Vec<Vec<u8>> {
        let (size, count) = (u16_at(&self.header, size), u16_at(&self.header, count).min(most));
        let bytes = u64_at(&self.header, offset).and_then(|offset| self.bytes(offset, (size * count) as u64));
        bytes.unwrap_or_default().chunks_exact(size.max(1)).map(<[u8]>::to_vec).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let section = |header: Vec<u8>| Section {
            name: u32_at(&header, 0).unwrap_or(0) as usize,
            ty: u32_at(&header, 4).unwrap_or(0),
            address: u64_at(&header, 16).unwrap_or(0),
            offset: u64_at(&header, 24).unwrap_or(0),
            size: u64_at(&header, 32).unwrap_or(0),
            link: u32_at(&header, 40).unwrap_or(0) as usize,
        };
        self.table(40, 58, 60, Elf::SECTIONS).into_iter().map(section).collect()
    }

    fn content(&self, section: &Section) -> Option<Vec<u8>> {
        self.bytes(section.offset, section.size)
    }

    /// Iterates over the contents of note sections; sections beyond [`Elf::NOTES`] are skipped.
    pub(super) fn notes(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let mut room = Elf::NOTES;
        let notes = self.sections().into_iter().filter(|section| section.ty == SHT_NOTE);
        notes.filter_map(move |notes| {
            room = room.checked_sub(notes.size)?;
            self.content(&notes)
        })
    }

    /// Returns the address of the section with this name.
    pub(super) fn address(&self, name: &[u8]) -> Option<u64> {
        let sections = self.sections();
        let names = self.content(sections.get(u16_at(&self.header, 62))?)?;
        let is = |section: &&Section| {
            let rest = names.get(section.name..).and_then(|rest| rest.strip_prefix(name));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        };
        sections.iter().find(is).map(|section| section.address)
    }
}

/// A part of a file that is loaded into memory.
#[derive(Clone, Debug)]
struct Segment {
    offset: u64,
    address: u64,
    /// Size in the file, in bytes.
    size: u64,
}

impl Segment {
    /// Reads a program header; `None` if its part is not loaded.
    fn of(header: &[u8]) -> Option<Segment> {
        let [offset, address, size] = [8, 16, 32].map(|at| u64_at(header, at));
        let segment = Segment { offset: offset?, address: address?, size: size? };
        (u32_at(header, 0)? == PT_LOAD).then_some(segment)
    }

    fn offset(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address).filter(|within| *within < self.size)?;
        self.offset.checked_add(within)
    }

    fn address(&self, offset: u64) -> Option<u64> {
        let within = offset.checked_sub(self.offset).filter(|within| *within < self.size)?;
        self.address.checked_add(within)
    }
}

/// Functions of a file by address.
#[derive(Default)]
pub(super) struct CodeSymbols {
    /// Functions ordered by `start`, without duplicates.
    functions: Vec<CodeSymbol>,
    strings: Vec<u8>,
    segments: Vec<Segment>,
}

struct CodeSymbol {
    start: u64,
    /// Size in bytes; 0 if unknown.
    size: u32,
    /// Offset of the name in the strings.
    name: u32,
}

impl CodeSymbol {
    fn of(symbol: &[u8]) -> Option<CodeSymbol> {
        let (start, size) = (u64_at(symbol, 8)?, u64_at(symbol, 16)?);
        let is_code = matches!(symbol[4] & 15, STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE) && u16_at(symbol, 6) != 0;
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        (is_code && start != 0).then_some(CodeSymbol { start, size, name: u32_at(symbol, 0)? })
    }
}

impl CodeSymbols {
    /// Returns the memory in use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.functions.len() * size_of::<CodeSymbol>() + self.strings.len() + size_of::<CodeSymbols>()
    }

    /// Returns the name of the function that contains an offset of the file, at most `most` bytes, and the distance
    /// from its start.
    pub(super) fn at(&self, offset: u64, most: usize) -> Option<(&[u8], u64)> {
        let address = self.segments.iter().find_map(|segment| segment.address(offset))?;
        let beyond = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(beyond.checked_sub(1)?)?;
        let within = address - function.start;
        if function.size != 0 && within >= function.size.into() {
            return None;
        }
        let rest = self.strings.get(function.name as usize..)?;
        let name = super::until_nul(&rest[..rest.len().min(most)]);
        (!name.is_empty()).then_some((name, within))
    }
}

/// Returns the NUL-terminated string at an offset of a string table.
pub(super) fn string(table: &[u8], at: usize) -> Option<&[u8]> {
    let rest = table.get(at..)?;
    Some(&rest[..rest.iter().position(|&byte| byte == 0)?])
}

struct Section {
    name: usize,
    ty: u32,
    address: u64,
    offset: u64,
    size: u64,
    link: usize,
}

/// Splits `name@VERSION` or `name@@VERSION`.
fn split_version(symbol: &[u8]) -> (&[u8], Option<&[u8]>) {
    match symbol.iter().position(|&byte| byte == b'@') {
        Some(at) => {
            let version = &symbol[at + 1..];
            (&symbol[..at], Some(version.strip_prefix(b"@").unwrap_or(version)))
        }
        None => (symbol, None),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 2).map_or(0, |bytes| usize::from(u16::from_ne_bytes([bytes[0], bytes[1]])))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Parses a file of these bytes.
    pub fn elf(bytes: &[u8]) -> Option<Elf> {
        Elf::in_memory(bytes.to_vec())
    }

    /// Returns this program. With optimization the linker keeps only those functions that something points to.
    fn own() -> Vec<u8> {
        std::hint::black_box(corebcc_elf_test_function as *const ());
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[no_mangle]
    extern "C" fn corebcc_elf_test_function() -> u64 {
        0x1122_3344_5566_7788
    }

    #[test]
    fn the_code_of_an_own_function_is_found_behind_its_landing_pad() {
        let bytes = own();
        let code = elf(&bytes).unwrap().function("corebcc_elf_test_function").unwrap();
        assert!(!code.is_ifunc);
        let at = code.offset as usize;
        let constant = 0x1122_3344_5566_7788u64.to_le_bytes();
        if cfg!(target_arch = "x86_64") {
            assert!(bytes[at..at + 64].windows(8).any(|part| part == constant), "{:x?}", &bytes[at..at + 64]);
        }
        assert_eq!(elf(&bytes).unwrap().function("no_such_function"), None);
    }

    #[test]
    fn a_file_with_gos_table_of_functions_is_gos() {
        let mut bytes = own();
        assert!(!elf(&bytes).unwrap().is_go());
        let [name, of_go] = [b".fini_array\0", b".gopclntab\0\0"];
        let at = bytes.windows(name.len()).rposition(|part| part == name).unwrap();
        bytes[at..at + of_go.len()].copy_from_slice(of_go);
        assert!(elf(&bytes).unwrap().is_go());
    }

    #[test]
    fn a_file_cut_anywhere_is_no_panic() {
        const NAME: &str = "corebcc_elf_test_function";
        let bytes = own();
        let whole = elf(&bytes).unwrap().function(NAME).unwrap();
        for length in (0..2048).chain([bytes.len() / 3, bytes.len() / 2, bytes.len() - 1]) {
            let found = elf(&bytes[..length]).and_then(|elf| elf.function(NAME));
            assert!(found.is_none_or(|code| code == whole && length > code.offset as usize), "{length}");
        }
    }

    #[test]
    fn an_own_function_is_found_by_a_place_in_its_code() {
        let code = elf(&own()).unwrap().function("corebcc_elf_test_function").unwrap();
        let symbols = elf(&own()).unwrap().code_symbols();
        let (name, within) = symbols.at(code.offset + 2, 256).unwrap();
        assert_eq!(name, b"corebcc_elf_test_function");
        assert!((2..=6).contains(&within), "behind a landing pad or not: {within}");
        assert_eq!(symbols.at(code.offset, 7).unwrap().0, b"corebcc", "cut");
        assert!(symbols.at(u64::MAX, 256).is_none() && symbols.bytes() > 1 << 16);
    }

    /// Makes a header with `count` sections of one type that all have the same contents.
    fn with_sections(count: u16, ty: u32, size: u64) -> Vec<u8> {
        let mut bytes = own()[..HEADER as usize].to_vec();
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(32, &[0; 16]);
        put(40, &HEADER.to_ne_bytes());
        put(54, &[0; 10]);
        put(58, &64u16.to_ne_bytes());
        put(60, &count.to_ne_bytes());
        for _ in 0..count {
            let mut section = [0; 64];
            section[4..8].copy_from_slice(&ty.to_ne_bytes());
            section[32..40].copy_from_slice(&size.to_ne_bytes());
            bytes.extend(section);
        }
        bytes
    }

    /// Makes a sparse file with an apparent size of a terabyte.
    fn sparse(bytes: &[u8]) -> (tempfile::TempDir, Elf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        fs::write(&path, bytes).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let elf = Elf::read(&path).unwrap();
        (dir, elf)
    }

    #[test]
    fn a_section_of_a_terabyte_is_not_read() {
        for ty in [SHT_NOTE, SHT_SYMTAB, SHT_DYNSYM] {
            let (_dir, elf) = sparse(&with_sections(3, ty, 1 << 40));
            assert_eq!((elf.notes().count(), elf.symbol_tables(Elf::TABLE, |_| true).count()), (0, 0));
            assert!(
                elf.address(b"x").is_none() && elf.function("x").is_none() && elf.code_symbols().at(0, 9).is_none()
            );
        }
    }

    #[test]
    fn notes_are_read_up_to_a_bound_in_all() {
        let (_dir, elf) = sparse(&with_sections(u16::MAX, SHT_NOTE, 1 << 20));
        assert_eq!(elf.sections().len(), Elf::SECTIONS);
        assert_eq!(elf.notes().count() as u64, Elf::NOTES >> 20);
    }

    #[test]
    fn the_headers_of_programs_are_read_once_and_up_to_a_bound() {
        let mut bytes = own()[..HEADER as usize].to_vec();
        bytes[32..40].copy_from_slice(&HEADER.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&u16::MAX.to_ne_bytes());
        for place in 0..u64::from(u16::MAX) {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&PT_LOAD.to_ne_bytes());
            header[16..24].copy_from_slice(&place.to_ne_bytes());
            header[32..40].copy_from_slice(&1u64.to_ne_bytes());
            bytes.extend(header);
        }
        let elf = elf(&bytes).unwrap();
        let last = Elf::SEGMENTS as u64 - 1;
        assert_eq!((elf.offset(last), elf.offset(last + 1)), (Some(0), None));
    }

    #[test]
    fn versions_are_told_from_names() {
        assert_eq!(split_version(b"memcpy@@GLIBC_2.14"), (&b"memcpy"[..], Some(&b"GLIBC_2.14"[..])));
        assert_eq!(split_version(b"memcpy@GLIBC_2.2.5"), (&b"memcpy"[..], Some(&b"GLIBC_2.2.5"[..])));
        assert_eq!(split_version(b"f"), (&b"f"[..], None));
    }
}
