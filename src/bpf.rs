//! The BPF object that build.rs compiles from bpf/, and its C types.

use std::marker::PhantomData;

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

#[allow(
    dead_code,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unused_qualifications
)]
pub mod types {
    include!(concat!(env!("OUT_DIR"), "/types.rs"));
}

#[allow(non_upper_case_globals, missing_docs, dead_code)]
mod fields {
    use super::{types, Field};
    use std::mem::offset_of;

    include!(concat!(env!("OUT_DIR"), "/fields.rs"));
}

/// A field of type `F` in the C struct `S`. build.rs generates a constant for each: `fork_row::threads`.
///
/// ```
/// use corebcc::bpf::types::{exec_row, fork_row};
/// use corebcc::kit::{Fake, Rows};
///
/// const FORKS: Rows<fork_row> = Rows::new("fork_rows");
/// let kernel = Fake::new().with(FORKS, 1);
/// kernel.set(FORKS, 0, fork_row::threads, 7);
/// assert_eq!(kernel.row(FORKS, 0).get(fork_row::threads), 7);
/// assert_eq!(exec_row::claims.offset() % 8, 0);
/// ```
///
/// A field of another struct does not compile:
///
/// ```compile_fail,E0308
/// use corebcc::bpf::types::{exec_row, fork_row};
/// use corebcc::kit::{Fake, Rows};
///
/// const FORKS: Rows<fork_row> = Rows::new("fork_rows");
/// let kernel = Fake::new().with(FORKS, 1);
/// kernel.row(FORKS, 0).get(exec_row::claims);
/// ```
pub struct Field<S, F> {
    offset: usize,
    of: PhantomData<fn(S) -> F>,
}

impl<S, F> Clone for Field<S, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, F> Copy for Field<S, F> {}

impl<S, F> Field<S, F> {
    const fn at(offset: usize) -> Self {
        Field { offset, of: PhantomData }
    }

    /// Returns the offset in the struct, in bytes.
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// Returns a field of this field, which is a struct.
    pub const fn then<G>(self, inner: Field<F, G>) -> Field<S, G> {
        Field::at(self.offset.saturating_add(inner.offset))
    }

    /// Returns the field without the type of its struct.
    pub const fn erased(self) -> Field<Untyped, F> {
        Field::at(self.offset)
    }

    /// Returns the field that is this many places further in an array of such fields.
    pub const fn further(self, places: usize) -> Self {
        Field::at(self.offset.saturating_add(places.saturating_mul(size_of::<F>())))
    }
}

/// A struct whose C type is not at hand, for fields that a map declares by offset.
pub struct Untyped;

impl Field<Untyped, u64> {
    /// Makes the field of the word at an offset.
    pub const fn untyped(offset: usize) -> Self {
        Field::at(offset)
    }
}

impl<S, F, const N: usize> Field<S, [F; N]> {
    /// Returns an element; beyond the array one that reads as 0.
    pub const fn nth(self, index: usize) -> Field<S, F> {
        Field::at(if index < N { self.offset + index * size_of::<F>() } else { usize::MAX })
    }
}

/// A question about the kernel, answered by its types (a `FEATURE` line in bpf/). build.rs generates a constant for
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Feature(pub &'static str);

/// Mode of a module's part in shared programs (bpf/shared/probe.bpf.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Everything runs.
    Runs = 0,
    /// The module was stopped; only work done for other modules runs.
    ForOthers = 1,
    /// The module was stopped; nothing runs.
    Off = 2,
}

/// A BPF object with its build-time description.
#[derive(Clone, Copy)]
pub struct BpfObject {
    /// Name in messages of libbpf and in the names of its maps.
    pub name: &'static str,
    /// ELF file.
    pub bytes: &'static [u8],
    /// Programs, each with the modules that have a part in it.
    pub programs: &'static [(&'static str, &'static [&'static str])],
    /// Questions that its program `ask_features` answers, in the order of the answers.
    pub features: &'static [Feature],
    /// Offset of the answers in its `.bss`, in bytes.
    pub answers: usize,
    /// Modules in the order of their switches ([`Part`]).
    pub parts: &'static [&'static str],
    /// Offset of the switches in its `.bss`, in bytes.
    pub switches: usize,
}

impl BpfObject {
    /// Returns the modules with a part in a program; `None` for a program that belongs to no module.
    pub fn users(&self, program: &str) -> Option<&'static [&'static str]> {
        self.programs.iter().find(|(name, _)| *name == program).map(|(_, users)| *users)
    }
}

