//! Quantiles over the last seconds, from counters that only grow and are read about once a second.

use super::{Fine, FineCounts};
use std::collections::VecDeque;
use std::time::Duration;

/// Quantiles that are served, in thousandths: p50, p90, p99, p999 and max.
pub const QUANTILES: [u64; 5] = [500, 900, 990, 999, 1000];

/// A window of seconds that advances by a twelfth of its length: it never shows anything older, and covers at least
/// eleven twelfths of the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(pub Duration);

/// Number of parts of a window.
const PARTS: u64 = 12;

impl Window {
    /// Returns the part that contains a time.
    pub fn part(self, since_start: Duration) -> u64 {
        let part = (self.0.as_millis() as u64 / PARTS).max(1);
        since_start.as_millis() as u64 / part
    }

    /// True if a part is in the window that ends with part `now`.
    pub fn holds(self, part: u64, now: u64) -> bool {
        part + PARTS > now
    }
}

/// Counters of a histogram at the last look, and the counts in the parts of a window. Memory is used only for buckets
/// that have counted.
#[derive(Debug, Default)]
pub struct Windowed {
    /// First bucket that has counted; [`Windowed::last`] begins with it.
    first: usize,
    last: Vec<u64>,
    /// Counts by part, the latest last; only parts with counts.
    parts: VecDeque<Part>,
    /// True if counts were added or removed since the quantiles were computed.
    is_stale: bool,
    quantiles: Option<[u64; 5]>,
    /// Sum of the times at the last look, kept for the caller.
    pub(super) sum: u64,
}

#[derive(Debug)]
struct Part {
    number: u64,
    /// Buckets that counted, ascending.
    counts: Vec<(u16, u32)>,
}

impl Windowed {
    /// Takes the counters as of now, in this part of the window. Returns the counts since the last look, by bucket.
    pub fn take(&mut self, part: u64, counts: &FineCounts) -> Vec<(u16, u32)> {
        let mut counted = Vec::new();
        for (bucket, &count) in counts.iter().enumerate() {
            let more = count.wrapping_sub(self.before(bucket));
            if more > 0 {
                counted.push((bucket as u16, u32::try_from(more).unwrap_or(u32::MAX)));
            }
        }
        if !counted.is_empty() {
            self.remember(counts);
            self.add(part, &counted);
        }
        self.pass(part);
        counted
    }

    /// Replaces the counters of the last look without counting.
    pub fn skip(&mut self, counts: &FineCounts) {
        self.remember(counts);
    }

    /// Adds counts to this part of the window.
    pub fn add(&mut self, part: u64, counted: &[(u16, u32)]) {
        if counted.is_empty() {
            return;
        }
        match self.parts.back_mut() {
            Some(latest) if latest.number == part => latest.counts = merged(&latest.counts, counted),
            _ => self.parts.push_back(Part { number: part, counts: counted.to_vec() }),
        }
        self.is_stale = true;
    }

    /// Ends the parts before this one, and recomputes the quantiles if counts have changed.
    pub fn pass(&mut self, part: u64) {
        while self.parts.front().is_some_and(|oldest| oldest.number + PARTS <= part) {
            self.parts.pop_front();
            self.is_stale = true;
        }
        if std::mem::take(&mut self.is_stale) {
            self.quantiles = self.measured();
        }
    }

    /// Returns the quantiles of the window in microseconds; `None` while it is empty.
    pub fn quantiles(&self) -> Option<&[u64; 5]> {
        self.quantiles.as_ref()
    }

    /// Returns the counter of a bucket at the last look.
    fn before(&self, bucket: usize) -> u64 {
        bucket.checked_sub(self.first).and_then(|at| self.last.get(at)).copied().unwrap_or(0)
    }

    fn remember(&mut self, counts: &FineCounts) {
        let end = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        self.first = counts.iter().position(|&count| count > 0).unwrap_or(0);
        self.last.clear();
        self.last.extend(&counts[self.first..end]);
        self.last.shrink_to_fit();
    }

    fn measured(&self) -> Option<[u64; 5]> {
        let mut counts = [0u64; Fine::BUCKETS];
        for (bucket, count) in self.parts.iter().flat_map(|part| &part.counts) {
            counts[usize::from(*bucket)] += u64::from(*count);
        }
        Some(Fine::quantiles(&counts, QUANTILES)?.map(|ns| (ns + 500) / 1000))
    }
}

