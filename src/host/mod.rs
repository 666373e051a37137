//! The machine as its files show it: no BPF.

mod elf;
mod executables;
mod libraries;
mod machine;
mod processes;
mod symbols;
mod tracefs;
mod usdt;

pub use elf::{Code, Elf};
pub use executables::{mapped, Mapped, ProbeFile, ProbeFiles};
pub use libraries::{library, program_or_library};
pub use machine::{cpus, host};
pub use processes::{cmdline, comm, command_word, exists, in_namespace, until_nul, with_sockets, Process, Watch};
pub use symbols::{kernel_function, symbols, CodeOf, Symbol};
pub use tracefs::{tracefs, Events, TRACEFS};
pub use usdt::{Argument, Place, Probe};
