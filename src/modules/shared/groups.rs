//! Counters by CPU as far as memory allows (bpf/shared/groups.bpf.h).

use crate::module_log;

/// Returns the binary logarithm of the number of CPUs that share counters, so that the counters of all groups take at most `most`
/// bytes, or else are shared by all CPUs. `bytes` is the size of one group's counters.
pub fn cpu_shift(cpus: usize, bytes: usize, most: usize) -> u32 {
    let fits = |shift: u32| groups(cpus, shift) == 1 || groups(cpus, shift).saturating_mul(bytes) <= most;
    (0..usize::BITS - 1).find(|&shift| fits(shift)).unwrap_or(usize::BITS - 1)
}

/// Returns the number of groups of CPUs.
pub fn groups(cpus: usize, shift: u32) -> usize {
    cpus.div_ceil(1 << shift)
}

/// Logs that CPUs share counters of `what`, if they do; `slower` tells when that costs time.
pub fn tell(shift: u32, what: &str, slower: &str) {
    if shift > 0 {
        module_log!(info, "{} CPUs share the counters of {what} to save memory: {slower}.", 1 << shift);
    }
}
