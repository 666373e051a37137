//! Tables of histograms: one table has the count, the sum and the quantiles of each series, a second one its buckets.
//! One line of [`crate::histograms!`] declares a histogram; [`Kept`] holds its state.

use super::{
    Buckets, Fine, FineCounts, Metric, MetricDef, Row, RowMut, SeriesLabels, ServedBucket, Table, Window, Windowed,
};
use crate::bpf::types::fine_hist;
use std::sync::Arc;
use std::time::Duration;

/// A histogram as the documents describe it.
pub struct HistogramDef {
    /// Name of its metrics, without the last component.
    pub name: &'static str,
    /// The events it counts: `reads by disk`.
    pub events: &'static str,
    /// The time it measures: `from allocation to completion`.
    pub time: &'static str,
    /// A note for the documents; may be empty.
    pub note: &'static str,
}

/// The metrics of a histogram besides its buckets, by the last component of their names.
pub const SERIES_METRICS: [&str; 7] = ["count", "sum", "p50", "p90", "p99", "p999", "max"];

/// Returns the metric with this index in [`SERIES_METRICS`], of the histogram with this index.
pub const fn series_metric(histogram: usize, metric: usize) -> Metric<u64> {
    Metric::new(histogram * SERIES_METRICS.len() + metric)
}

/// Number of metrics of a histogram in the form of Prometheus.
const SECONDS_METRICS: usize = 3;

/// Identifier of the instance `all`, above those of buckets.
const ALL_ID: u32 = 1 << 10;

