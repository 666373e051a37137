//! Series from the rows of a map: rows whose labels have the same texts are added up; values of a histogram go to buckets and the
//! sum.

use super::config::{Counter, Histogram, Label};
use super::decimal::Decimal;
use super::decode::{cut, decode, Undecoded};
use super::names::Names;
use crate::pcp::{Time, Units};
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

/// Texts of the labels of a series.
pub type Texts = Vec<Vec<u8>>;

/// Numbers of rows that are in no series, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Rows with a label that could not be decoded.
    pub undecoded: u64,
    /// Rows that the expressions of a `regexp` exclude, which is no error.
    pub dropped: u64,
    /// Rows without room for another series.
    pub cut: u64,
    /// The last error of decoding.
    pub reason: Option<String>,
}

impl Skipped {
    /// Counts events that were shorter than their labels.
    pub fn short(undecoded: u64) -> Skipped {
        let reason = (undecoded > 0).then(|| "expected events of at least the size of all labels".into());
        Skipped { undecoded, reason, ..Skipped::default() }
    }

    /// Adds a row that could not be decoded, or was excluded.
    pub fn note(&mut self, why: Undecoded) {
        match why {
            Undecoded::Dropped => self.dropped += 1,
            failed => {
                self.undecoded += 1;
                self.reason = Some(failed.to_string());
            }
        }
    }
}

/// True if the rows of a map by CPU keep the CPU: the last label is named `cpu`.
pub fn keeps_cpu(labels: &[Label]) -> bool {
    labels.last().is_some_and(|label| label.name == "cpu")
}

/// Passes on the rows of a map, with keys as the labels cover them. For a map by CPU with a last label `cpu`, each CPU has a row,
/// whose key is two bytes longer; otherwise the values of all CPUs are added up.
fn each_row(by_cpu: bool, with_cpu: bool, only_cpu: bool, key: &[u8], values: &[u64], out: &mut dyn FnMut(&[u8], u64)) {
    if !(by_cpu && with_cpu) {
        return out(key, values.iter().fold(0, |sum: u64, value| sum.wrapping_add(*value)));
    }
    // Four zeros are the key of the one row of an array.
    let key = if only_cpu && key == [0; 4] { &[] } else { key };
    for (cpu, value) in values.iter().enumerate() {
        out(&[key, &(cpu as u16).to_ne_bytes()].concat(), *value);
    }
}

/// Returns the texts of a key's labels.
pub fn texts(labels: &[&Label], key: &[u8], names: &mut Names) -> Result<Texts, Undecoded> {
    let parts = cut(labels, key).ok_or_else(|| Undecoded::Failed {
        label: labels.iter().map(|label| &*label.name).collect::<Vec<_>>().join(", "),
        decoder: "size",
        expected: "sizes and paddings that add up to the size of the key",
    })?;
    labels.iter().zip(parts).map(|(label, part)| decode(label, part, names)).collect()
}

/// Series of a metric, from the rows of a map. While rows are added there are at most twice as many series as are served, afterwards
/// no more than are served.
#[derive(Debug, Default)]
pub struct Series<V> {
    /// Values by the texts of the labels.
    pub values: BTreeMap<Texts, V>,
    /// Values of series that were not in the previous reading.
    new: BTreeMap<Texts, V>,
    /// Rows that are in no series.
    pub skipped: Skipped,
}

/// Series of a counter.
pub type CounterSeries = Series<u64>;

/// Series of a histogram: values by bucket key.
pub type HistogramSeries = Series<BTreeMap<u64, u64>>;

/// The largest number of series, and those of the last reading: they are kept before new ones, since a counter that comes and goes is
/// of no use.
#[derive(Debug)]
pub struct Served {
    max: usize,
    /// Hashes of the label texts of the last reading's series.
    known: HashSet<u64>,
    state: RandomState,
}

impl Served {
    /// Allows at most `max` series.
    pub fn new(max: usize) -> Served {
        Served { max, known: HashSet::new(), state: RandomState::new() }
    }

    fn knows(&self, texts: &Texts) -> bool {
        self.known.contains(&self.state.hash_one(texts))
    }
}

