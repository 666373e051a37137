//! The modules: one file each, and its line here. `MODULES` is what the agent knows of them.

use crate::kit::Spec;

mod biolatency;
mod execsnoop;
mod exectop;
mod netproc;
mod profile;
mod runqlat;
mod syscount;
mod sysfork;
mod tcplife;

/// Every module.
pub const MODULES: &[&Spec] = &[
    &biolatency::SPEC,
    &sysfork::SPEC,
    &tcplife::SPEC,
    &runqlat::SPEC,
    &exectop::SPEC,
    &profile::SPEC,
    &netproc::SPEC,
    &execsnoop::SPEC,
    &syscount::SPEC,
];

/// The module that `module = PATH` or `[NAME]` means.
pub fn find(path: &str) -> Option<&'static Spec> {
    MODULES.iter().copied().find(|spec| spec.path == path || spec.name == path)
}
