//! Histograms in the form of bcc's tools, with range, count and bar, and with percentiles below.

use super::columns::{heading, text};
use super::reading::{scaling, unit, Reading};
use crate::cli::ShowOptions;
use crate::kit::{Log2, Shape};
use crate::pcp::Units;
use std::fmt::Write;

/// Width of a line without the bar.
const BESIDE_BAR: usize = 40;
/// Widths of the bar: that of bcc, and the largest on a wide terminal.
const BAR: usize = 40;
const WIDEST: usize = 100;
const NARROWEST: usize = 8;

/// Returns the counts of each bucket since the previous reading.
pub fn counts(reading: &Reading<'_>, column: usize) -> Vec<u64> {
    (0..reading.table.len()).map(|row| reading.since(row, column)).collect()
}

/// Draws each histogram of a reading.
pub fn draw(reading: &Reading<'_>, options: &ShowOptions, width: Option<usize>) -> String {
    let mut out = String::new();
    for (at, &column) in reading.of.columns.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        out += &histogram(reading, column, options, width);
    }
    out
}

fn histogram(reading: &Reading<'_>, column: usize, options: &ShowOptions, width: Option<usize>) -> String {
    let metric = &reading.of.table.spec.metrics[column];
    let counts = counts(reading, column);
    let used = counts.iter().rposition(|&count| count > 0).map_or(0, |highest| highest + 1);
    let first = counts.iter().position(|&count| count > 0).filter(|_| !options.zeros).unwrap_or(0);
    let bar = width.map_or(BAR, |width| width.saturating_sub(BESIDE_BAR).clamp(NARROWEST, WIDEST));
    let highest = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut out = heading(reading, &format!("{}{}", reading.of.table.prefix, metric.name));
    let count = if options.rate { "count/s" } else { "count" };
    let _ = writeln!(out, "{:>23}   {count:>9}  distribution", long_unit(unit(metric.units, options.scale)));
    for (bucket, &count) in counts.iter().enumerate().take(used).skip(first) {
        let (low, high) = bounds(reading, column, bucket, options);
        let stars = "*".repeat((u128::from(count) * bar as u128 / u128::from(highest)) as usize);
        let count = text(&reading.amount(count, options));
        let _ = writeln!(out, "{low:>10} -> {high:<10}: {count:>8} |{stars:<bar$}|");
    }
    if used == 0 {
        let _ = writeln!(out, "{:>23}", reading.nothing());
    }
    let total: u64 = counts.iter().sum();
    let _ = writeln!(out, "{:>23} : {:>8}", "total", text(&reading.amount(total, options)));
    if total > 0 {
        let unit = unit(metric.units, options.scale);
        let _ = writeln!(out, "  {} {unit}", percentiles(reading, column, options).join("  "));
    }
    out
}

/// Returns a unit in the form of bcc's tools.
fn long_unit(unit: &str) -> &str {
    match unit {
        "us" => "usecs",
        "ms" => "msecs",
        "ns" => "nsecs",
        unit => unit,
    }
}

/// Returns the bounds of a bucket, in the unit of the options.
pub fn bounds(reading: &Reading<'_>, column: usize, bucket: usize, options: &ShowOptions) -> (String, String) {
    let (low, high) = Log2::bounds(bucket as u32);
    match scaling(reading.of.table.spec.metrics[column].units, options.scale) {
        Some(factor) => (format!("{:.3}", low as f64 * factor), format!("{:.3}", high as f64 * factor)),
        None => (low.to_string(), high.to_string()),
    }
}

/// Splits a reading into histograms: for each the indices of its rows, in the order of the buckets, and `::` and the name of its
/// series if there are several.
pub fn series(reading: &Reading<'_>, options: &ShowOptions) -> Vec<(String, Vec<usize>)> {
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    for row in (0..reading.table.len()).filter(|&row| reading.wants(row, options)) {
        let name = match reading.of.table.spec.shape {
            Shape::Buckets { .. } => reading.name(row),
            _ => String::new(),
        };
        let series = name.find("::").map_or("", |at| &name[at..]);
        match all.iter_mut().find(|(known, _)| known == series) {
            Some((_, rows)) => rows.push(row),
            None => all.push((series.to_owned(), vec![row])),
        }
    }
    all
}

/// Returns the bounds of the bucket in a row, in the unit of the options.
pub fn row_bounds(reading: &Reading<'_>, column: usize, row: usize, options: &ShowOptions) -> (String, String) {
    if !matches!(reading.of.table.spec.shape, Shape::Buckets { .. }) {
        return bounds(reading, column, row, options);
    }
    let name = reading.name(row);
    let (low, high) = name.split("::").next().and_then(|bounds| bounds.split_once('-')).unwrap_or_default();
    let scaled = |bound: &str| match (scaling(Units::USEC, options.scale), bound.parse::<f64>()) {
        (Some(factor), Ok(bound)) => format!("{:.3}", bound * factor),
        _ => bound.to_owned(),
    };
    (scaled(low), scaled(high))
}

/// Quantiles that are shown, in percent.
pub const QUANTILES: [(&str, u64); 4] = [("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)];

/// Formats percentiles as `p50 <= 127`, with upper bounds of buckets. The highest possible bucket has none; its lower bound is shown.
fn percentiles(reading: &Reading<'_>, column: usize, options: &ShowOptions) -> Vec<String> {
    let counts = counts(reading, column);
    let quantile = |(name, percent): (&str, u64)| {
        let bucket = quantile(&counts, percent)?;
        let (low, high) = bounds(reading, column, bucket, options);
        Some(match is_open(reading, bucket) {
            true => format!("{name} >= {low}"),
            false => format!("{name} <= {high}"),
        })
    };
    QUANTILES.into_iter().filter_map(quantile).collect()
}

/// True for the last bucket of the BPF programs, which counts all higher values.
pub fn is_open(reading: &Reading<'_>, bucket: usize) -> bool {
    matches!(reading.of.table.spec.shape, Shape::Log2(log2) if bucket + 1 >= log2.buckets as usize)
}

/// Returns the lowest bucket that, with those below it, has this share of the counts; `None` if there are none.
pub fn quantile(counts: &[u64], percent: u64) -> Option<usize> {
    let total: u128 = counts.iter().map(|&count| u128::from(count)).sum();
    let wanted = (total * u128::from(percent)).div_ceil(100).max(1);
    let mut below = 0;
    counts.iter().position(|&count| {
        below += u128::from(count);
        below >= wanted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bucket_that_its_share_ends_in() {
        let counts = [0, 50, 40, 9, 1, 0];
        let buckets: Vec<usize> = [50, 90, 99, 100].map(|percent| quantile(&counts, percent).unwrap()).to_vec();
        assert_eq!(buckets, [1, 2, 3, 4]);
        assert_eq!(quantile(&[0, 0, 1], 50), Some(2), "one of one");
        assert_eq!(quantile(&[0, 0], 50), None);
        assert_eq!(quantile(&[], 99), None);
        assert_eq!(quantile(&[u64::MAX, u64::MAX], 100), Some(1), "no sum is too large");
    }
}
