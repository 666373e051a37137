//! What the collector needs of a loaded object. Tests that have no BPF put a stand-in of their own in its place.

use super::object::Loaded;
use super::outcome::TargetOutcome;
use super::usage::{self, MapUsage, ProgramUsage};
use crate::kit::Kernel;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A loaded object: its maps and calls as modules see them, and what the agent tells of its programs. Any thread may use it.
pub trait LoadedObject: Kernel + Send + Sync {
    /// The descriptors that become readable when a ring wants to be drained, with the ring's name.
    fn rings(&self) -> Vec<(&'static str, BorrowedFd<'_>)>;

    /// The hooks that are attached, and the tier of each.
    fn attached(&self) -> Vec<(&'static str, &'static str)>;

    /// The targets of templates, and what became of each.
    fn targets(&self) -> &[TargetOutcome];

    /// The loaded programs.
    fn programs(&self) -> Vec<ProgramUsage>;

    /// The maps.
    fn maps(&self) -> Vec<MapUsage>;

    /// Bytes of kernel memory of the maps and the programs.
    fn memory(&self) -> u64;

    /// Detaches the programs in which none of these modules has a part, and switches the parts of all others off in the rest.
    fn keep(&self, modules: &[&str]);

    /// At the end of the agent: what counts in pinned maps by this process lets go of them, so that the next agent may have them.
    fn let_go(&self) {}

    /// Has the kernel count the runs of programs while the descriptor is open.
    fn count_runs(&self) -> std::io::Result<OwnedFd>;

    /// Whether the kernel counts them anyway (`kernel.bpf_stats_enabled`).
    fn counts_runs(&self) -> bool;
}

impl LoadedObject for Loaded {
    fn rings(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        Loaded::rings(self).collect()
    }

    fn attached(&self) -> Vec<(&'static str, &'static str)> {
        Loaded::attached(self)
    }

    fn targets(&self) -> &[TargetOutcome] {
        Loaded::reaches(self)
    }

    fn let_go(&self) {
        Loaded::let_go(self);
    }

    fn programs(&self) -> Vec<ProgramUsage> {
        Loaded::programs(self)
    }

    fn maps(&self) -> Vec<MapUsage> {
        Loaded::maps(self)
    }

    fn memory(&self) -> u64 {
        Loaded::memory(self)
    }

    fn keep(&self, modules: &[&str]) {
        Loaded::keep(self, modules);
    }

    fn count_runs(&self) -> std::io::Result<OwnedFd> {
        usage::count_runs()
    }

    fn counts_runs(&self) -> bool {
        usage::counts_runs()
    }
}
