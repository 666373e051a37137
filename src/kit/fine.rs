//! Log-linear histograms of times, as the programs count them (bpf/shared/fine.bpf.h): bounds, names, quantiles.

use super::{Buckets, Log2, Row, SeriesLabel, SeriesLabels};
use crate::bpf::types::fine_hist;
use std::ops::Range;
use std::sync::LazyLock;

/// Counts by bucket.
pub type FineCounts = [u64; Fine::BUCKETS];

/// The buckets: 16 to the octave from 1 us to 2^27 us, 16 of equal width below, one per octave above.
pub struct Fine;

/// A bucket that is served to clients.
pub struct ServedBucket {
    /// Identifier, the same for buckets of the same name.
    pub id: u32,
    /// `LOW-HIGH` in microseconds, both ends included.
    pub name: String,
    /// Labels of its instances: `lower_bound` and `upper_bound` in microseconds, both included. Whole bounds are numbers.
    pub labels: SeriesLabels,
    /// Upper bound in seconds, for Prometheus.
    pub le: String,
    /// Labels of its instances for Prometheus: `le`.
    pub labels_in_seconds: SeriesLabels,
    /// Fine buckets that it is the sum of.
    pub of: Range<usize>,
}

/// First bound, in sixteenths of a microsecond, above which a bucket is as wide as an octave.
const TOP: u64 = 1 << 31;
/// The number of the first bucket that is an octave.
const OCTAVES: usize = 448;
/// The first octave of microseconds that the last served bucket holds.
const LAST_SERVED: u32 = 25;
/// Identifiers of fine buckets and of quarters start at these numbers; octaves start at 0.
const FINE_IDS: u32 = 64;
const QUARTER_IDS: u32 = 640;

impl Fine {
    /// Words of a histogram.
    pub const BUCKETS: usize = 456;
    /// Words in use.
    pub const USED: usize = 453;
    /// Largest error of a quantile between 1 us and 2^27 us, half the width of a bucket. Rounding to microseconds adds
    /// to it.
    pub const ERROR: f64 = 0.032;

    /// Returns the bucket of a time.
    pub fn bucket(ns: u64) -> usize {
        let v = (u128::from(ns) * 16 / 1000) as u64;
        match v {
            0..16 => v as usize,
            16..TOP => {
                let octave = v.ilog2() - 4;
                ((octave as usize) << 4) + (v >> octave) as usize
            }
            _ => (OCTAVES + v.ilog2() as usize - 31).min(Fine::USED - 1),
        }
    }

    /// Returns the bounds of a bucket in nanoseconds, both inclusive.
    pub fn bounds(bucket: usize) -> (u64, u64) {
        // The first nanosecond of a sixteenth.
        let ns = |v: u64| (v * 125).div_ceil(2);
        let high = if bucket + 1 < Fine::USED { ns(Fine::low(bucket + 1)) - 1 } else { u64::MAX };
        (ns(Fine::low(bucket)), high)
    }

    /// Returns the lower bound of a bucket in sixteenths of a microsecond.
    fn low(bucket: usize) -> u64 {
        match bucket {
            0..16 => bucket as u64,
            16..OCTAVES => ((bucket & 15 | 16) as u64) << ((bucket >> 4) - 1),
            _ => TOP << (bucket.min(Fine::USED - 1) - OCTAVES),
        }
    }

    /// Returns the middle of a bucket in nanoseconds: at most half its width from every time in it. The last bucket is
    /// open, so its lower bound is returned.
    fn middle(bucket: usize) -> u64 {
        match Fine::bounds(bucket) {
            (low, u64::MAX) => low,
            (low, high) => low + (high - low).div_ceil(2),
        }
    }

    /// Returns the power of two of hist.bpf.h that contains a bucket.
    pub fn octave(bucket: usize) -> usize {
        match bucket {
            0..32 => 0,
            32..OCTAVES => (bucket >> 4) - 1,
            _ => bucket.min(Fine::USED - 1) - OCTAVES + 27,
        }
    }

    /// Sums counts by powers of two, as in hist.bpf.h.
    pub fn octaves(counts: &FineCounts) -> [u64; 32] {
        let mut octaves = [0u64; 32];
        for (bucket, &count) in counts.iter().enumerate().take(Fine::USED) {
            let octave = &mut octaves[Fine::octave(bucket)];
            *octave = octave.wrapping_add(count);
        }
        octaves
    }

