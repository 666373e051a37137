//! The machine as its files describe it; no BPF.

mod accounts;
mod audit;
mod blocking;
pub mod btf_encoding;
mod cgroups;
mod cpu_counters;
mod demangle;
mod elf;
mod error;
mod executables;
mod identity;
pub mod inputs;
mod kallsyms;
mod libraries;
mod machine;
mod per_cpu;
mod process_symbols;
mod processes;
mod regular;
mod symbols;
mod tracefs;
mod usdt;

pub use accounts::{Account, Group, SOURCE_OF_ACCOUNTS};
pub use audit::latest_session;
pub use cgroups::{guest_of, series_name, walk_below, Cgroup, Cgroups, Controller, NoCgroups};
pub use cpu_counters::{Counts, CpuCounters};
pub use elf::{Code, Elf};
pub use error::HostError;
pub use executables::{mapped, Mapped, ProbeFile, ProbeFiles};
pub use identity::ProcessIdentity;
pub use kallsyms::{each_kernel_symbol, NamesByAddress};
pub use libraries::{library, program_or_library};
pub use machine::{
    boot_time, cpus, file_systems, has_kernel_module, host, monotonic, online_cpus, page_size, seconds_since_1970,
    since_1970,
};
pub use per_cpu::per_cpu_distance;
pub use process_symbols::Symbol;
pub use processes::{
    cmdline, comm, command_word, exists, in_namespace, until_nul, user_of, with_sockets, Process, Watch,
};
pub use regular::{open_regular, open_regular_of};
pub use symbols::{forget_symbols, forget_unused_symbols, kernel_functions, symbols, unnamed, CodeOf};
pub use tracefs::{tracefs, Events, TRACEFS};
pub use usdt::{ArgLocation, Argument, ArgumentError, Probe};
