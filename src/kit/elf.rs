//! Functions in 64-bit ELF files (elf(5)) of this machine's byte order: where in the file their code is.

use std::fs;
use std::path::Path;

/// Where a function's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Bytes from the beginning of the file.
    pub offset: u64,
    /// The code only chooses an implementation, when the program is loaded (`STT_GNU_IFUNC`).
    pub chooses: bool,
}

const HEADER: usize = 64;
const SYMBOL: usize = 24;
const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const PT_LOAD: u32 = 1;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Where calls may land under Intel's CET: an instruction that does nothing else, but which the kernel cannot emulate.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The bytes of a file.
pub struct Elf {
    bytes: Vec<u8>,
}

impl Elf {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Elf, String> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Elf::new(bytes).ok_or_else(|| format!("{}: not a 64-bit ELF file of this machine's byte order", path.display()))
    }

    fn new(bytes: Vec<u8>) -> Option<Elf> {
        let order = if cfg!(target_endian = "little") { 1 } else { 2 };
        let good = bytes.len() >= HEADER && bytes.starts_with(b"\x7fELF") && bytes[4] == 2 && bytes[5] == order;
        good.then_some(Elf { bytes })
    }

    /// The code of a function, at the place where a probe costs least. A name may carry its version
    /// (`memcpy@GLIBC_2.14`), as it does in symbol tables; without one the first of its name is meant.
    pub fn function(&self, name: &str) -> Option<Code> {
        let (name, version) = name.split_once('@').map_or((name, None), |(name, version)| (name, Some(version)));
        let mut found = None;
        for table in self.sections().filter(|section| matches!(section.ty, SHT_SYMTAB | SHT_DYNSYM)) {
            let strings = self.sections().nth(table.link)?;
            for at in (table.offset..table.offset.saturating_add(table.size)).step_by(SYMBOL) {
                let Some(symbol) = self.bytes.get(at..at + SYMBOL) else { break };
                let kind = symbol[4] & 15;
                let address = u64_at(symbol, 8)?;
                if !matches!(kind, STT_FUNC | STT_GNU_IFUNC) || address == 0 {
                    continue;
                }
                let Some(full) = self.string(strings.offset, u32_at(symbol, 0)? as usize) else { continue };
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
        let mut offset = self.segments().find_map(|(at, start, size)| {
            (start..start.saturating_add(size)).contains(&address).then(|| at + (address - start))
        })?;
        if cfg!(target_arch = "x86_64") && self.bytes.get(offset as usize..)?.starts_with(&ENDBR64) {
            offset += ENDBR64.len() as u64;
        }
        Some(Code { offset, chooses: kind == STT_GNU_IFUNC })
    }

    /// File offset, address and size of what is loaded.
    fn segments(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let start = u64_at(&self.bytes, 32).unwrap_or(0) as usize;
        let (size, count) = (u16_at(&self.bytes, 54), u16_at(&self.bytes, 56));
        (0..count).filter_map(move |i| {
            let header = self.bytes.get(start.checked_add(i * size)?..)?;
            (u32_at(header, 0)? == PT_LOAD).then_some((u64_at(header, 8)?, u64_at(header, 16)?, u64_at(header, 32)?))
        })
    }

    fn sections(&self) -> impl Iterator<Item = Section> + '_ {
        let start = u64_at(&self.bytes, 40).unwrap_or(0) as usize;
        let (size, count) = (u16_at(&self.bytes, 58), u16_at(&self.bytes, 60));
        (0..count).map(move |i| {
            let header = start.checked_add(i * size).and_then(|at| self.bytes.get(at..)).unwrap_or_default();
            Section {
                ty: u32_at(header, 4).unwrap_or(0),
                offset: u64_at(header, 24).unwrap_or(0) as usize,
                size: u64_at(header, 32).unwrap_or(0) as usize,
                link: u32_at(header, 40).unwrap_or(0) as usize,
            }
        })
    }

    fn string(&self, table: usize, at: usize) -> Option<&[u8]> {
        let rest = self.bytes.get(table.checked_add(at)?..)?;
        Some(&rest[..rest.iter().position(|&byte| byte == 0)?])
    }
}

struct Section {
    ty: u32,
    offset: usize,
    size: usize,
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

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let code = Elf::new(bytes.clone()).unwrap().function("corebcc_elf_test_function").unwrap();
        assert!(!code.chooses);
        let at = code.offset as usize;
        let constant = 0x1122_3344_5566_7788u64.to_le_bytes();
        if cfg!(target_arch = "x86_64") {
            assert!(bytes[at..at + 64].windows(8).any(|part| part == constant), "{:x?}", &bytes[at..at + 64]);
        }
        assert_eq!(Elf::new(bytes).unwrap().function("no_such_function"), None);
    }

    #[test]
    fn a_file_cut_anywhere_is_no_panic() {
        let bytes = own();
        for length in (0..2048).chain([bytes.len() / 3, bytes.len() / 2, bytes.len() - 1]) {
            if let Some(elf) = Elf::new(bytes[..length].to_vec()) {
                elf.function("corebcc_elf_test_function");
            }
        }
    }

    #[test]
    fn versions_are_told_from_names() {
        assert_eq!(split_version(b"memcpy@@GLIBC_2.14"), (&b"memcpy"[..], Some(&b"GLIBC_2.14"[..])));
        assert_eq!(split_version(b"memcpy@GLIBC_2.2.5"), (&b"memcpy"[..], Some(&b"GLIBC_2.2.5"[..])));
        assert_eq!(split_version(b"f"), (&b"f"[..], None));
    }
}
