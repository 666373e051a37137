//! Where modules attach. A hook has tiers, best first; the loader takes the first tier the kernel accepts, found by trial.

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
