//! Where modules attach. A hook has tiers, best first; the loader takes the first tier the kernel accepts, found by trial.
//! A hook can also be a template (`ON_EACH_*` in bpf/): then the configuration names its targets.

use std::fmt;
use std::path::PathBuf;

/// What a hook needs that every kernel with types of its own has.
pub const NEEDS_BTF: &str = "a kernel with BTF";

/// A place in the kernel and the ways to attach there.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// What the log and the tables call it.
    pub name: &'static str,
    /// Each tier is a set of programs that have to attach together.
    pub tiers: &'static [Tier],
    /// What a kernel without it lacks, and what to do: the end of a sentence that begins "needs".
    pub needs: &'static str,
}

/// One way to attach: the names of the programs in the BPF object (build.rs makes them of kind and hook).
#[derive(Debug, PartialEq, Eq)]
pub struct Tier {
    /// `tp_btf`, `raw_tp`, `fentry`, `kprobe`, ...
    pub kind: &'static str,
    /// Programs.
    pub programs: &'static [&'static str],
}

/// What a template is attached to: a place that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An event of tracefs.
    Tracepoint {
        /// Its subsystem.
        category: String,
        /// Its name.
        event: String,
    },
    /// A kernel function.
    Function(String),
    /// A place in a file that processes execute.
    Code {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// Where in the file the counter of its users is, which is above 0 as long as it is attached to; 0: it has none.
        semaphore: u64,
        /// Only in this process, so that others pay nothing; `None`: in all, those to come included.
        process: Option<u32>,
        /// The configuration's name of it.
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

/// A tracepoint: typed (`tp_btf`), else raw with probe reads.
#[macro_export]
macro_rules! tracepoint {
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

/// A kernel function, from entry to return: by a trampoline, else by probes. One that is in a module of the kernel is found
/// if the module is loaded.
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

/// Locations in user code, by the template of a module (`ON_EACH_CODE`).
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

/// How a perf event hook samples (`perf_event_open(2)`, the software CPU clock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Samples a second if `by_frequency`, else nanoseconds of CPU time between two samples.
    pub rate: u64,
    /// What `rate` is.
    pub by_frequency: bool,
    /// One CPU, or all.
    pub cpu: Option<u32>,
}
