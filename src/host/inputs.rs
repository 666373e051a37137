//! What other processes and the kernel write, each read from bytes as the agent reads it from its file: for the fuzz targets and the
//! replay of their corpus.

use super::elf::Elf;
use super::executables::Mapping;
use super::process_symbols::{PerfMap, Symbol};
use std::ops::Range;
use std::path::PathBuf;

/// Largest number of bytes that a name of code has.
pub const LONGEST_NAME: usize = Symbol::NAME;

/// An executable file; `None` where the bytes are none.
pub fn elf(bytes: &[u8]) -> Option<Elf> {
    Elf::in_memory(bytes.to_vec())
}

/// The name of the function at an offset of an executable file, and the distance from its start.
pub fn function_at(elf: &Elf, offset: u64) -> Option<(Vec<u8>, u64)> {
    elf.code_symbols().at(offset, LONGEST_NAME).map(|(name, within)| (name.to_vec(), within))
}

/// The function at an address by a perf map (`/tmp/perf-PID.map`).
pub fn perf_map(bytes: &[u8], address: u64) -> Option<Symbol> {
    PerfMap::of(bytes, Default::default()).at(address)
}

/// Addresses, offset and file of a line of `/proc/PID/maps`.
pub fn mapping(line: &str) -> Option<(Range<u64>, u64, Option<PathBuf>)> {
    let mapping = Mapping::of(line)?;
    Some((mapping.range()?, mapping.offset()?, mapping.file(1).map(|file| file.path)))
}

/// The name of a function without what the compiler added.
pub fn demangled(name: &str) -> String {
    super::demangle::demangled(name, LONGEST_NAME)
}

/// Labels and values that follow from the path of a cgroup.
pub fn labels_of_cgroup(path: &[u8]) -> usize {
    super::cgroups::labels(path, &|_| None).len()
}

/// The name of the virtual machine that a command line of qemu has.
pub fn guest(command_line: &[u8]) -> Option<String> {
    super::cgroups::guest_name(command_line)
}
