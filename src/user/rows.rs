//! The rows of a pair's tables: names and labels of series, and their values.

use super::quantiles::Windows;
use super::series::{Bound, HistogramSeries, Scale, Texts};
use crate::kit::{word, Metric, SeriesLabel, SeriesLabels, Table};
use std::collections::HashMap;
use std::sync::Arc;

const COUNTER: Metric<u64> = Metric::new(0);
const COUNT: Metric<u64> = Metric::new(0);
const SUM: Metric<u64> = Metric::new(1);
const FLOAT_SUM: Metric<f64> = Metric::new(1);
const BUCKET: Metric<u64> = Metric::new(0);
/// Index of p50 among the metrics of a series; the other quantiles follow.
const QUANTILE: usize = 2;

/// Names of series. They differ for different labels, unless a label contains `::`; such names get a number.
#[derive(Default)]
struct Instances(HashMap<String, usize>);

impl Instances {
    /// Makes the name of a series. With `cpu` the last label is a CPU.
    fn name(&mut self, texts: &[Vec<u8>], cpu: bool) -> String {
        let last = texts.len().wrapping_sub(1);
        let part = |(i, text): (usize, &Vec<u8>)| match cpu && i == last {
            true => format!("cpu{}", clean(text)),
            false => clean(text),
        };
        let name = texts.iter().enumerate().map(part).collect::<Vec<_>>().join("::");
        let mut own = name.clone();
        // A label can be the text of another one's second name.
        while self.0.contains_key(&own) {
            let times = self.0.entry(name.clone()).or_default();
            *times += 1;
            own = format!("{name}~{times}");
        }
        self.0.insert(own.clone(), 1);
        own
    }
}

/// Makes a part of a name from a label's text ([`word`]), different for different texts: `;` for line ends, `_` for an empty text.
fn clean(text: &[u8]) -> String {
    match text {
        b"" => "_".into(),
        b"_" => r"\x5f".into(),
        text => text.split(|&byte| byte == b'\n').map(word).collect::<Vec<_>>().join(";"),
    }
}

fn labels_of(names: &[&'static str], texts: &[Vec<u8>]) -> SeriesLabels {
    let text = |text: &Vec<u8>| {
        let text = String::from_utf8_lossy(text);
        let shown = |c: char| {
            if c == '\n' {
                ';'
            } else if c.is_control() {
                '_'
            } else {
                c
            }
        };
        SeriesLabel::Text(text.chars().take(1024).map(shown).collect())
    };
    names.iter().zip(texts).map(|(name, value)| (*name, text(value))).collect()
}

/// Fills the table of a counter, a row for each series. With `cpu` the last label is a CPU.
pub fn fill_counter<'a>(
    table: &mut Table,
    labels: &[&'static str],
    cpu: bool,
    values: impl Iterator<Item = (&'a Texts, u64)>,
) {
    let mut instances = Instances::default();
    for (texts, value) in values {
        match labels.is_empty() {
            true => drop(table.single().set(COUNTER, value)),
            false => {
                let name = instances.name(texts, cpu);
                let labels = Arc::new(labels_of(labels, texts));
                table.named(name.as_bytes()).set(COUNTER, value).labels(&labels);
            }
        }
    }
}

/// Fills the table of a histogram's series with the count, the sum and the quantiles of each.
pub fn fill_series(
    table: &mut Table,
    labels: &[&'static str],
    scale: &Scale,
    windows: Option<&Windows>,
    series: &HistogramSeries,
) {
    let mut instances = Instances::default();
    for (texts, keys) in &series.values {
        let count = scale.counts(keys).iter().fold(0_u64, |sum, count| sum.wrapping_add(*count));
        let sum = scale.sum(keys);
        let row = match labels.is_empty() {
            true => table.single(),
            false => {
                let labels = Arc::new(labels_of(labels, texts));
                table.named(instances.name(texts, false).as_bytes()).labels(&labels)
            }
        };
        let row = row.set(COUNT, count);
        let mut row = match scale.factor {
            Some(factor) => row.set(SUM, sum.wrapping_mul(factor)),
            None => row.set(FLOAT_SUM, sum as f64 * scale.ratio),
        };
        let quantiles = windows.and_then(|windows| windows.buckets(texts)).into_iter().flatten();
        for (i, bucket) in quantiles.enumerate() {
            let Some(Bound { high, .. }) = scale.bounds.get(bucket) else { continue };
            row = match (scale.is_whole, high.whole) {
                (true, Some(whole)) => row.set(Metric::new(QUANTILE + i), whole),
                _ => row.set(Metric::new(QUANTILE + i), high.float),
            };
        }
    }
}

/// Fills the table of a histogram's buckets, cumulative up to `le`. A series shows no fewer buckets than before (`tops`). Returns the
/// number of series without room among `max` rows; those that were shown before come first.
pub fn fill_buckets(
    table: &mut Table,
    labels: &[&'static str],
    scale: &Scale,
    tops: &mut HashMap<Texts, usize>,
    series: &HistogramSeries,
    max: usize,
) -> u64 {
    let before = std::mem::take(tops);
    let (mut room, mut cut) = (max, 0);
    let (known, new): (Vec<_>, Vec<_>) = series.values.iter().partition(|(texts, _)| before.contains_key(*texts));
    for (texts, keys) in known.into_iter().chain(new) {
        let top = scale.counts(keys).len().max(before.get(texts).copied().unwrap_or(0));
        match room.checked_sub(top) {
            Some(left) => {
                room = left;
                tops.insert(texts.clone(), top);
            }
            None => cut += 1,
        }
    }
    let mut instances = Instances::default();
    for (texts, keys) in &series.values {
        let Some(top) = tops.get(texts) else { continue };
        let mut counts = scale.counts(keys);
        counts.resize(*top, 0);
        let name = if labels.is_empty() { String::new() } else { format!("::{}", instances.name(texts, false)) };
        for (bound, count) in scale.bounds.iter().zip(counts) {
            let mut own = labels_of(labels, texts);
            own.push(("le", SeriesLabel::Text(bound.le.clone())));
            table.named(format!("{}{name}", bound.name).as_bytes()).set(BUCKET, count).labels(&Arc::new(own));
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Texts {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn names_of_series_are_clean_and_differ() {
        let mut instances = Instances::default();
        let mut name = |own: &[&str], cpu| instances.name(&texts(own), cpu);
        assert_eq!(name(&["dm-0", "read"], false), "dm-0::read");
        assert_eq!(name(&["a b,c\td", ""], false), r"a\x20b\x2cc\x09d::_");
        assert_eq!(name(&["main\nidle"], false), "main;idle");
        assert_eq!(name(&["9", "1"], true), "9::cpu1");
        assert_eq!(name(&["caf\u{e9}"], false), r"caf\xc3\xa9");
        assert_eq!(instances.name(&[b"caf\xc3".to_vec()], false), r"caf\xc3");
        let others = [["a::b", "c"], ["a", "b::c"]].map(|own| instances.name(&texts(&own), false));
        assert_eq!(others, ["a::b::c", "a::b::c~2"]);
    }

    #[test]
    fn whoever_else_is_there_a_series_has_one_name() {
        let all = ["a b", "a_b", "a\\x20b", "a\nb", "a;b", "a\u{1}b", "", "_", "\n", "\\x5f", "a b~2"];
        let alone = all.map(|text| Instances::default().name(&texts(&[text]), false));
        let mut instances = Instances::default();
        assert_eq!(all.map(|text| instances.name(&texts(&[text]), false)), alone);
        assert_eq!(alone[..3], [r"a\x20b", "a_b", r"a\x5cx20b"]);
    }
}
