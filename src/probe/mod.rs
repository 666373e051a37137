//! The kernel: the BPF object, loading it by trial, and reading its maps. `unsafe` is here and in `bpf` only.

mod btf;
mod each;
mod finding;
mod footprint;
mod host;
mod load;
mod loaded;
mod maps;
mod perf;
mod permission;
mod program;
mod refusal;
mod ring;
mod usage;

pub use finding::Finding;
pub use footprint::give_back;
pub use host::host;
pub use load::{load, Attempt, Failure, Outcome, Reach, Said, Wanted};
pub use loaded::Loaded;
pub use refusal::Refusal;
pub use usage::{count_runs, counts_runs, resident, MapUsage, ProgramUsage};
