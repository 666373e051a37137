//! The part of a BPF object that some of its programs need. libbpf keeps the whole object in memory as long as it is
//! open: the code of every program, loaded or not, and all of `.BTF.ext`, mostly line numbers. build.rs uses this file,
//! too.

use std::ops::Range;

/// Sizes in bytes of the ELF header, of a section's header, and of a symbol (`elf.h`, 64 bits).
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;

/// Types of sections (`SHT_*`), and the flag of executable sections.
const PROGBITS: u64 = 1;
const SYMTAB: u64 = 2;
const NOBITS: u64 = 8;
/// Type of sections with relocations (`SHT_REL`).
pub const REL: u64 = 9;
const LLVM_ADDRSIG: u64 = 0x6fff_4c03;
const EXECINSTR: u64 = 4;
/// Type of symbols that are functions (`STT_FUNC`).
const FUNC: u8 = 2;

/// Copies an object without line numbers and without sections of code that contain no wanted program. Sections keep
/// their numbers: those left out are empty. `None` if it is not a 64-bit ELF file in this machine's byte order.
pub fn excerpt(object: &[u8], wanted: impl Fn(&str) -> bool) -> Option<Vec<u8>> {
    let sections = Sections::read(object)?;
    let mut needed = vec![false; sections.headers.len()];
    let symbols = sections.all().find(|section| section.kind == SYMTAB)?;
    let names = sections.at(symbols.link)?.bytes;
    for symbol in symbols.bytes.chunks_exact(SYMBOL) {
        let section = number(symbol, 6..8)?;
        if symbol[4] & 15 == FUNC && wanted(text(names, number(symbol, 0..4)?)?) {
            *needed.get_mut(section)? = true;
        }
    }
    let is_kept = |place: usize, section: &Section<'_>| match section.kind {
        LLVM_ADDRSIG => false,
        PROGBITS if section.is_code() => needed[place] || section.name == ".text",
        // Types have relocations that libbpf does not look at.
        REL => match sections.at(section.info) {
            Some(of) if of.is_code() => needed[section.info] || of.name == ".text",
            Some(of) => !of.name.starts_with(".BTF"),
            None => false,
        },
        _ => true,
    };
    let mut excerpt = object.get(..HEADER)?.to_vec();
    let mut headers = Vec::with_capacity(sections.headers.len() * SECTION);
    for (place, section) in sections.all().enumerate() {
        if !is_kept(place, &section) {
            headers.extend([0; SECTION]);
            continue;
        }
        let shorter = (section.name == ".BTF.ext").then(|| without_lines(section.bytes)).flatten();
        let bytes = shorter.as_deref().unwrap_or(section.bytes);
        excerpt.resize(excerpt.len().next_multiple_of(8), 0);
        let start = headers.len();
        headers.extend(section.header);
        headers[start + 24..start + 32].copy_from_slice(&(excerpt.len() as u64).to_ne_bytes());
        if section.kind != NOBITS {
            headers[start + 32..start + 40].copy_from_slice(&(bytes.len() as u64).to_ne_bytes());
            excerpt.extend(bytes);
        }
    }
    excerpt.resize(excerpt.len().next_multiple_of(8), 0);
    let start = excerpt.len() as u64;
    excerpt[40..48].copy_from_slice(&start.to_ne_bytes());
    excerpt.extend(headers);
    Some(excerpt)
}

/// Returns the contents of a section.
#[allow(dead_code)] // in build.rs
pub fn section<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    Sections::read(object)?.all().find(|section| section.name == name).map(|section| section.bytes)
}

