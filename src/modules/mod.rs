//! The modules: one file each, and its line here. The agent knows those in `MODULES`.

use crate::kit::Spec;

pub mod biolatency;
mod bioperpid;
mod biotop;
mod cachestat;
mod cgroup_disk;
mod cgroup_runq;
mod execsnoop;
mod exectop;
mod ext4dist;
mod klockstat;
mod kprobe_hits;
mod netproc;
mod profile;
mod runqlat;
pub(crate) mod shared;
mod syscount;
mod sysfork;
mod tcplife;
mod tcpperpid;
mod tcpretrans;
mod tcptop;
mod tracepoint_hits;
mod ucalls;
mod uprobe_hits;
mod usdt_hits;
mod usdt_jvm_threads;
mod ustat;
mod xfsdist;
mod zfsdist;

pub use shared::cgroups;
pub use syscount::system_calls;

/// All modules.
pub const MODULES: &[&Spec] = &[
    &biolatency::SPEC,
    &bioperpid::SPEC,
    &sysfork::SPEC,
    &tcplife::SPEC,
    &runqlat::SPEC,
    &tcpretrans::SPEC,
    &tcpperpid::SPEC,
    &tcptop::SPEC,
    &exectop::SPEC,
    &tracepoint_hits::SPEC,
    &uprobe_hits::SPEC,
    &usdt_hits::SPEC,
    &usdt_jvm_threads::SPEC,
    &ustat::SPEC,
    &ucalls::SPEC,
    &kprobe_hits::SPEC,
    &ext4dist::SPEC,
    &xfsdist::SPEC,
    &zfsdist::SPEC,
    &biotop::SPEC,
    &cachestat::SPEC,
    &klockstat::SPEC,
    &profile::SPEC,
    &netproc::SPEC,
    &execsnoop::SPEC,
    &syscount::SPEC,
    &cgroup_disk::SPEC,
    &cgroup_runq::SPEC,
];

/// Returns the module that `module = PATH` or `[NAME]` names.
pub fn find(path: &str) -> Option<&'static Spec> {
    MODULES.iter().copied().find(|spec| spec.is_named(path))
}
