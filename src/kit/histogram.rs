//! Histograms of powers of two: names, bounds and labels of their slots.

/// The instance domain of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log2 {
    /// How many slots the programs have.
    pub slots: u32,
}

impl Log2 {
    /// What a slot holds, both ends included: 0-1, 2-3, 4-7, ...
    pub fn bounds(slot: u32) -> (u64, u64) {
        let low = if slot == 0 { 0 } else { 1u64.checked_shl(slot).unwrap_or(u64::MAX) };
        (low, low.max(1) + (low.max(1) - 1))
    }

    /// The slot a name stands for.
    pub fn slot(name: &str) -> Option<u32> {
        (0..64).find(|&slot| Log2::name(slot) == name)
    }

    /// Number of buckets up to the highest that counted; at least one, so that a client sees the metric before the first event.
    pub fn used(counts: &[u64]) -> usize {
        counts.iter().rposition(|&count| count > 0).map_or(1, |highest| highest + 1)
    }

    /// The instance name: decimal, one dash, no unit (Grafana's heatmap takes what follows the dash for the upper bound).
    pub fn name(slot: u32) -> String {
        let (low, high) = Log2::bounds(slot);
        format!("{low}-{high}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_meet_without_gap_or_overlap() {
        let names: Vec<String> = (0..5).map(Log2::name).collect();
        assert_eq!(names, ["0-1", "2-3", "4-7", "8-15", "16-31"]);
        for slot in 1..64 {
            assert_eq!(Log2::bounds(slot).0, Log2::bounds(slot - 1).1.wrapping_add(1));
        }
        assert_eq!(Log2::bounds(63).1, u64::MAX);
        assert_eq!(Log2::slot("16-31"), Some(4));
    }
}