/// Declares histograms and their tables: `TABLE` by series, `BY_BUCKET` by bucket, `IN_SECONDS` for Prometheus, and
/// `TABLES`, all three. The line `tables` has their rows for the documents, their clusters and the shape of the first;
/// `if` names an option without which they stay empty. Each line of a histogram has a number that determines the items of
/// its metrics: they start at 8 times the number by series, at the number by bucket, and at 4 times the number for
/// Prometheus. Second names of the count follow the name. Other metrics of the series follow `with`, with items below 8.
///
/// ```text
/// histograms! {
///     "disk.dev";
///     tables "each disk", "each bucket of each disk", 320 321 430, Shape::Named { max: 4096 };
///     1 "read.total" "reads by disk" "from allocation to completion" "";
///     with NAME: str = 0 "name" DISCRETE NONE "name of the disk";
/// }
/// ```
#[macro_export]
macro_rules! histograms {
    ($x:expr; tables $summary:expr, $buckets:expr, $table:literal $by_bucket:literal $in_seconds:literal; $($rest:tt)*) => {
        $crate::histograms! {
            $x; tables $summary, $buckets, $table $by_bucket $in_seconds, $crate::kit::Shape::Named { max: 4096 };
            $($rest)*
        }
    };
    (
        $x:expr;
        tables $summary:expr, $buckets:expr, $table:literal $by_bucket:literal $in_seconds:literal, $shape:expr $(, if $option:literal)?;
        $($number:literal $name:literal $(| $called:literal)* $events:literal $time:literal $note:expr;)*
        $(with $id:ident: $ty:ty = $item:literal $other:literal $(| $also:literal)* $sem:ident $units:ident $oneline:literal;)*
    ) => {
        /// The histograms.
        pub const HISTOGRAMS: &[$crate::kit::HistogramDef] = &[$($crate::kit::HistogramDef {
            name: concat!($x, ".", $name),
            events: $events,
            time: $time,
            note: $note,
        },)*];
        const SERIES: &[$crate::kit::MetricDef] = &[
            $(
                $crate::kit::MetricDef {
                    also: &[$($called),*],
                    ..$crate::kit::histogram_metric(8 * $number, concat!($x, ".", $name, ".count"), concat!("number of ", $events))
                },
                $crate::kit::histogram_metric(
                    8 * $number + 1,
                    concat!($x, ".", $name, ".sum"),
                    concat!("total time of ", $events, ", ", $time),
                ),
                $crate::kit::histogram_metric(
                    8 * $number + 2,
                    concat!($x, ".", $name, ".p50"),
                    concat!("median time of recent ", $events, ", ", $time),
                ),
                $crate::kit::histogram_metric(
                    8 * $number + 3,
                    concat!($x, ".", $name, ".p90"),
                    concat!("time of recent ", $events, ", ", $time, ", that 90 % do not exceed"),
                ),
                $crate::kit::histogram_metric(
                    8 * $number + 4,
                    concat!($x, ".", $name, ".p99"),
                    concat!("time of recent ", $events, ", ", $time, ", that 99 % do not exceed"),
                ),
                $crate::kit::histogram_metric(
                    8 * $number + 5,
                    concat!($x, ".", $name, ".p999"),
                    concat!("time of recent ", $events, ", ", $time, ", that 99.9 % do not exceed"),
                ),
                $crate::kit::histogram_metric(
                    8 * $number + 6,
                    concat!($x, ".", $name, ".max"),
                    concat!("longest time of recent ", $events, ", ", $time),
                ),
            )*
            $($crate::kit::MetricDef {
                item: $item,
                name: concat!($x, ".", $other),
                also: &[$($also),*],
                ty: <$ty as $crate::kit::MetricType>::TYPE,
                sem: $crate::pcp::Sem::$sem,
                units: $crate::pcp::Units::$units,
                oneline: $oneline,
            },)*
        ];
        const BUCKETS: &[$crate::kit::MetricDef] = &[$(
            $crate::kit::histogram_metric(
                $number,
                concat!($x, ".", $name, ".bucket"),
                concat!($events, " by time, ", $time),
            ),
        )*];
        const SECONDS: &[$crate::kit::MetricDef] = &[$(
            $crate::kit::histogram_metric(
                4 * $number,
                concat!($x, ".", $name, ".seconds_bucket"),
                concat!($events, " by time, ", $time, ", for Prometheus"),
            ),
            $crate::kit::histogram_metric(
                4 * $number + 1,
                concat!($x, ".", $name, ".seconds_sum"),
                concat!("total time of ", $events, ", ", $time, ", for Prometheus"),
            ),
            $crate::kit::histogram_metric(
                4 * $number + 2,
                concat!($x, ".", $name, ".seconds_count"),
                concat!("number of ", $events, ", for Prometheus"),
            ),
        )*];
        $crate::histograms!(@columns 7 * HISTOGRAMS.len(); $($id: $ty,)*);
        /// The table of counts, sums and quantiles.
        pub static TABLE: $crate::kit::TableSpec =
            $crate::kit::TableSpec::by_series($summary, $table, $shape, SERIES, HISTOGRAMS).with_options(&[$($option)?]);
        /// The table of buckets.
        pub static BY_BUCKET: $crate::kit::TableSpec =
            $crate::kit::TableSpec::by_bucket($buckets, $by_bucket, BUCKETS, HISTOGRAMS).with_options(&[$($option)?]);
        /// The table of buckets for Prometheus.
        pub static IN_SECONDS: $crate::kit::TableSpec =
            $crate::kit::TableSpec::in_seconds($buckets, $in_seconds, SECONDS, HISTOGRAMS)
                .with_options(&[$($option,)? "prometheus"]);
        /// The three tables.
        pub const TABLES: $crate::kit::HistogramTables =
            $crate::kit::HistogramTables { by_series: &TABLE, by_bucket: &BY_BUCKET, in_seconds: &IN_SECONDS };
    };
    (@columns $column:expr;) => {};
    (@columns $column:expr; $id:ident: $ty:ty, $($rest:tt)*) => {
        const $id: $crate::kit::Metric<$ty> = $crate::kit::Metric::new($column);
        $crate::histograms!(@columns $column + 1; $($rest)*);
    };
}

/// Declares a metric of a histogram, for [`crate::histograms!`]. Type, semantics and units follow from the last
/// component of the name.
pub const fn histogram_metric(item: u32, name: &'static str, oneline: &'static str) -> MetricDef {
    use crate::pcp::{Sem, Type, Units};
    let (ty, sem, units) = match name.as_bytes() {
        [.., b'.' | b'_', b'c', b'o', b'u', b'n', b't'] | [.., b'.' | b'_', b'b', b'u', b'c', b'k', b'e', b't'] => {
            (Type::U64, Sem::COUNTER, Units::COUNT)
        }
        [.., b'.', b's', b'u', b'm'] => (Type::U64, Sem::COUNTER, Units::NSEC),
        [.., b'_', b's', b'u', b'm'] => (Type::DOUBLE, Sem::COUNTER, Units::SEC),
        _ => (Type::U64, Sem::INSTANT, Units::USEC),
    };
    MetricDef { item, name, also: &[], ty, sem, units, oneline }
}

