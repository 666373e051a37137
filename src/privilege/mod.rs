//! Least privilege: what the agent holds while it loads, and what it keeps afterwards.
//!
//! The agent is a program that reads what untrusted processes choose. So once its modules are loaded it gives up what they do not
//! need any more: capabilities, the right to gain others, and system calls that it never makes.

mod calls;
mod capabilities;

pub use calls::limit_calls;
use calls::limit_calls_to_statistics;
pub use capabilities::{capabilities, hold, to_load, to_run, to_write, write_as};

use caps::{CapSet, Capability, CapsHashSet};
use std::io;

/// True if switching program statistics on later takes a process that keeps CAP_SYS_ADMIN: the agent has it now, and drops it.
pub fn loses_statistics(to_run: &CapsHashSet) -> bool {
    let has = caps::has_cap(None, CapSet::Permitted, Capability::CAP_SYS_ADMIN);
    has.unwrap_or(false) && !to_run.contains(&Capability::CAP_SYS_ADMIN)
}

/// Confines this process, which must have one thread, to CAP_SYS_ADMIN and the system calls that program statistics take.
pub fn confine_to_statistics() -> io::Result<()> {
    hold(&CapsHashSet::from([Capability::CAP_SYS_ADMIN]))?;
    limit_calls_to_statistics().map_err(|error| io::Error::other(error.to_string()))
}

/// Confines this process, which must have one thread, and the bpftrace that it starts to the capabilities that bpftrace takes.
pub fn confine_to_scripts() -> io::Result<()> {
    use Capability::*;
    let loading = [CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, CAP_IPC_LOCK];
    let reading = [CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYSLOG];
    hold(&loading.into_iter().chain(reading).collect()).map(drop)
}

/// Names of capabilities as capabilities(7) has them, in its order; "none" without any.
pub fn names(capabilities: &CapsHashSet) -> String {
    let mut sorted: Vec<_> = capabilities.iter().collect();
    sorted.sort_by_key(|capability| capability.index());
    match sorted.is_empty() {
        true => "none".into(),
        false => sorted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
