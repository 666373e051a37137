//! What takes a privilege beyond loading programs and reading their maps.

/// Work of a module for which the kernel asks for capabilities. `src/privilege` has which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Processes of all accounts in /proc: whether they live, their names and command lines.
    Processes,
    /// What processes have open or mapped: `/proc/PID/{fd,maps,map_files,root}`, and files that only their owners may read.
    FilesOfProcesses,
    /// The list of tracepoints and functions in tracefs.
    Tracefs,
    /// Addresses of the kernel's functions.
    KernelSymbols,
    /// Perf events: sampling.
    PerfEvents,
    /// Probes in programs and libraries: uprobes and USDT.
    UserProbes,
}

impl Need {
    /// Every one there is.
    pub const ALL: [Need; 6] = [
        Need::Processes,
        Need::FilesOfProcesses,
        Need::Tracefs,
        Need::KernelSymbols,
        Need::PerfEvents,
        Need::UserProbes,
    ];
}