/// A histogram of a series: the sum of histograms in rows, and its quantiles over a window.
#[derive(Debug, Default)]
pub struct Kept {
    /// Sum of the times at the last reading of the counters, which are read again only when it has changed.
    sum: u64,
    count: u64,
    window: Windowed,
}

impl Kept {
    /// Returns the number of times and their sum in nanoseconds, as of now.
    pub fn read<'a>(&mut self, rows: impl Iterator<Item = Row<'a, fine_hist>> + Clone) -> (u64, u64) {
        let sum = sum_of(rows.clone());
        if sum != self.sum {
            (self.count, self.sum) = (rows.map(Fine::count).fold(0, u64::wrapping_add), sum);
        }
        (self.count, self.sum)
    }

    /// Adds the counts since the last look to this part of the window; returns them by bucket.
    pub fn look<'a>(
        &mut self,
        part: u64,
        rows: impl Iterator<Item = Row<'a, fine_hist>> + Clone,
        look: Look,
    ) -> Vec<(u16, u32)> {
        if look == Look::Skip {
            self.skip(rows);
            return Vec::new();
        }
        // A fetch may have read it already: the window has its own look.
        let sum = sum_of(rows.clone());
        if sum == self.window.sum && look == Look::IfNew {
            self.window.pass(part);
            return Vec::new();
        }
        let counts = self.count(rows);
        self.window.sum = self.sum;
        self.window.take(part, &counts)
    }

    /// Excludes from the window all that these rows have counted so far.
    pub fn skip<'a>(&mut self, rows: impl Iterator<Item = Row<'a, fine_hist>>) {
        let counts = self.count(rows);
        self.window.sum = self.sum;
        self.window.skip(&counts);
    }

    /// Adds the counts that [`Kept::look`] returned for another histogram to this part of the window.
    pub fn add(&mut self, part: u64, counted: &[(u16, u32)]) {
        self.window.add(part, counted);
    }

    /// Recomputes the quantiles if counts were added or have left the window.
    pub fn pass(&mut self, part: u64) {
        self.window.pass(part);
    }

    /// Sets counts as of now, and quantiles, in a row of a table; `histogram` is the index of the histogram in the
    /// table.
    pub fn set<'a>(
        &mut self,
        row: RowMut<'a>,
        histogram: usize,
        rows: impl Iterator<Item = Row<'a, fine_hist>> + Clone,
    ) -> RowMut<'a> {
        let counts = self.read(rows);
        self.set_quantiles(set_counts(row, histogram, counts), histogram)
    }

    /// Does the same as [`Kept::set`], but always reads the counts, since times of 0 leave their sum as it is.
    pub fn set_exact<'a>(
        &self,
        row: RowMut<'a>,
        histogram: usize,
        rows: impl Iterator<Item = Row<'a, fine_hist>> + Clone,
    ) -> RowMut<'a> {
        let counts = (rows.clone().map(Fine::count).fold(0, u64::wrapping_add), sum_of(rows));
        self.set_quantiles(set_counts(row, histogram, counts), histogram)
    }

    /// Sets the quantiles in a row of a table; none while the window is empty.
    pub fn set_quantiles<'a>(&self, row: RowMut<'a>, histogram: usize) -> RowMut<'a> {
        let Some(quantiles) = self.window.quantiles() else { return row };
        let each = quantiles.iter().enumerate();
        each.fold(row, |row, (at, &quantile)| row.set(series_metric(histogram, 2 + at), quantile))
    }

    fn count<'a>(&mut self, rows: impl Iterator<Item = Row<'a, fine_hist>>) -> FineCounts {
        let (counts, sum) = Fine::total(rows);
        self.sum = sum;
        self.count = counts.iter().fold(0, |count, &more| count.wrapping_add(more));
        counts
    }
}

/// Returns the sum of the times in nanoseconds.
fn sum_of<'a>(rows: impl Iterator<Item = Row<'a, fine_hist>>) -> u64 {
    rows.fold(0, |sum, row| sum.wrapping_add(row.get(fine_hist::sum)))
}