/// Removes line numbers from `.BTF.ext`: the kernel gets none, since programs are loaded without
/// (Documentation/bpf/btf.rst).
fn without_lines(types: &[u8]) -> Option<Vec<u8>> {
    let length = number(types, 4..8)?;
    let part = |at: usize| -> Option<&[u8]> {
        let start = length.checked_add(number(types, at..at + 4)?)?;
        types.get(start..start.checked_add(number(types, at + 4..at + 8)?)?)
    };
    let (functions, relocations) = (part(8)?, part(24)?);
    let mut shorter = types.get(..length).filter(|header| header.len() >= 32)?.to_vec();
    let words = [0, functions.len(), functions.len(), 0, functions.len(), relocations.len()];
    for (i, word) in words.into_iter().enumerate() {
        shorter[8 + 4 * i..12 + 4 * i].copy_from_slice(&(word as u32).to_ne_bytes());
    }
    Some([&shorter, functions, relocations].concat())
}

/// A section of an object.
pub struct Section<'a> {
    header: &'a [u8],
    /// Name.
    pub name: &'a str,
    /// Type (`SHT_*`).
    pub kind: u64,
    flags: u64,
    /// Contents; empty if it has none in the file.
    pub bytes: &'a [u8],
    /// Number of an associated section (`sh_link`).
    link: usize,
    /// Number of the section it applies to (`sh_info`).
    pub info: usize,
}

impl Section<'_> {
    /// True if it contains programs.
    pub fn is_code(&self) -> bool {
        self.flags & EXECINSTR != 0
    }
}

/// A symbol of an object.
#[allow(dead_code)] // in build.rs
pub struct Symbol<'a> {
    /// Name.
    pub name: &'a str,
    /// Number of its section; 0 for an undefined symbol.
    pub section: usize,
    /// Offset in the section.
    pub value: usize,
    /// Size in bytes.
    pub size: usize,
    /// True for a function.
    pub is_function: bool,
}

/// The sections of an object.
pub struct Sections<'a> {
    object: &'a [u8],
    headers: Vec<&'a [u8]>,
    names: &'a [u8],
}

impl<'a> Sections<'a> {
    /// Reads the sections of a 64-bit ELF file in this machine's byte order.
    pub fn read(object: &'a [u8]) -> Option<Sections<'a>> {
        let order = if cfg!(target_endian = "little") { 1 } else { 2 };
        if object.get(..6)? != [0x7f, b'E', b'L', b'F', 2, order] {
            return None;
        }
        let start = number(object, 40..48)?;
        let count = number(object, 60..62)?;
        let headers: Vec<_> = object.get(start..)?.chunks_exact(SECTION).take(count).collect();
        if headers.len() < count {
            return None;
        }
        let mut sections = Sections { object, headers, names: &[] };
        sections.names = sections.contents(number(object, 62..64)?)?;
        Some(sections)
    }

    fn contents(&self, place: usize) -> Option<&'a [u8]> {
        let header = self.headers.get(place)?;
        let (offset, size) = (number(header, 24..32)?, number(header, 32..40)?);
        self.object.get(offset..offset.checked_add(size)?)
    }

    /// Returns the section with this number.
    pub fn at(&self, place: usize) -> Option<Section<'a>> {
        let header = *self.headers.get(place)?;
        let kind = number(header, 4..8)? as u64;
        Some(Section {
            header,
            name: text(self.names, number(header, 0..4)?)?,
            kind,
            flags: number(header, 8..16)? as u64,
            bytes: if kind == NOBITS { &[] } else { self.contents(place)? },
            link: number(header, 40..44)?,
            info: number(header, 44..48)?,
        })
    }

    /// Iterates over the sections in order, up to the first that cannot be read.
    pub fn all(&self) -> impl Iterator<Item = Section<'a>> + '_ {
        (0..self.headers.len()).map_while(|place| self.at(place))
    }

    /// Returns the number of sections.
    #[allow(dead_code)] // in build.rs
    pub fn count(&self) -> usize {
        self.headers.len()
    }

    /// Returns the symbols in order; `None` if there are none or one cannot be read.
    #[allow(dead_code)] // in build.rs
    pub fn symbols(&self) -> Option<Vec<Symbol<'a>>> {
        let table = self.all().find(|section| section.kind == SYMTAB)?;
        let names = self.at(table.link)?.bytes;
        let symbol = |symbol: &[u8]| {
            Some(Symbol {
                name: text(names, number(symbol, 0..4)?)?,
                section: number(symbol, 6..8)?,
                value: number(symbol, 8..16)?,
                size: number(symbol, 16..24)?,
                is_function: symbol[4] & 15 == FUNC,
            })
        };
        table.bytes.chunks_exact(SYMBOL).map(symbol).collect()
    }
}

