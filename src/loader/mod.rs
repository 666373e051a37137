//! The interface to the kernel: loading the BPF object by trial, and reading its maps. `unsafe` is here and in `bpf`
//! only.

mod bpffs;
mod btf;
mod excerpt;
mod fdinfo;
mod features;
mod footprint;
mod helper;
mod immediate;
mod loaded_object;
mod map_shape;
mod mapping;
mod mark;
mod object;
mod outcome;
mod pair;
mod pair_advice;
mod pair_code;
mod pair_events;
mod pair_options;
mod pair_sampling;
mod perf_event;
mod permission;
mod pin_state;
mod pins;
mod program;
mod refusal;
mod relocated;
mod ring;
mod script_helper;
mod sparse;
mod statistics_helper;
mod template;
mod trial;
mod usage;

pub use footprint::{give_back, trim, use_one_arena};
pub use loaded_object::LoadedObject;
pub use object::{allow_descriptors, Loaded};
pub use outcome::{Attempt, Failure, Finding, LoadRequest, PinRequest, Refusals, TargetOutcome};
pub use pair::{LoadedPair, OpenPair, PairMap, PairProgram, PairSetup, MAX_OBJECT};
pub use pair_code::guarded_helpers;
pub use pair_events::{EventReader, Events};
pub use pair_options::PairOptions;
pub use pin_state::PinState;
pub use pins::{
    end_pinned_programs, foreign_pins, forget_pinned, pin_for, pin_late, pin_state, pinned_sizes, release_pins,
    remove_other_pins, want_pinned,
};
pub use refusal::Refusal;
pub use script_helper::{run_bpftrace, Bpftrace, ScriptHelper, ScriptProcess};
pub use statistics_helper::StatisticsHelper;
pub use trial::{load, Outcome};
pub use usage::{count_runs, cpu_time, resident, MapUsage, ProgramUsage};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Returns the page size in bytes.
fn page() -> nix::Result<usize> {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
    page.and_then(|page| usize::try_from(page).ok()).ok_or(nix::Error::EINVAL)
}

/// Locks a mutex, poisoned or not: each change of the data is a single call, so a thread that panicked left nothing
/// half done.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