/// Sets count and sum in a row of a table.
pub fn set_counts(row: RowMut<'_>, histogram: usize, (count, sum): (u64, u64)) -> RowMut<'_> {
    row.set(series_metric(histogram, 0), count).set(series_metric(histogram, 1), sum)
}

/// Fills the buckets of a series: an instance `LOW-HIGH::SERIES` for each, or `LOW-HIGH` without a series; or their
/// form for Prometheus. `totals` are the counts of the table's histograms, each with its sum in nanoseconds.
pub fn set_buckets(
    table: &mut Table,
    buckets: Buckets,
    series: Option<(&[u8], &Arc<SeriesLabels>)>,
    totals: &[(FineCounts, u64)],
) {
    let count_in = |counts: &FineCounts, bucket: &ServedBucket| {
        counts[bucket.of.clone()].iter().fold(0u64, |sum, &count| sum.wrapping_add(count))
    };
    if table.is_in_seconds() {
        return set_seconds(table, buckets, series, totals, count_in);
    }
    for bucket in Fine::served(buckets) {
        let row = bucket_row(table, series, bucket.id, &bucket.name, &bucket.labels);
        totals
            .iter()
            .enumerate()
            .fold(row, |row, (histogram, (counts, _))| row.set(Metric::new(histogram), count_in(counts, bucket)));
    }
}

/// Fills the buckets of a series in the form of Prometheus: a bucket includes the counts of all lower ones.
fn set_seconds(
    table: &mut Table,
    buckets: Buckets,
    series: Option<(&[u8], &Arc<SeriesLabels>)>,
    totals: &[(FineCounts, u64)],
    count_in: impl Fn(&FineCounts, &ServedBucket) -> u64,
) {
    let mut below = vec![0u64; totals.len()];
    for bucket in Fine::served(buckets) {
        let mut row = bucket_row(table, series, bucket.id, &bucket.le, &bucket.labels_in_seconds);
        for (histogram, ((counts, _), below)) in totals.iter().zip(&mut below).enumerate() {
            *below = below.wrapping_add(count_in(counts, bucket));
            row = row.set(Metric::new(histogram * SECONDS_METRICS), *below);
        }
    }
    let mut row = match series {
        None => table.numbered(ALL_ID, b"all"),
        Some((name, labels)) => table.named(name).labels(labels),
    };
    for (histogram, ((_, sum), count)) in totals.iter().zip(below).enumerate() {
        let [seconds_sum, seconds_count] = [1, 2].map(|metric| histogram * SECONDS_METRICS + metric);
        row = row.set(Metric::<f64>::new(seconds_sum), *sum as f64 / 1e9).set(Metric::<u64>::new(seconds_count), count);
    }
}

/// Appends a row to a table of buckets.
fn bucket_row<'a>(
    table: &'a mut Table,
    series: Option<(&[u8], &Arc<SeriesLabels>)>,
    id: u32,
    bucket: &str,
    of_bucket: &'static SeriesLabels,
) -> RowMut<'a> {
    match series {
        None => table.numbered(id, bucket.as_bytes()),
        Some((name, labels)) => table.named(&[bucket.as_bytes(), b"::", name].concat()).labels(labels),
    }
    .bucket(of_bucket)
}

/// A way to read a histogram for its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Read it only if the sum of its times has changed.
    IfNew,
    /// Read it even if the sum is the same, since a coarse clock can measure times of 0.
    Anyway,
    /// Exclude its counts so far, which belong to an earlier agent.
    Skip,
}

/// The clock of a window, which counts its parts from the start of the module.
#[derive(Clone, Copy, Debug)]
pub struct WindowClock {
    window: Window,
    looks: u64,
    /// True during the first look if the maps hold counts of an earlier agent.
    skips: bool,
}

impl WindowClock {
    /// Starts a window now.
    pub const fn new(window: Window) -> WindowClock {
        WindowClock { window, looks: 0, skips: false }
    }

    /// Counts a look at this time after the start; returns the part of the window. `continues`: the counters hold
    /// counts of an earlier agent.
    pub fn look(&mut self, since_start: Duration, continues: bool) -> u64 {
        self.skips = continues && self.looks == 0;
        self.looks += 1;
        self.window.part(since_start)
    }

    /// Returns the way to read the histogram with this number: each is read once in 16 looks even if its sum is
    /// unchanged.
    pub fn look_at(&self, number: usize) -> Look {
        match number as u64 % 16 == self.looks % 16 {
            _ if self.skips => Look::Skip,
            true => Look::Anyway,
            false => Look::IfNew,
        }
    }
}