/// Reads a number of two, four or eight bytes.
pub fn number(bytes: &[u8], at: Range<usize>) -> Option<usize> {
    let mut word = [0; 8];
    let bytes = bytes.get(at)?;
    let start = if cfg!(target_endian = "little") { 0 } else { 8 - bytes.len() };
    word[start..start + bytes.len()].copy_from_slice(bytes);
    usize::try_from(u64::from_ne_bytes(word)).ok()
}

/// Returns the NUL-terminated string at an offset.
fn text(texts: &[u8], place: usize) -> Option<&str> {
    let text = texts.get(place..)?.split(|&byte| byte == 0).next()?;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::OBJECT;
    use libbpf_rs::ObjectBuilder;
    use std::ffi::OsStr;

    const PROGRAM: &str = "tp__sched_switch";

    #[test]
    fn an_excerpt_has_the_programs_of_the_wanted_ones_sections() {
        let whole = Sections::read(OBJECT.bytes).expect("it is an object");
        let part = excerpt(OBJECT.bytes, |name| name == PROGRAM).expect("it is an object");
        let part = Sections::read(&part).expect("it is an object");
        let code = |sections: &Sections<'_>| -> Vec<String> {
            let code = sections.all().filter(|section| section.is_code()).map(|section| section.name.to_owned());
            code.collect()
        };
        assert!(code(&whole).len() > 100);
        assert_eq!(code(&part), ["tp_btf/sched_switch"]);
        for (place, section) in part.all().enumerate().filter(|(_, section)| section.kind != 0) {
            let same = whole.at(place).expect("it keeps its number");
            assert_eq!((section.name, section.bytes.len()), (same.name, same.bytes.len()));
            assert!(section.bytes == same.bytes, "{}", section.name);
        }
    }

    #[test]
    fn libbpf_opens_an_excerpt_with_all_maps_and_constants() {
        let names = |bytes: &[u8]| {
            let mut builder = ObjectBuilder::default();
            let object =
                builder.name("corebcc").and_then(|builder| builder.open_memory(bytes)).expect("libbpf takes it");
            let programs: Vec<_> = object.progs().map(|program| program.name().to_owned()).collect();
            let maps: Vec<_> =
                object.maps().map(|map| (map.name().to_owned(), map.initial_value().map(<[u8]>::len))).collect();
            (programs, maps)
        };
        let (_, maps) = names(OBJECT.bytes);
        let part = excerpt(OBJECT.bytes, |name| name == PROGRAM).expect("it is an object");
        assert_eq!(names(&part), (vec![OsStr::new(PROGRAM).to_owned()], maps));
    }

    #[test]
    fn the_object_has_no_line_numbers() {
        let types = section(OBJECT.bytes, ".BTF.ext").expect("it has types");
        assert_eq!(number(types, 20..24), Some(0));
        assert!(number(types, 28..32) > Some(0), "relocations");
    }

    #[test]
    fn damaged_objects_are_refused_or_read_and_never_panic() {
        let small = excerpt(OBJECT.bytes, |name| name == PROGRAM).expect("it is an object");
        for length in (0..small.len()).step_by(97) {
            assert!(excerpt(&small[..length], |_| true).is_none());
        }
        let headers = small.len() - 4096;
        for at in (0..HEADER).chain(headers..small.len()) {
            let mut changed = small.clone();
            changed[at] ^= 0xff;
            let _ = excerpt(&changed, |_| true);
        }
    }
}
