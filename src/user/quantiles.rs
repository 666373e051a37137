//! Quantiles of a histogram's counts in the last seconds. A quantile is the upper bound of its bucket: it is too high by less than
//! the width of that bucket.

use super::series::Texts;
use crate::kit::{Window, QUANTILES};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Largest number of series with a window; further ones have no quantiles.
const MOST: usize = 10_000;

/// The windows of a histogram's series.
pub struct Windows {
    window: Window,
    since: Instant,
    has_begun: bool,
    series: HashMap<Texts, Counted>,
}

/// Counts of a series.
#[derive(Default)]
struct Counted {
    last: Vec<u64>,
    /// Counts by part of the window, the latest last; parts without a count are left out.
    parts: VecDeque<(u64, Vec<u64>)>,
}

impl Windows {
    /// Makes windows of this length.
    pub fn new(length: Duration) -> Windows {
        Windows { window: Window(length), since: Instant::now(), has_begun: false, series: HashMap::new() }
    }

    /// Adds the current counts of all series, by bucket. Counts before the first call are no part of the window.
    pub fn take(&mut self, counts: &BTreeMap<Texts, Vec<u64>>, now: Instant) {
        let part = self.window.part(now.duration_since(self.since));
        self.series.retain(|texts, _| counts.contains_key(texts));
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        for (texts, counts) in counts {
            if !self.series.contains_key(texts) && self.series.len() >= MOST {
                continue;
            }
            let counted = self.series.entry(texts.clone()).or_default();
            counted.take(part, counts, is_first);
            counted.parts.retain(|(number, _)| self.window.holds(*number, part));
        }
    }

    /// Returns the indices of the buckets of a series' p50, p90, p99, p999 and max; `None` if it counted nothing.
    pub fn buckets(&self, texts: &Texts) -> Option<[usize; 5]> {
        let counted = self.series.get(texts)?;
        let mut sums = vec![0_u64; counted.last.len()];
        for (_, counts) in &counted.parts {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        }
        let total: u128 = sums.iter().map(|count| u128::from(*count)).sum();
        let place = |share: u64| {
            // The lowest bucket that as many values are in or below.
            let wanted = (total * u128::from(share)).div_ceil(1000).max(1);
            let mut below = 0;
            sums.iter().position(|count| {
                below += u128::from(*count);
                below >= wanted
            })
        };
        let [a, b, c, d, e] = QUANTILES.map(place);
        Some([a?, b?, c?, d?, e?])
    }
}

impl Counted {
    fn take(&mut self, part: u64, counts: &[u64], is_first: bool) {
        let before = |bucket: usize| self.last.get(bucket).copied().unwrap_or(0);
        // A counter that went back has begun again.
        let more = |(bucket, count): (usize, &u64)| count.checked_sub(before(bucket)).unwrap_or(*count);
        let more: Vec<u64> = counts.iter().enumerate().map(more).collect();
        self.last = counts.to_vec();
        if is_first || more.iter().all(|count| *count == 0) {
            return;
        }
        match self.parts.back_mut() {
            Some((number, sums)) if *number == part => {
                sums.resize(sums.len().max(more.len()), 0);
                sums.iter_mut().zip(&more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
            }
            _ => self.parts.push_back((part, more)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(counts: &[u64]) -> BTreeMap<Texts, Vec<u64>> {
        BTreeMap::from([(vec![b"a".to_vec()], counts.to_vec())])
    }

    #[test]
    fn quantiles_are_the_buckets_of_the_values_of_the_window() {
        let mut windows = Windows::new(Duration::from_secs(60));
        let at = |windows: &Windows, seconds| windows.since + Duration::from_secs(seconds);
        let a = vec![b"a".to_vec()];
        windows.take(&series(&[1000, 0, 0, 0, 0]), at(&windows, 0));
        assert_eq!(windows.buckets(&a), None, "what was there before is not of the window");
        // 1,000 values: 500 in bucket 1, 400 in 2, 90 in 3, 9 in 4, one in 5; the array grows as the program adds keys.
        windows.take(&series(&[1000, 500, 400, 90, 9, 1]), at(&windows, 1));
        assert_eq!(windows.buckets(&a), Some([1, 2, 3, 4, 5]));
        windows.take(&series(&[1000, 501, 400, 90, 9, 1]), at(&windows, 30));
        assert_eq!(windows.buckets(&a), Some([1, 2, 3, 4, 5]));
        windows.take(&series(&[1000, 501, 400, 90, 9, 1]), at(&windows, 61));
        assert_eq!(windows.buckets(&a), Some([1; 5]), "only the value of second 30 is left");
        windows.take(&series(&[1000, 501, 400, 90, 9, 1]), at(&windows, 95));
        assert_eq!(windows.buckets(&a), None);
        windows.take(&series(&[0, 0, 3]), at(&windows, 96));
        assert_eq!(windows.buckets(&a), Some([2; 5]), "the program's map began again");
        assert_eq!(windows.buckets(&vec![]), None);
    }
}
