//! 64-bit ELF files (elf(5)) of this machine's byte order: where in the file the code of functions is, and their notes.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Where a function's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Bytes from the beginning of the file.
    pub offset: u64,
    /// The code only chooses an implementation, when the program is loaded (`STT_GNU_IFUNC`).
    pub chooses: bool,
}

const HEADER: u64 = 64;
const SYMBOL: usize = 24;
const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;
const SHT_DYNSYM: u32 = 11;
const PT_LOAD: u32 = 1;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Where calls may land under Intel's CET: an instruction that does nothing else, but which the kernel cannot emulate.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Where the bytes of a file come from.
trait Bytes {
    /// So many bytes from an offset; `None` beyond the end.
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>>;
}

impl Bytes for fs::File {
    fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        // What a damaged file says of itself must not cost more memory than it has bytes.
        if offset.checked_add(length)? > self.metadata().ok()?.len() {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

/// A file, of which only the parts asked for are read.
pub struct Elf {
    bytes: Box<dyn Bytes>,
    header: Vec<u8>,
}

impl Elf {
    /// Opens a file. One that is not a regular file is refused without waiting for it.
    pub(super) fn open(path: &Path) -> Result<fs::File, String> {
        let open = || -> std::io::Result<fs::File> {
            let file = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
            if !file.metadata()?.is_file() {
                return Err(std::io::Error::other("not a regular file"));
            }
            Ok(file)
        };
        open().map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Opens a file and reads its header.
    pub fn read(path: &Path) -> Result<Elf, String> {
        Elf::of(Elf::open(path)?, path)
    }

    pub(super) fn of(file: fs::File, path: &Path) -> Result<Elf, String> {
        Elf::new(Box::new(file))
            .ok_or_else(|| format!("{}: not a 64-bit ELF file of this machine's byte order", path.display()))
    }

    fn new(bytes: Box<dyn Bytes>) -> Option<Elf> {
        let order = if cfg!(target_endian = "little") { 1 } else { 2 };
        let header = bytes.at(0, HEADER)?;
        let good = header.starts_with(b"\x7fELF") && header[4] == 2 && header[5] == order;
        good.then_some(Elf { bytes, header })
    }

    /// The code of a function, at the place where a probe costs least. A name may carry its version
    /// (`memcpy@GLIBC_2.14`), as it does in symbol tables; without one the first of its name is meant.
    pub fn function(&self, name: &str) -> Option<Code> {
        let (name, version) = name.split_once('@').map_or((name, None), |(name, version)| (name, Some(version)));
        let mut found = None;
        let sections = self.sections();
        for table in sections.iter().filter(|section| matches!(section.ty, SHT_SYMTAB | SHT_DYNSYM)) {
            let strings = self.content(sections.get(table.link)?)?;
            for symbol in self.content(table)?.chunks_exact(SYMBOL) {
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
        if cfg!(target_arch = "x86_64") && self.bytes.at(offset, ENDBR64.len() as u64)? == ENDBR64 {
            offset += ENDBR64.len() as u64;
        }
        Some(Code { offset, chooses: kind == STT_GNU_IFUNC })
    }

    /// Where in the file the byte is that is loaded to an address.
    pub(super) fn offset(&self, address: u64) -> Option<u64> {
        let headers = self.table(32, 54, 56);
        headers.iter().find_map(|header| {
            let (at, start, size) = (u64_at(header, 8)?, u64_at(header, 16)?, u64_at(header, 32)?);
            let here = (start..start.saturating_add(size)).contains(&address);
            (u32_at(header, 0)? == PT_LOAD && here).then(|| at.checked_add(address - start)).flatten()
        })
    }

    /// The entries of a table of headers: the header of the file has its offset, the size and the number of entries here.
    fn table(&self, offset: usize, size: usize, count: usize) -> Vec<Vec<u8>> {
        let (size, count) = (u16_at(&self.header, size), u16_at(&self.header, count));
        let bytes = u64_at(&self.header, offset).and_then(|offset| self.bytes.at(offset, (size * count) as u64));
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
        self.table(40, 58, 60).into_iter().map(section).collect()
    }

    fn content(&self, section: &Section) -> Option<Vec<u8>> {
        self.bytes.at(section.offset, section.size)
    }

    /// The contents of the sections of notes.
    pub(super) fn notes(&self) -> Vec<Vec<u8>> {
        self.sections()
            .iter()
            .filter(|section| section.ty == SHT_NOTE)
            .filter_map(|notes| self.content(notes))
            .collect()
    }

    /// The address of the section of this name.
    pub(super) fn address(&self, name: &[u8]) -> Option<u64> {
        let sections = self.sections();
        let names = self.content(sections.get(u16_at(&self.header, 62))?)?;
        sections.iter().find(|section| string(&names, section.name) == Some(name)).map(|section| section.address)
    }
}

/// What ends with a NUL at a place in a table of strings.
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

/// `name@VERSION` or `name@@VERSION`.
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

    impl Bytes for Vec<u8> {
        fn at(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
            let offset = usize::try_from(offset).ok()?;
            self.get(offset..offset.checked_add(usize::try_from(length).ok()?)?).map(<[u8]>::to_vec)
        }
    }

    /// A file of these bytes.
    pub fn elf(bytes: &[u8]) -> Option<Elf> {
        Elf::new(Box::new(bytes.to_vec()))
    }

    fn own() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[no_mangle]
    extern "C" fn corebcc_elf_test_function() -> u64 {
        0x1122_3344_5566_7788
    }

    #[test]
    fn the_code_of_an_own_function_is_found_behind_its_landing_pad() {
        assert_ne!(corebcc_elf_test_function(), 0);
        let bytes = own();
        let code = elf(&bytes).unwrap().function("corebcc_elf_test_function").unwrap();
        assert!(!code.chooses);
        let at = code.offset as usize;
        let constant = 0x1122_3344_5566_7788u64.to_le_bytes();
        if cfg!(target_arch = "x86_64") {
            assert!(bytes[at..at + 64].windows(8).any(|part| part == constant), "{:x?}", &bytes[at..at + 64]);
        }
        assert_eq!(elf(&bytes).unwrap().function("no_such_function"), None);
    }

    #[test]
    fn a_file_cut_anywhere_is_no_panic() {
        let bytes = own();
        for length in (0..2048).chain([bytes.len() / 3, bytes.len() / 2, bytes.len() - 1]) {
            if let Some(elf) = elf(&bytes[..length]) {
                elf.function("corebcc_elf_test_function");
            }
        }
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/zero")] {
            assert!(Elf::read(path).err().unwrap().ends_with("not a regular file"));
        }
    }

    #[test]
    fn versions_are_told_from_names() {
        assert_eq!(split_version(b"memcpy@@GLIBC_2.14"), (&b"memcpy"[..], Some(&b"GLIBC_2.14"[..])));
        assert_eq!(split_version(b"memcpy@GLIBC_2.2.5"), (&b"memcpy"[..], Some(&b"GLIBC_2.2.5"[..])));
        assert_eq!(split_version(b"f"), (&b"f"[..], None));
    }
}