impl<V: Default> Series<V> {
    /// Returns the value of a series; `None` if there is no room for it.
    fn value(&mut self, texts: Texts, served: &Served) -> Option<&mut V> {
        let series = if served.knows(&texts) { &mut self.values } else { &mut self.new };
        if series.len() >= served.max && !series.contains_key(&texts) {
            self.skipped.cut += 1;
            return None;
        }
        Some(series.entry(texts).or_default())
    }

    /// Drops the series beyond the largest number, new ones first, once all rows were added.
    pub fn finish(&mut self, served: &mut Served) {
        let found = self.values.len() + self.new.len();
        let room = served.max.saturating_sub(self.values.len());
        self.values.extend(std::mem::take(&mut self.new).into_iter().take(room));
        self.skipped.cut += (found - self.values.len()) as u64;
        served.known = self.values.keys().map(|texts| served.state.hash_one(texts)).collect();
    }
}

impl CounterSeries {
    /// Adds a row.
    pub fn add(
        &mut self,
        counter: &Counter,
        by_cpu: bool,
        key: &[u8],
        values: &[u64],
        names: &mut Names,
        served: &Served,
    ) {
        let labels: Vec<&Label> = counter.labels.iter().collect();
        each_row(by_cpu, keeps_cpu(&counter.labels), labels.len() == 1, key, values, &mut |key, value| {
            let texts = match labels.is_empty() {
                true if key == [0; 4] => Ok(Texts::new()),
                _ => texts(&labels, key, names),
            };
            match texts {
                Ok(texts) => {
                    if let Some(sum) = self.value(texts, served) {
                        *sum = sum.wrapping_add(value);
                    }
                }
                Err(why) => self.skipped.note(why),
            }
        });
    }
}

impl HistogramSeries {
    /// Adds a row.
    pub fn add(
        &mut self,
        histogram: &Histogram,
        by_cpu: bool,
        key: &[u8],
        values: &[u64],
        names: &mut Names,
        served: &Served,
    ) {
        let labels: Vec<&Label> = histogram.labels.iter().chain([&histogram.bucket]).collect();
        each_row(by_cpu, false, false, key, values, &mut |key, value| {
            let found = texts(&labels, key, names).and_then(|mut texts| {
                let bucket = texts.pop().and_then(|text| whole(&text)).ok_or_else(|| Undecoded::Failed {
                    label: histogram.bucket.name.clone(),
                    decoder: "bucket",
                    expected: "a whole number, which is the bucket",
                })?;
                Ok((texts, bucket))
            });
            match found {
                Ok((texts, bucket)) => {
                    if let Some(keys) = self.value(texts, served) {
                        let sum = keys.entry(bucket).or_default();
                        *sum = sum.wrapping_add(value);
                    }
                }
                Err(why) => self.skipped.note(why),
            }
        });
    }
}

/// Parses a whole number with any prefix (`strconv.ParseUint` of Go with base 0).
fn whole(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => u64::from_str_radix(&text[2..], 16).ok(),
        [b'0', b'b' | b'B', ..] => u64::from_str_radix(&text[2..], 2).ok(),
        [b'0', b'o' | b'O', ..] => u64::from_str_radix(&text[2..], 8).ok(),
        [b'0', _, ..] => u64::from_str_radix(&text[1..], 8).ok(),
        _ => text.parse().ok(),
    }
}

/// A bucket of a histogram as it is served.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Its key in the map; `None` if the bound is no valid key.
    pub key: Option<u64>,
    /// `LOW-HIGH` in the unit.
    pub name: String,
    /// The upper bound in the unit of the file, as ebpf_exporter has it in Prometheus.
    pub le: String,
    /// The upper bound in the served unit; exact if it is whole.
    pub high: High,
}

/// An upper bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct High {
    /// The bound, if it is whole.
    pub whole: Option<u64>,
    /// The bound, whole or not.
    pub float: f64,
}

/// The unit of a histogram, chosen such that bounds are whole if possible, and its buckets in it.
#[derive(Debug, PartialEq)]
pub struct Scale {
    /// The buckets in their order.
    pub bounds: Vec<Bound>,
    /// The unit of the sum.
    pub units: Units,
    /// Factor from the raw sum to the served one, if it is whole.
    pub factor: Option<u64>,
    /// Factor from the raw sum to the served one, whole or not.
    pub ratio: f64,
    /// True if all bounds are whole.
    pub is_whole: bool,
    sum_key: Option<u64>,
}