/// Merges two lists of counts, bucket by bucket.
fn merged(one: &[(u16, u32)], other: &[(u16, u32)]) -> Vec<(u16, u32)> {
    let (mut one, mut other) = (one.iter().copied().peekable(), other.iter().copied().peekable());
    let mut all = Vec::with_capacity(one.len().max(other.len()));
    loop {
        let next = match (one.peek(), other.peek()) {
            (None, None) => return all,
            (Some(a), Some(b)) if a.0 == b.0 => (a.0, a.1.saturating_add(b.1)),
            (Some(a), Some(b)) => {
                if a.0 < b.0 {
                    *a
                } else {
                    *b
                }
            }
            (Some(a), None) => *a,
            (None, Some(b)) => *b,
        };
        one.next_if(|(bucket, _)| *bucket == next.0);
        other.next_if(|(bucket, _)| *bucket == next.0);
        all.push(next);
    }
}

/// The highest of what each part of a window has.
pub struct Highest<T> {
    /// Parts of which something is known, the oldest first.
    parts: VecDeque<(u64, T)>,
}

impl<T> Default for Highest<T> {
    fn default() -> Self {
        Highest { parts: VecDeque::new() }
    }
}

impl<T> Highest<T> {
    /// Adds something of the latest part. `of` returns what is compared.
    pub fn add(&mut self, part: u64, new: T, of: impl Fn(&T) -> u64) {
        match self.parts.back_mut() {
            Some((latest, highest)) if *latest == part => {
                if of(highest) < of(&new) {
                    *highest = new;
                }
            }
            _ => self.parts.push_back((part, new)),
        }
    }

    /// Drops what the window that ends with this part does not hold.
    pub fn expire(&mut self, window: Window, part: u64) {
        while self.parts.front().is_some_and(|&(oldest, _)| !window.holds(oldest, part)) {
            self.parts.pop_front();
        }
    }

    /// Iterates over the highest of each part.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().map(|(_, highest)| highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(times: &[(u64, u64)]) -> FineCounts {
        let mut counts = [0; Fine::BUCKETS];
        times.iter().for_each(|&(us, count)| counts[Fine::bucket(us * 1000)] += count);
        counts
    }

    fn near(found: u64, exact: u64) -> bool {
        (found as f64 - exact as f64).abs() <= exact as f64 * Fine::ERROR + 0.5
    }

    #[test]
    fn a_window_shows_what_was_counted_in_it_and_no_more() {
        let mut window = Windowed::default();
        assert_eq!(window.quantiles(), None);
        window.take(0, &counts(&[(100, 99), (5000, 1)]));
        let found = *window.quantiles().unwrap();
        assert!(
            near(found[0], 100) && near(found[2], 100) && near(found[3], 5000) && near(found[4], 5000),
            "{found:?}"
        );
        window.take(3, &counts(&[(100, 99), (5000, 1), (20, 100)]));
        assert!(near(window.quantiles().unwrap()[4], 5000), "both are in it");
        window.take(11, &counts(&[(100, 99), (5000, 1), (20, 100)]));
        assert!(near(window.quantiles().unwrap()[4], 5000), "the first part is still in it");
        window.pass(12);
        let found = *window.quantiles().unwrap();
        assert!(found.iter().all(|&found| near(found, 20)), "the first part is over: {found:?}");
        window.take(15, &counts(&[(100, 99), (5000, 1), (20, 100)]));
        assert_eq!(window.quantiles(), None, "nothing is left");
    }

    #[test]
    fn looks_within_a_part_are_added_up() {
        let mut window = Windowed::default();
        window.take(7, &counts(&[(100, 1)]));
        window.take(7, &counts(&[(100, 2), (7, 3)]));
        window.take(7, &counts(&[(100, 2), (7, 3), (900, 1)]));
        assert_eq!(window.parts.len(), 1);
        let total: u32 = window.parts[0].counts.iter().map(|(_, count)| count).sum();
        assert_eq!((total, window.parts[0].counts.len()), (6, 3));
        assert!(window.parts[0].counts.is_sorted());
    }

    #[test]
    fn a_window_moves_on_by_a_twelfth() {
        let window = Window(Duration::from_secs(60));
        assert_eq!([0, 4, 5, 59, 60].map(|second| window.part(Duration::from_secs(second))), [0, 0, 1, 11, 12]);
        assert_eq!(Window(Duration::from_secs(10)).part(Duration::from_secs(10)), 12);
    }

    /// Memory of a window grows with the buckets that count, up to a fixed bound.
    #[test]
    fn a_window_keeps_twelve_parts_and_one_look() {
        let mut window = Windowed::default();
        for n in 1..100 {
            window.take(n, &counts(&[(100, n), (110, n)]));
            assert!(window.parts.len() <= 12 && window.last.len() <= 3);
        }
        let whole: FineCounts = std::array::from_fn(|bucket| bucket as u64);
        window.take(100, &whole);
        assert!(window.last.len() <= Fine::BUCKETS && window.parts.len() <= 12);
    }
}
