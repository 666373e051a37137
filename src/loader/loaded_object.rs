//! Interface of a loaded object to the collector. Tests without BPF substitute a fake.

use super::object::Loaded;
use super::outcome::TargetOutcome;
use super::usage::{self, MapUsage, ProgramUsage};
use crate::kit::Kernel;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A loaded object: its maps and calls as modules see them, and statistics of its programs. Any thread may use it.
pub trait LoadedObject: Kernel + Send + Sync {
    /// Returns the descriptors that become readable when a ring has records, with the ring's name.
    fn rings(&self) -> Vec<(&'static str, BorrowedFd<'_>)>;

    /// Returns the attached hooks, with the tier of each.
    fn attached(&self) -> Vec<(&'static str, &'static str)>;

    /// Returns the targets of templates, with the outcome of each.
    fn targets(&self) -> &[TargetOutcome];

    /// Returns the loaded programs.
    fn programs(&self) -> Vec<ProgramUsage>;

    /// Returns the maps.
    fn maps(&self) -> Vec<MapUsage>;

    /// Returns the kernel memory of maps and programs in bytes.
    fn memory(&self) -> u64;

    /// Detaches programs that none of these modules uses; in the other programs, disables the parts of all other
    /// modules.
    fn keep(&self, modules: &[&str]);

    /// Releases this process's pinned maps at the end of the agent, by ending all programs that count in them, so that
    /// the next agent can use them.
    fn let_go(&self) {}

    /// Makes the kernel count runs of programs while the returned descriptor is open.
    fn count_runs(&self) -> std::io::Result<OwnedFd>;

    /// True if the kernel counts them anyway (`kernel.bpf_stats_enabled`).
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
