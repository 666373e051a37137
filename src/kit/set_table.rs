//! Sizes of set-associative tables in which a key has two possible sets (bpf/shared/set_table.bpf.h).

use super::{table_size, Host, Plan};
use crate::bpf::types::set_numbers;

/// Number of ways of a set.
const WAYS: usize = size_of::<set_numbers>() / 16;

/// Sizes a table for this many entries, with spare room; returns the mask that selects a set.
pub fn plan_set_table(plan: &mut Plan, map: &'static str, entries: usize) -> u32 {
    let sets = entries.div_ceil(WAYS).next_power_of_two();
    plan.entries(map, sets);
    sets as u32 - 1
}

/// Returns the entries for a table of calls in progress by thread. Most threads are created after the agent, nearly all
/// if it starts at boot; so memory limits their number. The smallest table holds 4000 concurrent calls.
pub fn by_thread(host: &Host) -> usize {
    table_size((host.threads * 8).max(host.memory), 1 << 14, 1 << 17)
}

/// Returns the entries for a table of TCP sockets: 16000 on the smallest machine, more with more memory.
pub fn by_socket(host: &Host) -> usize {
    table_size(host.memory * 2, 1 << 16, 1 << 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes like `number_hash` of bpf/shared/owned.bpf.h.
    fn hash(number: u64) -> u32 {
        let number = (number ^ number >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = (number ^ number >> 29).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (number >> 32) as u32
    }

    /// Returns how many keys find their first set full, and how many both, in a table planned for `entries`.
    fn full(entries: usize, keys: impl Iterator<Item = u64>) -> [usize; 2] {
        let mut plan = Plan::default();
        let mask = plan_set_table(&mut plan, "test", entries);
        assert_eq!(plan.entries, [("test", mask + 1)]);
        let mut taken = vec![0; mask as usize + 1];
        let mut found = [0, 0];
        for hash in keys.map(hash) {
            let sets = [hash & mask, hash >> 16 & mask].map(|set| set as usize);
            let first = sets.into_iter().position(|set| taken[set] < WAYS);
            match first {
                Some(nth) => taken[sets[nth]] += 1,
                None => found[1] += 1,
            }
            found[0] += usize::from(first != Some(0));
        }
        found
    }

    fn displaced(entries: usize, keys: impl Iterator<Item = u64>) -> usize {
        full(entries, keys)[1]
    }

    fn small() -> Host {
        Host { cpus: 1, disks: 0, threads: 100, requests: 0, memory: 512, ..Host::SMALL }
    }

    #[test]
    fn ids_that_differ_by_a_power_of_two_displace_none() {
        for step in (0..9).map(|power| 1 << power) {
            let threads = (0..4000).map(|i| 1000 + i * step);
            assert_eq!(displaced(by_thread(&small()), threads.clone().map(|thread| thread << 32 | 1)), 0, "{step}");
            assert_eq!(displaced(by_thread(&small()), threads.map(|thread| thread << 16 | 7)), 0, "{step}");
        }
    }

    /// `set_number` may leave an earlier number in the second set of a key, as its comment says; few keys use their
    /// second set.
    #[test]
    fn with_4000_calls_at_once_one_in_1000_uses_its_second_set() {
        let calls = (0..4000).map(|i| (1000 + i) << 32 | 1);
        let [second, _] = full(by_thread(&small()), calls);
        assert!(second <= 4, "{second}");
    }

    #[test]
    fn sockets_side_by_side_in_slabs_have_places_of_their_own() {
        for size in [2048, 2304, 2432] {
            let slab = |nth: u64| 0xffff_8881_0000_0000 + (nth / 13) * 0x8000 + (nth % 13) * size;
            assert_eq!(displaced(by_socket(&small()), (0..16000).map(slab)), 0, "{size}");
        }
    }

    #[test]
    fn what_is_planned_for_one_entry_is_one_set() {
        assert_eq!(plan_set_table(&mut Plan::default(), "test", 1), 0);
    }
}
