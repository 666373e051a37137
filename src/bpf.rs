//! The BPF object that build.rs compiles of all of bpf/, and the C types in it.

use std::marker::PhantomData;

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

#[allow(
    dead_code,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    missing_docs,
    unused_qualifications
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/corebcc.skel.rs"));
}

pub use skeleton::types;

#[allow(non_upper_case_globals, missing_docs, dead_code)]
mod fields {
    use super::{types, Field};
    use std::mem::offset_of;

    include!(concat!(env!("OUT_DIR"), "/fields.rs"));
}

/// A field of type `F` in the C struct `S`. build.rs makes a constant of each: `fork_row::threads`.
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

    /// Bytes from the beginning of the struct.
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// A field of this field, which is a struct.
    pub const fn then<G>(self, inner: Field<F, G>) -> Field<S, G> {
        Field::at(self.offset.saturating_add(inner.offset))
    }
}

/// The struct of a row whose C type is not at hand: what a map declares of its rows is known by offset.
pub struct Untyped;

impl Field<Untyped, u64> {
    /// The word at an offset.
    pub const fn untyped(offset: usize) -> Self {
        Field::at(offset)
    }
}

impl<S, F, const N: usize> Field<S, [F; N]> {
    /// An element; beyond the array one that reads as 0.
    pub const fn nth(self, index: usize) -> Field<S, F> {
        Field::at(if index < N { self.offset + index * size_of::<F>() } else { usize::MAX })
    }
}

/// A question about the kernel that its types answer (a `FEATURE` line in bpf/). build.rs makes a constant of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Feature(pub &'static str);

/// What a module's part of the programs does that it shares with others, as bpf/shared/probe.bpf.h has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Everything.
    Runs = 0,
    /// What other modules leave to it: it was stopped.
    ForOthers = 1,
    /// Nothing: it was stopped.
    Off = 2,
}

/// A BPF object, and what its build knows of it.
#[derive(Clone, Copy)]
pub struct BpfObject {
    /// Its name in messages of libbpf and in the names of its maps.
    pub name: &'static str,
    /// The ELF file.
    pub bytes: &'static [u8],
    /// Each program, and the modules with a part in it.
    pub programs: &'static [(&'static str, &'static [&'static str])],
    /// The questions that its program `ask_features` answers, in the order of the answers.
    pub features: &'static [Feature],
    /// Where the answers are in its `.bss`.
    pub answers: usize,
    /// The modules, in the order of their switches ([`Part`]).
    pub parts: &'static [&'static str],
    /// Where the switches are in its `.bss`.
    pub switches: usize,
}

impl BpfObject {
    /// The modules with a part in a program; `None` for a program that belongs to no module.
    pub fn users(&self, program: &str) -> Option<&'static [&'static str]> {
        self.programs.iter().find(|(name, _)| *name == program).map(|(_, users)| *users)
    }
}

/// The object of the modules in bpf/. A static: a constant of this size is there once for each place that names it.
pub static OBJECT: BpfObject = BpfObject {
    name: "corebcc",
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/corebcc.bpf.o")),
    programs: PROGRAMS,
    features: FEATURES,
    answers: std::mem::offset_of!(types::bss, features),
    parts: PARTS,
    switches: std::mem::offset_of!(types::bss, parts),
};

/// Sets constants that take long to find, and that only programs which are about to be loaded need.
pub type LateConstants = fn(&mut types::rodata);

/// The constants of an object's programs (`const volatile`).
pub trait Constants {
    /// The bytes of the read-only data, with the parts of these modules switched on, the opposite of what the kernel's types
    /// say for these features, and constants that are found only now.
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

/// The constants of the programs as they are before a module sets them.
pub fn constants() -> types::rodata {
    // SAFETY: `rodata` is a C struct of integers and booleans, for which all bits zero is a value.
    unsafe { std::mem::zeroed() }
}

/// A record of a ring, if it is as long as one.
pub fn record<T: Record>(bytes: &[u8]) -> Option<T> {
    // SAFETY: `Record` promises that any bytes are a value; the read needs no alignment and stays inside the slice.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a record, for tests that play the kernel.
pub fn record_bytes<T: Record>(record: &T) -> Vec<u8> {
    let start = std::ptr::from_ref(record).cast::<u8>();
    // SAFETY: `Record` promises a C struct of integers with its padding written out as members.
    unsafe { std::slice::from_raw_parts(start, size_of::<T>()) }.to_vec()
}

/// A C struct that travels through a ring.
///
/// # Safety
///
/// Only integers and arrays of them, padding written out as members.
pub unsafe trait Record: Copy {}

// SAFETY: two integers.
unsafe impl Record for types::filter_ask {}
// SAFETY: integers and arrays of bytes; `pad` is a member.
unsafe impl Record for types::tcp_session {}
// SAFETY: integers and arrays of them; `pad` is a member.
unsafe impl Record for types::prof_sample {}

// SAFETY: integers and arrays of bytes, without a gap: six words of 32 bits, then bytes.
unsafe impl Record for types::exec_event {}
