//! Counters by CPU as far as memory allows (bpf/shared/groups.bpf.h).

use crate::module_log;

/// `1 << this` CPUs share their counters, so that all take at most so many bytes, or else are shared by all CPUs. `bytes` is what one
/// group of CPUs takes.
pub fn cpu_shift(cpus: usize, bytes: usize, most: usize) -> u32 {
    let fits = |shift: u32| groups(cpus, shift) == 1 || groups(cpus, shift).saturating_mul(bytes) <= most;
    (0..usize::BITS - 1).find(|&shift| fits(shift)).unwrap_or(usize::BITS - 1)
}

/// How many groups there are.
pub fn groups(cpus: usize, shift: u32) -> usize {
    cpus.div_ceil(1 << shift)
}

/// Says so in the log where CPUs share counters of `what`; `slower` is when that costs.
pub fn tell(shift: u32, what: &str, slower: &str) {
    if shift > 0 {
        module_log!(info, "{} CPUs share the counters of {what} to save memory: {slower}.", 1 << shift);
    }
}
