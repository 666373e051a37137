//! Histograms of powers of two: names, bounds and labels of their buckets.

/// The instance domain of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log2 {
    /// Number of buckets in the BPF programs.
    pub buckets: u32,
    /// Unit of the bounds, in the plural.
    pub unit: &'static str,
}

impl Log2 {
    /// Histograms of microseconds that the programs count (bpf/shared/hist.bpf.h): up to 71 minutes.
    pub const MICROSECONDS: Log2 = Log2 { buckets: 32, unit: "microseconds" };
    /// Histograms of bytes: the last bucket has all from 2 GiB on.
    pub const BYTES: Log2 = Log2 { buckets: 32, unit: "bytes" };

    /// Returns the bounds of a bucket, both inclusive: 0-1, 2-3, 4-7, ...
    pub fn bounds(bucket: u32) -> (u64, u64) {
        let low = if bucket == 0 { 0 } else { 1u64.checked_shl(bucket).unwrap_or(u64::MAX) };
        (low, low.max(1) + (low.max(1) - 1))
    }

    /// Returns the bucket with this instance name.
    pub fn bucket(name: &str) -> Option<u32> {
        (0..64).find(|&bucket| Log2::name(bucket) == name)
    }

    /// Returns the number of buckets up to the highest that counted; at least one, so that a client sees the metric
    /// before the first event.
    pub fn used(counts: &[u64]) -> usize {
        counts.iter().rposition(|&count| count > 0).map_or(1, |highest| highest + 1)
    }

    /// Returns the instance name: decimal, one dash, no unit (Grafana's heatmap takes the part after the dash for the
    /// upper bound).
    pub fn name(bucket: u32) -> String {
        let (low, high) = Log2::bounds(bucket);
        format!("{low}-{high}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_without_gap_or_overlap() {
        let names: Vec<String> = (0..5).map(Log2::name).collect();
        assert_eq!(names, ["0-1", "2-3", "4-7", "8-15", "16-31"]);
        for bucket in 1..64 {
            assert_eq!(Log2::bounds(bucket).0, Log2::bounds(bucket - 1).1.wrapping_add(1));
        }
        assert_eq!(Log2::bounds(63).1, u64::MAX);
        assert_eq!(Log2::bucket("16-31"), Some(4));
    }
}