impl Scale {
    /// Chooses the largest unit in which all bounds are whole.
    pub fn of(histogram: &Histogram) -> Scale {
        let bounds: Vec<(Option<u64>, Option<Decimal>)> =
            histogram.bounds().into_iter().map(|(key, bound)| (key, bound.times(histogram.multiplier))).collect();
        let is_whole =
            |places: i32| bounds.iter().all(|(_, bound)| bound.is_some_and(|b| b.in_places(places).is_some()));
        let seconds = [(0, Units::SEC), (3, Units::MSEC), (6, Units::USEC), (9, Units::NSEC)];
        let (places, units) = match (histogram.units, &histogram.name) {
            (Some(Units::SEC), _) => seconds.into_iter().find(|(places, _)| is_whole(*places)).unwrap_or(seconds[0]),
            (Some(units), _) => (0, units),
            (None, name) if name.ends_with("_seconds") => {
                seconds.into_iter().find(|(places, _)| is_whole(*places)).unwrap_or(seconds[0])
            }
            (None, name) if name.ends_with("_bytes") => (0, Units::BYTE),
            _ => (0, Units::NONE),
        };
        let shown = |bound: Option<Decimal>, places: i32| match bound {
            Some(bound) => bound.in_places(places).map_or_else(|| bound.float().to_string(), |whole| whole.to_string()),
            None => "inf".into(),
        };
        let mut low = String::from("0");
        let bounds = bounds.into_iter().map(|(key, bound)| {
            let high = shown(bound, places);
            let name = format!("{low}-{high}");
            low = high;
            let whole = bound.and_then(|bound| bound.in_places(places));
            let float = bound.map_or(f64::INFINITY, |bound| bound.float() * 10_f64.powi(places));
            let le = bound.map_or("inf".into(), |bound| bound.float().to_string());
            Bound { key, name, le, high: High { whole, float } }
        });
        let bounds: Vec<Bound> = bounds.collect();
        Scale {
            is_whole: bounds.iter().all(|bound| bound.high.whole.is_some()),
            bounds,
            units,
            factor: histogram.multiplier.in_places(places),
            ratio: histogram.multiplier.float() * 10_f64.powi(places),
            sum_key: histogram.sum_key(),
        }
    }

    /// Returns the counts of a series' buckets in their order, up to the last that is not zero.
    pub fn counts(&self, keys: &BTreeMap<u64, u64>) -> Vec<u64> {
        let count = |bound: &Bound| bound.key.and_then(|key| keys.get(&key)).copied().unwrap_or(0);
        let mut counts: Vec<u64> = self.bounds.iter().map(count).collect();
        counts.truncate(counts.iter().rposition(|&count| count > 0).map_or(1, |last| last + 1));
        counts
    }

    /// Returns the raw sum of a series.
    pub fn sum(&self, keys: &BTreeMap<u64, u64>) -> u64 {
        self.sum_key.and_then(|key| keys.get(&key)).copied().unwrap_or(0)
    }
}