    /// Returns the time in nanoseconds that `permille` thousandths of the times do not exceed; `None` without times.
    pub fn quantile(counts: &[u64], permille: u64) -> Option<u64> {
        Fine::quantiles(counts, [permille]).map(|[quantile]| quantile)
    }

    /// Returns several quantiles in one pass, see [`Fine::quantile`]; `permille` ascends.
    pub fn quantiles<const N: usize>(counts: &[u64], permille: [u64; N]) -> Option<[u64; N]> {
        let total: u128 = counts.iter().map(|&count| u128::from(count)).sum();
        let wanted = permille.map(|permille| (total * u128::from(permille)).div_ceil(1000).max(1));
        let (mut quantiles, mut found, mut below) = ([0; N], 0, 0);
        for (bucket, &count) in counts.iter().enumerate().filter(|(_, &count)| count > 0) {
            below += u128::from(count);
            while found < N && below >= wanted[found] {
                quantiles[found] = Fine::middle(bucket);
                found += 1;
            }
        }
        (found == N).then_some(quantiles)
    }

    /// Returns the buckets to serve: powers of two, four to each power, or all below 2^25 us. The last one is open.
    pub fn served(buckets: Buckets) -> &'static [ServedBucket] {
        static SERVED: LazyLock<[Vec<ServedBucket>; 3]> =
            LazyLock::new(|| [octaves_served(), parts_served(QUARTER_IDS, 4), parts_served(FINE_IDS, 1)]);
        &SERVED[buckets as usize]
    }

    /// Returns the number of times in a row's histogram.
    pub fn count(row: Row<'_, fine_hist>) -> u64 {
        row.words(fine_hist::buckets).fold(0, u64::wrapping_add)
    }

    /// Sums the histograms of rows; returns the counts by bucket and the sum of the times in nanoseconds.
    pub fn total<'a>(rows: impl Iterator<Item = Row<'a, fine_hist>>) -> (FineCounts, u64) {
        let mut counts = [0; Fine::BUCKETS];
        let sum = rows.fold(0, |sum: u64, row| sum.wrapping_add(Fine::add(row, &mut counts)));
        (counts, sum)
    }

    /// Adds the histogram of a row to counts; returns the sum of its times in nanoseconds, which is read first.
    pub fn add(row: Row<'_, fine_hist>, counts: &mut FineCounts) -> u64 {
        let sum = row.get(fine_hist::sum);
        for (count, more) in counts.iter_mut().zip(row.words(fine_hist::buckets)) {
            *count = count.wrapping_add(more);
        }
        sum
    }
}

impl ServedBucket {
    /// Makes a bucket with these bounds in sixteenths of a microsecond.
    fn new(id: u32, (low, high): (u64, u64), le: String, of: Range<usize>) -> ServedBucket {
        let texts = [low, high].map(|bound| (bound as f64 / 16.0).to_string());
        let whole = |bound: u64| i64::try_from(bound / 16).ok().filter(|_| bound.is_multiple_of(16));
        let label = |bound: u64, text: &String| {
            whole(bound).map_or_else(|| SeriesLabel::Text(text.clone()), SeriesLabel::Number)
        };
        let labels = vec![("lower_bound", label(low, &texts[0])), ("upper_bound", label(high, &texts[1]))];
        let labels_in_seconds = vec![("le", SeriesLabel::Text(le.clone()))];
        ServedBucket { id, name: texts.join("-"), labels, le, labels_in_seconds, of }
    }

    /// Makes the bucket that is the sum of these, with an upper bound in whole microseconds if `is_whole`.
    fn of(id: u32, of: Range<usize>, is_whole: bool) -> ServedBucket {
        let (low, end) = (Fine::low(of.start), Fine::low(of.end));
        let high = if is_whole { (end - 1) / 16 * 16 } else { end - 1 };
        // A double has sixteenths exactly, and its shortest decimal tells it apart.
        ServedBucket::new(id, (low, high), (end as f64 / 16e6).to_string(), of)
    }
}

