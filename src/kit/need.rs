//! Privileges beyond loading programs and reading their maps.

/// Work of a module that requires capabilities; `src/privilege` lists which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Processes of all users in /proc: their existence, names and command lines.
    Processes,
    /// Open and mapped files of processes: `/proc/PID/{fd,maps,map_files,root}`, and files that only their owners may
    /// read.
    FilesOfProcesses,
    /// The list of tracepoints and functions in tracefs.
    Tracefs,
    /// Addresses of the kernel's functions.
    KernelSymbols,
    /// Perf events: sampling.
    PerfEvents,
    /// Probes in programs and libraries: uprobes and USDT.
    UserProbes,
    /// Programs that run for cgroups: attaching them.
    CgroupPrograms,
}

impl Need {
    /// All needs.
    pub const ALL: [Need; 7] = [
        Need::Processes,
        Need::FilesOfProcesses,
        Need::Tracefs,
        Need::KernelSymbols,
        Need::PerfEvents,
        Need::UserProbes,
        Need::CgroupPrograms,
    ];
}
