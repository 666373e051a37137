//! Places where modules attach. A hook has tiers, best first; the loader takes the first tier that the kernel accepts,
//! found by trial. A hook can also be a template (`ON_EACH_*` in bpf/), whose targets the configuration names.

use std::fmt;
use std::path::PathBuf;

/// Requirement of hooks that every kernel with BTF meets.
pub const NEEDS_BTF: &str = "a kernel with BTF";

/// A place in the kernel and the ways to attach there.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name in the log and in tables.
    pub name: &'static str,
    /// Tiers, each a set of programs that attach together or not at all.
    pub tiers: &'static [Tier],
    /// The kernel feature it needs, and a remedy: completes a sentence that begins "needs".
    pub needs: &'static str,
}

/// One way to attach: the names of the programs in the BPF object, which build.rs builds from kind and hook.
#[derive(Debug, PartialEq, Eq)]
pub struct Tier {
    /// Kind: `tp_btf`, `raw_tp`, `fentry`, `kprobe`, ...
    pub kind: &'static str,
    /// Programs.
    pub programs: &'static [&'static str],
}

/// A place named in the configuration, to which a template is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An event of tracefs.
    Tracepoint {
        /// Subsystem.
        category: String,
        /// Name.
        event: String,
    },
    /// A kernel function.
    Function(String),
    /// A place in a file that processes execute.
    Code {
        /// File.
        path: PathBuf,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Offset of the semaphore in the file, in bytes; 0 without one. The semaphore counts its users: above 0 while
        /// something is attached.
        semaphore: u64,
        /// The only process to attach to, so that others pay nothing; `None`: all, including future ones.
        process: Option<u32>,
        /// Name in the configuration.
        name: String,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tracepoint { category, event } => write!(f, "{category}:{event}"),
            Target::Function(name) => f.write_str(name),
            Target::Code { path, offset, name, .. } => write!(f, "{name} ({} at {offset:#x})", path.display()),
        }
    }
}

/// A tracepoint: typed (`tp_btf`), else raw with probe reads. The kernel needs BTF for it, unless something else is named.
#[macro_export]
macro_rules! tracepoint {
    ($name:literal) => {
        $crate::tracepoint!($name, $crate::kit::NEEDS_BTF)
    };
    ($name:literal, $needs:expr) => {
        $crate::kit::Hook {
            name: $name,
            tiers: &[
                $crate::kit::Tier { kind: "tp_btf", programs: &[concat!("tp__", $name)] },
                $crate::kit::Tier { kind: "raw_tp", programs: &[concat!("raw__", $name)] },
            ],
            needs: $needs,
        }
    };
}

/// A kernel function, from entry to return: by a trampoline, else by probes. A function of a kernel module is found
/// only while that is loaded.
#[macro_export]
macro_rules! function {
    ($name:literal, $needs:expr) => {
        $crate::kit::Hook {
            name: $name,
            tiers: &[
                $crate::kit::Tier { kind: "fexit", programs: &[concat!("fentry__", $name), concat!("fexit__", $name)] },
                $crate::kit::Tier {
                    kind: "kretprobe",
                    programs: &[concat!("kprobe__", $name), concat!("kretprobe__", $name)],
                },
            ],
            needs: $needs,
        }
    };
}

/// A kernel function's entry: by a trampoline, else by a probe.
#[macro_export]
macro_rules! function_entry {
    ($name:literal, $needs:expr) => {
        $crate::kit::Hook {
            name: $name,
            tiers: &[
                $crate::kit::Tier { kind: "fentry", programs: &[concat!("fentry__", $name)] },
                $crate::kit::Tier { kind: "kprobe", programs: &[concat!("kprobe__", $name)] },
            ],
            needs: $needs,
        }
    };
}

/// A kernel function's return, with its arguments: by a trampoline, which has them there, else by probes of both ends.
#[macro_export]
macro_rules! function_return {
    ($name:literal, $needs:expr) => {
        $crate::kit::Hook {
            name: $name,
            tiers: &[
                $crate::kit::Tier { kind: "fexit", programs: &[concat!("fexit__", $name)] },
                $crate::kit::Tier {
                    kind: "kretprobe",
                    programs: &[concat!("kprobe__", $name), concat!("kretprobe__", $name)],
                },
            ],
            needs: $needs,
        }
    };
}

/// An iterator of the kernel over its objects (`ON_WALK`), which the agent reads with [`crate::kit::Kernel::walk`].
#[macro_export]
macro_rules! iterator {
    ($name:literal, $needs:expr) => {
        $crate::kit::Hook {
            name: concat!("bpf_iter_", $name),
            tiers: &[$crate::kit::Tier { kind: "iter", programs: &[concat!("iter__", $name)] }],
            needs: $needs,
        }
    };
}

/// Locations in user code, for a module's template (`ON_EACH_CODE`).
#[macro_export]
macro_rules! user_code {
    ($name:literal, $module:literal) => {
        $crate::kit::Hook {
            name: $name,
            tiers: &[$crate::kit::Tier { kind: "uprobe", programs: &[concat!("each_uprobe__", $module)] }],
            needs: "a kernel with CONFIG_UPROBE_EVENTS",
        }
    };
}

/// Sampling parameters of a perf event hook (`perf_event_open(2)`, the software CPU clock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Samples per second if `by_frequency`, else nanoseconds of CPU time between samples.
    pub rate: u64,
    /// True if `rate` is a frequency, false if it is a period.
    pub by_frequency: bool,
    /// The CPU to sample; `None`: all.
    pub cpu: Option<u32>,
}