fn octaves_served() -> Vec<ServedBucket> {
    let first = |octave: u32| if octave == 0 { 0 } else { (octave as usize + 1) << 4 };
    let octave = |id: u32| ServedBucket::of(id, first(id)..first(id + 1), true);
    (0..LAST_SERVED).map(octave).chain([last_served()]).collect()
}

/// Served buckets of `size` fine buckets each. With 4 they are quarters of an octave; all times below a microsecond
/// share one bucket.
fn parts_served(ids: u32, size: usize) -> Vec<ServedBucket> {
    let (last, first) = (last_served(), if size > 1 { 16 } else { 0 });
    let begins = (first..last.of.start).step_by(size);
    let parts = begins.map(|begin| begin..begin + size);
    let below = (first > 0).then_some(0..first);
    let served = below.into_iter().chain(parts).map(|of| {
        let (id, is_whole) = (ids + (of.start / size) as u32, Fine::low(of.start) >= 256);
        ServedBucket::of(id, of, is_whole)
    });
    served.chain([last]).collect()
}

/// The open bucket. Its name has a number at both ends, since clients expect a number after the dash.
fn last_served() -> ServedBucket {
    let (low, high) = (Log2::bounds(LAST_SERVED).0, Log2::bounds(31).1);
    let of = (LAST_SERVED as usize + 1) << 4..Fine::BUCKETS;
    ServedBucket::new(LAST_SERVED, (16 * low, 16 * high), "+Inf".into(), of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_as_many_in_the_programs() {
        assert_eq!(size_of::<fine_hist>(), 8 * (1 + Fine::BUCKETS));
        let header = include_str!("../../bpf/shared/fine.bpf.h");
        assert!(header.contains(&format!("\n#define FINE_BUCKETS {} ", Fine::BUCKETS)));
    }

    #[test]
    fn fine_buckets_meet_without_gap_or_overlap() {
        assert_eq!((Fine::bounds(0).0, Fine::bounds(Fine::USED - 1).1), (0, u64::MAX));
        for bucket in 0..Fine::USED {
            let (low, high) = Fine::bounds(bucket);
            assert_eq!((Fine::bucket(low), Fine::bucket(high)), (bucket, bucket), "{low} to {high}");
            if bucket > 0 {
                assert_eq!(Fine::bounds(bucket - 1).1 + 1, low);
            }
        }
    }

    #[test]
    fn octaves_of_fine_buckets_are_the_powers_of_two() {
        for octave in 0..32 {
            let (low, high) = Log2::bounds(octave as u32);
            for ns in [low * 1000, high * 1000 + 999] {
                assert_eq!(Fine::octave(Fine::bucket(ns)), octave, "{ns}");
            }
        }
        let mut counts = [0; Fine::BUCKETS];
        [0, 1_999, 2_000, 3_999, u64::MAX].iter().for_each(|&ns| counts[Fine::bucket(ns)] += 1);
        let octaves = Fine::octaves(&counts);
        assert_eq!((octaves[0], octaves[1], octaves[31]), (2, 2, 1));
    }

    #[test]
    fn served_buckets_are_dense_up_to_a_common_open_top() {
        for buckets in [Buckets::Log2, Buckets::Quarters, Buckets::Fine] {
            let served = Fine::served(buckets);
            assert_eq!((served[0].of.start, served[served.len() - 1].of.end), (0, Fine::BUCKETS));
            assert!(served.windows(2).all(|pair| pair[0].of.end == pair[1].of.start && pair[0].id != pair[1].id));
            assert_eq!(served[served.len() - 1].name, "33554432-4294967295");
        }
        let names =
            |buckets, at: &[usize]| at.iter().map(|&at| Fine::served(buckets)[at].name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(Buckets::Log2, &[0, 1, 2, 24]), ["0-1", "2-3", "4-7", "16777216-33554431"]);
        let quarters = ["0-0.9375", "1-1.1875", "1.75-1.9375", "2-2.4375", "16-19", "28-31", "29360128-33554431"];
        assert_eq!(names(Buckets::Quarters, &[0, 1, 4, 5, 17, 20, 100]), quarters);
        let fine = ["0-0", "0.9375-0.9375", "1-1", "2-2.0625", "16-16", "32-33", "17825792-18874367"];
        assert_eq!(names(Buckets::Fine, &[0, 15, 16, 32, 80, 96, 401]), fine);
        let counts = [Buckets::Log2, Buckets::Quarters, Buckets::Fine].map(|buckets| Fine::served(buckets).len());
        assert_eq!(counts, [26, 102, 417]);
        let seconds =
            |buckets, at: &[usize]| at.iter().map(|&at| Fine::served(buckets)[at].le.as_str()).collect::<Vec<_>>();
        assert_eq!(seconds(Buckets::Quarters, &[0, 1, 100, 101]), ["0.000001", "0.00000125", "33.554432", "+Inf"]);
        assert_eq!(seconds(Buckets::Log2, &[0, 1, 24, 25]), ["0.000002", "0.000004", "33.554432", "+Inf"]);
        assert_eq!(seconds(Buckets::Fine, &[0, 16, 32, 416]), ["0.0000000625", "0.0000010625", "0.000002125", "+Inf"]);
    }

    /// Quantiles from the buckets differ from those of the samples by at most the error that the help text states.
    #[test]
    fn labels_of_a_bucket_are_its_bounds() {
        let labels = |buckets, id| {
            let bucket = Fine::served(buckets).iter().find(|bucket| bucket.id == id).unwrap();
            (&bucket.name[..], bucket.labels.clone(), bucket.labels_in_seconds.clone())
        };
        let expected = |low, high, le: &str| {
            (vec![("lower_bound", low), ("upper_bound", high)], vec![("le", SeriesLabel::Text(le.into()))])
        };
        let (number, text) = (SeriesLabel::Number, |text: &str| SeriesLabel::Text(text.into()));
        for (buckets, id, name, (bounds, le)) in [
            (Buckets::Log2, 0, "0-1", expected(number(0), number(1), "0.000002")),
            (Buckets::Log2, 4, "16-31", expected(number(16), number(31), "0.000032")),
            (
                Buckets::Log2,
                LAST_SERVED,
                "33554432-4294967295",
                expected(number(1 << 25), number(u32::MAX.into()), "+Inf"),
            ),
            (Buckets::Fine, FINE_IDS + 1, "0.0625-0.0625", expected(text("0.0625"), text("0.0625"), "0.000000125")),
            (Buckets::Quarters, QUARTER_IDS, "0-0.9375", expected(number(0), text("0.9375"), "0.000001")),
        ] {
            assert_eq!(labels(buckets, id), (name, bounds, le));
        }
    }

    #[test]
    fn quantiles_are_as_near_as_their_help_says() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let samples: [Vec<u64>; 4] = [
            (1..=10_000).map(|n| n * 1_000).collect(),
            (0..10_000).map(|_| 1_000 + (1_000 << (random() % 20)) * (random() % 1000) / 1000).collect(),
            (0..5_000)
                .map(|n| if n % 10 == 0 { 9_000_000 + random() % 100_000 } else { 80_000 + random() % 9_000 })
                .collect(),
            vec![123_456_789],
        ];
        for mut sample in samples {
            let mut counts = [0; Fine::BUCKETS];
            sample.iter().for_each(|&ns| counts[Fine::bucket(ns)] += 1);
            sample.sort_unstable();
            for permille in [500, 900, 990, 999, 1000] {
                let exact = sample[(sample.len() * permille as usize).div_ceil(1000) - 1];
                let found = Fine::quantile(&counts, permille).unwrap();
                let error = (found as f64 - exact as f64).abs() / exact as f64;
                assert!(error <= Fine::ERROR, "{permille}: {exact} and {found}: {error}");
            }
        }
        assert_eq!(Fine::quantile(&[0; Fine::BUCKETS], 500), None);
    }

    #[test]
    fn two_modes_stay_two_modes() {
        let mut counts = [0; Fine::BUCKETS];
        for n in 0..1000 {
            counts[Fine::bucket(if n % 2 == 0 { 100_000 + n } else { 110_000 + n })] += 1;
        }
        let modes: Vec<usize> = (0..Fine::USED).filter(|&bucket| counts[bucket] > 0).collect();
        assert_eq!((modes.len(), modes[1] - modes[0] > 1), (2, true), "100 us and 110 us: {modes:?}");
        assert_eq!(Fine::octaves(&counts).iter().filter(|&&count| count > 0).count(), 1, "one power of two");
    }
}
