//! The kernel: the BPF object, loading it by trial, and reading its maps. `unsafe` is here and in `bpf` only.

mod btf;
mod features;
mod footprint;
mod mapping;
mod object;
mod perf_event;
mod permission;
mod program;
mod refusal;
mod ring;
mod template;
mod trial;
mod usage;

pub use features::Finding;
pub use object::Loaded;
pub use refusal::Refusal;
pub use trial::{load, Attempt, Failure, Outcome, Reach, Said, Wanted};
pub use usage::{count_runs, counts_runs, resident, MapUsage, ProgramUsage};
