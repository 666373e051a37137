//! What the collector needs of a loaded object. Tests that have no BPF put a stand-in of their own in its place.

use super::object::Loaded;
use super::outcome::TargetOutcome;
use super::usage::{MapUsage, ProgramUsage};
use crate::kit::Kernel;
use std::os::fd::BorrowedFd;

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

    fn programs(&self) -> Vec<ProgramUsage> {
        Loaded::programs(self)
    }

    fn maps(&self) -> Vec<MapUsage> {
        Loaded::maps(self)
    }
}