/// Object of the modules in bpf/. A static, since a constant of this size would be copied to each use.
pub static OBJECT: BpfObject = BpfObject {
    name: "corebcc",
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/corebcc.bpf.o")),
    programs: PROGRAMS,
    features: FEATURES,
    answers: std::mem::offset_of!(types::bss, features),
    parts: PARTS,
    switches: std::mem::offset_of!(types::bss, parts),
};

/// A function that sets constants which take long to determine and are needed only by programs about to be loaded.
pub type LateConstants = fn(&mut types::rodata);

/// Constants of an object's programs (`const volatile`).
pub trait Constants {
    /// Returns the bytes of the read-only data, with the parts of the modules in `on` enabled, features in `opposed`
    /// inverted, and late constants set.
    fn bytes(&self, on: &[&str], opposed: &[&str], late: &[LateConstants]) -> Vec<u8>;
}

impl Constants for types::rodata {
    fn bytes(&self, on: &[&str], opposed: &[&str], late: &[LateConstants]) -> Vec<u8> {
        let mut constants = *self;
        late.iter().for_each(|set| set(&mut constants));
        for module in on {
            switch_on(&mut constants, module);
        }
        for feature in opposed {
            oppose(&mut constants, feature);
        }
        let start = std::ptr::from_ref(&constants).cast::<u8>();
        let mut bytes = vec![0; size_of::<types::rodata>()];
        for &(at, size) in fields::CONSTANTS {
            // SAFETY: it is a member of the struct, of integers or booleans, all of whose bytes are set; padding is not read.
            bytes[at..at + size].copy_from_slice(unsafe { std::slice::from_raw_parts(start.add(at), size) });
        }
        bytes
    }
}

/// Returns the initial constants of the programs, before modules set them.
pub fn constants() -> types::rodata {
    // SAFETY: `rodata` is a C struct of integers and booleans, for which all bits zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Parses a record of a ring; `None` if it is too short.
pub fn record<T: Record>(bytes: &[u8]) -> Option<T> {
    // SAFETY: `Record` promises that any bytes are a value; the read needs no alignment and stays inside the slice.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Returns the bytes of a record, for tests that play the kernel.
pub fn record_bytes<T: Record>(record: &T) -> Vec<u8> {
    let start = std::ptr::from_ref(record).cast::<u8>();
    // SAFETY: `Record` promises a C struct of integers with its padding written out as members.
    unsafe { std::slice::from_raw_parts(start, size_of::<T>()) }.to_vec()
}

/// A C struct that is sent through a ring.
///
/// # Safety
///
/// Only integers and arrays of them, padding written out as members.
pub unsafe trait Record: Copy {}

// SAFETY: two integers.
unsafe impl Record for types::filter_ask {}
// SAFETY: three integers.
unsafe impl Record for types::event_head {}
// SAFETY: integers and arrays of bytes, without a gap: five words of 64 bits, six of 32 bits, then bytes.
unsafe impl Record for types::exit_event {}
// SAFETY: integers and arrays of them; `pad` is a member.
unsafe impl Record for types::bio_slow {}
// SAFETY: as that.
unsafe impl Record for types::oom_event {}
// SAFETY: integers, three words of 64 bits and four of 32 bits, then bytes, without a gap.
unsafe impl Record for types::login_event {}
// SAFETY: integers, ten words of 64 bits, four of 32, two of 16; `pad` is a member.
unsafe impl Record for types::conn_event {}
// SAFETY: integers, three words of 64 bits and four of 32 bits, then bytes, without a gap.
unsafe impl Record for types::open_event {}
// SAFETY: integers, three words of 64 bits and four of 32 bits, of which `pad` is one, then bytes, without a gap.
unsafe impl Record for types::stat_event {}
// SAFETY: integers, six words of 64 bits and six of 32 bits, of which `pad` is one, then bytes, without a gap.
unsafe impl Record for types::mount_event {}
// SAFETY: integers, three words of 64 bits and two of 32 bits, then bytes, without a gap.
unsafe impl Record for types::bash_event {}
// SAFETY: integers and arrays of bytes, without a gap: six words of 64 bits, two of 32 bits, then bytes.
unsafe impl Record for types::slow_file_event {}
// SAFETY: integers and arrays of bytes; `pad` is a member.
unsafe impl Record for types::tcp_session {}
// SAFETY: integers and arrays of them; `pad` is a member.
unsafe impl Record for types::prof_sample {}

// SAFETY: integers and arrays of bytes; `pad` is a member.
unsafe impl Record for types::exec_event {}