/// Returns the units of a counter, according to the end of its name.
pub fn counter_units(name: &str) -> Units {
    match name {
        name if name.ends_with("_seconds_total") => Units::NONE.time(1, Time::Sec),
        name if name.ends_with("_bytes_total") => Units::BYTE,
        _ => Units::COUNT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::PairConfig;

    fn histogram(name: &str, lines: &str) -> Histogram {
        let labels = "labels: [{name: bucket, size: 4, decoders: [{name: uint}]}]";
        let text = format!("metrics: {{histograms: [{{name: {name}, help: x, {lines}, {labels}}}]}}");
        PairConfig::parse("x.yaml", text.as_bytes())
            .map_err(|errors| format!("{errors:?}"))
            .unwrap()
            .histograms
            .remove(0)
    }

    /// Returns the names of buckets with their counts, the total count, and the sum in the served unit.
    fn served(histogram: &Histogram, rows: &[(u32, u64)]) -> (Vec<(String, u64)>, u64, u64) {
        let (scale, mut series, mut names) = (Scale::of(histogram), HistogramSeries::default(), Names::default());
        let mut served = Served::new(10);
        for (key, value) in rows {
            series.add(histogram, false, &key.to_ne_bytes(), &[*value], &mut names, &served);
        }
        series.finish(&mut served);
        assert_eq!(series.skipped, Skipped::default());
        let keys = series.values.values().next().cloned().unwrap_or_default();
        let counts = scale.counts(&keys);
        let named = scale.bounds.iter().zip(&counts).map(|(bound, count)| (bound.name.clone(), *count)).collect();
        (named, counts.iter().sum(), scale.sum(&keys) * scale.factor.unwrap())
    }

    fn named(buckets: &[(&str, u64)]) -> Vec<(String, u64)> {
        buckets.iter().map(|(name, count)| (String::from(*name), *count)).collect()
    }

    #[test]
    fn exp2_buckets_are_those_of_the_vectors() {
        let exp2 = histogram("x_seconds", "bucket_type: exp2, bucket_max: 3, bucket_multiplier: 0.000001");
        let (buckets, count, sum) = served(&exp2, &[(0, 2), (2, 5), (3, 1), (4, 23), (9, 7)]);
        assert_eq!(buckets, named(&[("0-1", 2), ("1-2", 0), ("2-4", 5), ("4-8", 1)]));
        assert_eq!((count, sum, Scale::of(&exp2).units), (8, 23, Units::USEC));
        let les: Vec<String> = Scale::of(&exp2).bounds.into_iter().map(|bound| bound.le).collect();
        assert_eq!(les.iter().map(|le| le.parse::<f64>().unwrap()).collect::<Vec<_>>(), [1e-6, 2e-6, 4e-6, 8e-6]);
    }

    #[test]
    fn other_buckets_are_those_of_the_vectors() {
        let zero = histogram("x", "bucket_type: exp2zero, bucket_max: 3");
        let (buckets, count, sum) = served(&zero, &[(0, 1), (1, 1), (3, 2), (4, 9)]);
        assert_eq!(buckets, named(&[("0-0", 1), ("0-1", 1), ("1-2", 0), ("2-4", 2)]));
        assert_eq!((count, sum), (4, 9));
        let linear = histogram("x", "bucket_type: linear, bucket_max: 2, bucket_multiplier: 50");
        let (buckets, count, sum) = served(&linear, &[(0, 3), (2, 1), (3, 140)]);
        assert_eq!(buckets, named(&[("0-0", 3), ("0-50", 0), ("50-100", 1)]));
        assert_eq!((count, sum), (4, 7000));
        let fixed = histogram("x", "bucket_type: fixed, bucket_keys: [1, 5, 10]");
        let (buckets, count, sum) = served(&fixed, &[(1, 4), (5, 2), (7, 8), (11, 60)]);
        assert_eq!(buckets, named(&[("0-1", 4), ("1-5", 2)]));
        assert_eq!((count, sum), (6, 60));
    }

    #[test]
    fn bounds_are_whole_in_the_largest_unit_that_allows_it() {
        let scale = |multiplier: &str| {
            let lines = format!("bucket_type: exp2, bucket_max: 24, bucket_multiplier: {multiplier}");
            let scale = Scale::of(&histogram("x_seconds", &lines));
            (scale.bounds[1].name.clone(), scale.units, scale.factor)
        };
        assert_eq!(scale("1e-7"), ("100-200".into(), Units::NSEC, Some(100)));
        assert_eq!(scale("0.001"), ("1-2".into(), Units::MSEC, Some(1)));
        assert_eq!(scale("1"), ("1-2".into(), Units::SEC, Some(1)));
        assert_eq!(scale("1e-10").2, None);
        let bytes = Scale::of(&histogram("x_bytes", "bucket_type: exp2, bucket_max: 63"));
        assert_eq!(
            (bytes.units, bytes.bounds[63].name.as_str()),
            (Units::BYTE, "4611686018427387904-9223372036854775808")
        );
        let half = Scale::of(&histogram("x", "bucket_type: fixed, bucket_keys: [0.5, 2]"));
        assert_eq!((half.bounds[0].key, half.bounds[1].name.as_str()), (None, "0.5-2"));
    }

    fn counter(labels: &str) -> Counter {
        let text = format!("metrics: {{counters: [{{name: a, help: b, labels: {labels}}}]}}");
        PairConfig::parse("x.yaml", text.as_bytes()).map_err(|errors| format!("{errors:?}")).unwrap().counters.remove(0)
    }

    fn values(counter: &Counter, by_cpu: bool, rows: &[(&[u8], &[u64])]) -> (Vec<(String, u64)>, Skipped) {
        reading(counter, by_cpu, rows, &mut Served::new(10))
    }

    fn reading(
        counter: &Counter,
        by_cpu: bool,
        rows: &[(&[u8], &[u64])],
        served: &mut Served,
    ) -> (Vec<(String, u64)>, Skipped) {
        let (mut series, mut names) = (CounterSeries::default(), Names::default());
        for (key, values) in rows {
            series.add(counter, by_cpu, key, values, &mut names, served);
        }
        series.finish(served);
        let text = |texts: &Texts| String::from_utf8(texts.join(&b'|')).unwrap();
        (series.values.iter().map(|(texts, value)| (text(texts), *value)).collect(), series.skipped)
    }

    #[test]
    fn rows_of_cpus_are_added_or_kept() {
        let cpu = "{name: cpu, size: 2, decoders: [{name: uint}]}";
        let zero = [0; 4];
        assert_eq!(values(&counter("[]"), true, &[(&zero, &[3, 4])]).0, named(&[("", 7)]));
        assert_eq!(values(&counter(&format!("[{cpu}]")), true, &[(&zero, &[3, 4])]).0, named(&[("0", 3), ("1", 4)]));
        let id = counter(&format!("[{{name: id, size: 4, decoders: [{{name: uint}}]}}, {cpu}]"));
        assert_eq!(values(&id, true, &[(&9_u32.to_ne_bytes(), &[1, 2])]).0, named(&[("9|0", 1), ("9|1", 2)]));
        // A map that is not by CPU has the CPU in its own key.
        let plain = [&9_u32.to_ne_bytes()[..], &1_u16.to_ne_bytes()].concat();
        assert_eq!(values(&id, false, &[(&plain, &[5])]).0, named(&[("9|1", 5)]));
    }

    #[test]
    fn rows_with_equal_texts_are_added_and_bad_ones_skipped() {
        let one = counter("[{name: x, size: 4, decoders: [{name: string}]}]");
        let (rows, skipped) = values(&one, false, &[(b"a\0b\0", &[1]), (b"a\0c\0", &[u64::MAX - 1]), (b"ab", &[7])]);
        assert_eq!((rows, skipped.undecoded), (named(&[("a", u64::MAX)]), 1));
        assert!(skipped.reason.unwrap().contains("add up to the size of the key"));
        let kept = counter("[{name: x, size: 2, decoders: [{name: string}, {name: regexp, regexps: ['^k']}]}]");
        let (rows, skipped) = values(&kept, false, &[(b"ka", &[1]), (b"xa", &[2])]);
        assert_eq!((rows, skipped.dropped, skipped.undecoded), (named(&[("k", 1)]), 1, 0));
        assert_eq!(values(&counter("[]"), false, &[(&[1, 0, 0, 0], &[1])]).1.undecoded, 1);
    }

    #[test]
    fn of_too_many_series_those_that_were_served_stay() {
        let counter = counter("[{name: x, size: 1, decoders: [{name: string}]}]");
        let mut served = Served::new(2);
        let mut names = |keys: &str| {
            let keys: Vec<[u8; 1]> = keys.bytes().map(|byte| [byte]).collect();
            let rows: Vec<(&[u8], &[u64])> = keys.iter().map(|key| (&key[..], &[1][..])).collect();
            let (rows, skipped) = reading(&counter, false, &rows, &mut served);
            (rows.into_iter().map(|(name, _)| name).collect::<String>(), skipped.cut)
        };
        assert_eq!(names("xy"), ("xy".into(), 0));
        assert_eq!(names("aybzcx"), ("xy".into(), 4));
        assert_eq!(names("abzcxa"), ("ax".into(), 3), "one that went makes room for one that came");
        assert_eq!(names("abzcx"), ("ax".into(), 3));
    }

    #[test]
    fn a_bucket_may_have_a_prefix() {
        let texts = ["17", "0x1f", "0b11", "0o17", "017", "0", "x", "-1", ""];
        assert_eq!(
            texts.map(|text| whole(text.as_bytes())),
            [Some(17), Some(31), Some(3), Some(15), Some(15), Some(0), None, None, None]
        );
    }
}
