//! A pair at work: its object is loaded when the agent loads its modules, and each of its metrics is a table, or two for a histogram.

use super::config::{Counter, Decoder, Histogram, Label, PairConfig, PairError};
use super::decode::covered;
use super::directory::PairFiles;
use super::names::Names;
use super::series::{keeps_cpu, CounterSeries, HistogramSeries, Scale, Skipped, Texts};
use super::tables::{leak, ServedMetric, Tables};
use crate::bpf::types;
use crate::kit::{
    Host, Kernel, Metric, Module, PairStatus, Plan, RefreshError, SeriesLabel, SeriesLabels, Table, TableSpec,
};
use crate::loader::{LoadedPair, OpenPair, PairMap};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a fetch reads for one of its tables serves the others: none comes much later.
const SAME_FETCH: Duration = Duration::from_millis(200);
/// The loss that is told of rows.
const UNDECODED: &str = "undecoded: rows of maps whose keys could not be decoded";

const COUNTER: Metric<u64> = Metric::new(0);
const COUNT: Metric<u64> = Metric::new(0);
const SUM: Metric<u64> = Metric::new(1);
const FLOAT_SUM: Metric<f64> = Metric::new(1);
const BUCKET: Metric<u64> = Metric::new(0);

/// The module of a pair.
pub struct PairModule {
    files: Files,
    object: Option<Vec<u8>>,
    metrics: Vec<PairMetric>,
    names: Names,
    loaded: Option<LoadedPair>,
    status: PairStatus,
    undecoded: u64,
}

/// The names of a pair and of its files, for messages.
struct Files {
    name: String,
    yaml: String,
    object: String,
}

struct PairMetric {
    what: What,
    tables: Tables,
    /// Names of the labels, as PCP has them.
    labels: Vec<&'static str>,
    /// The map, or why there are no values.
    map: Result<PairMap, PairError>,
    told: bool,
}

enum What {
    Counter(Counter),
    Histogram(Box<KeptHistogram>),
}

/// A histogram at work.
struct KeptHistogram {
    declared: Histogram,
    scale: Scale,
    /// By series, the number of buckets up to the highest that ever counted.
    tops: HashMap<Texts, usize>,
    read: Option<Read>,
}

/// A histogram's map as one of its tables had it read; the other takes it.
struct Read {
    at: Instant,
    by: u32,
    series: HistogramSeries,
}

impl What {
    fn name(&self) -> &str {
        match self {
            What::Counter(counter) => &counter.name,
            What::Histogram(histogram) => &histogram.declared.name,
        }
    }

    fn place(&self) -> &str {
        match self {
            What::Counter(counter) => &counter.place,
            What::Histogram(histogram) => &histogram.declared.place,
        }
    }

    fn labels(&self) -> &[Label] {
        match self {
            What::Counter(counter) => &counter.labels,
            What::Histogram(histogram) => &histogram.declared.labels,
        }
    }

    /// Bytes of a key that the labels cover in a map.
    fn covers(&self, by_cpu: bool) -> usize {
        match self {
            What::Counter(counter) => {
                let labels = &counter.labels;
                let all = covered(labels);
                match by_cpu && keeps_cpu(labels) {
                    // The key of an array of one row is not covered, and the CPU is no part of any key.
                    true if labels.len() == 1 => 4 + all.saturating_sub(2),
                    true => all.saturating_sub(2),
                    false if labels.is_empty() => 4,
                    false => all,
                }
            }
            What::Histogram(histogram) => covered(histogram.declared.labels.iter().chain([&histogram.declared.bucket])),
        }
    }
}

/// What is wrong with a pair's metrics beside its object, or the map of each.
fn maps(metrics: &[PairMetric], files: &Files, known: &BTreeMap<String, PairMap>) -> Vec<Result<PairMap, PairError>> {
    let map = |metric: &PairMetric| {
        let what = &metric.what;
        let wrong = |reason: String| PairError { file: files.yaml.clone(), place: what.place().into(), reason };
        let name = what.name();
        let Some(map) = known.get(name) else {
            let maps: Vec<&str> = known.keys().filter(|map| !map.contains('.')).map(|map| &**map).collect();
            let meant = crate::config::did_you_mean(name, maps.iter().copied());
            let reason = format!("expected a map `{name}` in {}, which has {}{meant}", files.object, maps.join(", "));
            return Err(wrong(reason));
        };
        if !map.is_table {
            return Err(wrong(format!("expected the map `{name}` to be a hash or an array")));
        }
        if map.value_size != 8 {
            return Err(wrong(format!("expected values of 8 bytes in the map `{name}`, got {}", map.value_size)));
        }
        let covered = what.covers(map.by_cpu);
        if covered != map.key_size {
            return Err(wrong(format!(
                "expected labels whose sizes and paddings add up to the key of the map `{name}`, which has {} bytes, got {covered}",
                map.key_size
            )));
        }
        Ok(map.clone())
    };
    metrics.iter().map(map).collect()
}

impl PairModule {
    /// The module of a pair's files, and the metrics that it is to serve. What is wrong is in its status.
    pub fn new(files: PairFiles) -> (PairModule, Vec<ServedMetric>) {
        let PairFiles { name, yaml, text, object, bytes } = files;
        let files = Files { name, yaml: yaml.display().to_string(), object: object.display().to_string() };
        let config = text.map_err(|error| vec![error]).and_then(|text| PairConfig::parse(&files.yaml, &text));
        let (mut errors, mut metrics) = (Vec::new(), Vec::new());
        match config {
            Ok(PairConfig { counters, histograms, notes }) => {
                errors.extend(notes);
                let counters = counters.into_iter().map(What::Counter);
                let histograms = histograms.into_iter().map(|declared| {
                    let scale = Scale::of(&declared);
                    What::Histogram(Box::new(KeptHistogram { declared, scale, tops: HashMap::new(), read: None }))
                });
                metrics = counters.chain(histograms).collect();
            }
            Err(wrong) => {
                errors = wrong;
                metrics.clear();
            }
        }
        let has_failed = metrics.is_empty() || bytes.is_err();
        let object = bytes.map_err(|error| errors.push(error)).ok();
        let served = metrics
            .iter()
            .map(|what| match what {
                What::Counter(counter) => ServedMetric::counter(counter),
                What::Histogram(histogram) => ServedMetric::histogram(&histogram.declared, &histogram.scale),
            })
            .collect();
        let error = sentences(&errors);
        let status = PairStatus { state: if has_failed { "failed" } else { "" }, error, ..PairStatus::default() };
        let unloaded = || PairError { file: files.object.clone(), place: "object".into(), reason: "not loaded".into() };
        let metrics = metrics.into_iter().map(|what| PairMetric {
            labels: what.labels().iter().map(|label| leak(super::tables::word(&label.name))).collect(),
            what,
            tables: Tables::default(),
            map: Err(unloaded()),
            told: false,
        });
        let metrics = metrics.collect();
        let module = PairModule { files, object, metrics, names: Names::default(), loaded: None, status, undecoded: 0 };
        (module, served)
    }

    /// The name of the pair.
    pub fn name(&self) -> &str {
        &self.files.name
    }

    /// The number of metrics that the YAML declares.
    pub fn metrics(&self) -> usize {
        self.metrics.len()
    }

    /// Notes the tables of a metric; an error if it has none.
    pub fn serve(&mut self, metric: usize, tables: Result<Tables, PairError>) {
        match (tables, self.metrics.get_mut(metric)) {
            (Ok(tables), Some(metric)) => metric.tables = tables,
            (Err(error), _) => self.fail(&[error]),
            _ => {}
        }
    }

    fn fail(&mut self, errors: &[PairError]) {
        let before = std::mem::take(&mut self.status.error);
        let parts = [before, sentences(errors)];
        self.status.error = parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("; ");
        self.status.state = "failed";
    }

    /// Checks the pair without loading it: the object opens, and has the maps that the YAML names.
    pub fn check(&mut self) {
        if self.status.state == "failed" {
            return;
        }
        let opened = self.open();
        if let Some(opened) = opened {
            self.status.maps = opened.maps().len() as u32;
            self.match_maps(&opened.maps());
        }
    }

    /// Whether labels are names of kernel symbols.
    pub fn resolves_symbols(&self) -> bool {
        let decoders = self.metrics.iter().flat_map(|metric| metric.what.labels()).flat_map(|label| &label.decoders);
        decoders.into_iter().any(|decoder| matches!(decoder, Decoder::Ksym | Decoder::Kstack))
    }

    /// What became of the pair.
    pub fn status(&self) -> &PairStatus {
        &self.status
    }

    fn open(&mut self) -> Option<OpenPair> {
        let bytes = self.object.take()?;
        // Map names of the kernel's own sections begin with it.
        match OpenPair::open(&super::tables::word(&self.files.name), bytes) {
            Ok(opened) => Some(opened),
            Err(refusal) => {
                let error = self.refused("object", &refusal);
                self.fail(&[error]);
                None
            }
        }
    }

    fn refused(&self, place: &str, refusal: &crate::loader::Refusal) -> PairError {
        let reason = match refusal.errno {
            0 => refusal.to_string(),
            errno => format!("{} ({:?})", refusal, nix::errno::Errno::from_raw(errno)),
        };
        PairError { file: self.files.object.clone(), place: place.into(), reason }
    }

    /// A map that is wrong costs its metric.
    fn match_maps(&mut self, known: &BTreeMap<String, PairMap>) {
        let found = maps(&self.metrics, &self.files, known);
        let errors: Vec<PairError> = found.iter().filter_map(|map| map.as_ref().err().cloned()).collect();
        let all = errors.len() == found.len();
        for (metric, map) in self.metrics.iter_mut().zip(found) {
            metric.map = map;
        }
        if !errors.is_empty() {
            self.fail(&errors);
            self.status.state = if all { "failed" } else { "partly attached" };
        }
    }

    /// Loads the pair, and attaches its programs.
    pub fn load(&mut self) {
        if self.status.state == "failed" {
            return;
        }
        let begin = Instant::now();
        let Some(opened) = self.open() else { return };
        self.match_maps(&opened.maps());
        if self.status.state == "failed" {
            return;
        }
        let loaded = match opened.load() {
            Ok(loaded) => loaded,
            Err(refusal) => {
                let error = self.refused("object", &refusal);
                return self.fail(&[error]);
            }
        };
        let errors: Vec<PairError> = loaded
            .programs()
            .iter()
            .filter_map(|program| {
                let refusal = program.result.as_ref().err()?;
                Some(self.refused(&format!("program {} at {}", program.name, program.section), refusal))
            })
            .collect();
        let is_whole = self.status.error.is_empty() || self.status.state.is_empty();
        let attached = loaded.programs().len() - errors.len();
        if !errors.is_empty() {
            self.fail(&errors);
        }
        self.status.state = match (attached, errors.is_empty() && is_whole) {
            (0, _) if !errors.is_empty() => "failed",
            (_, true) => "running",
            _ => "partly attached",
        };
        let program = |program: &crate::loader::PairProgram| {
            let refusal = program.result.as_ref().err().map(ToString::to_string);
            (program.name.clone(), program.section.clone(), refusal)
        };
        self.status.programs = loaded.programs().iter().map(program).collect();
        self.status.maps = loaded.maps().len() as u32;
        self.status.memory = loaded.memory();
        self.status.loading = begin.elapsed();
        self.loaded = Some(loaded);
    }
}

fn sentences(errors: &[PairError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Module for PairModule {
    /// Loads the pair, since it has an object of its own: the agent's is loaded next, by the same thread.
    fn plan(&mut self, _host: &Host, _plan: &mut Plan, _constants: &mut types::rodata) {
        self.load();
    }

    fn pair(&self) -> Option<PairStatus> {
        Some(self.status.clone())
    }

    fn refresh(&mut self, _kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        let PairModule { metrics, loaded, names, status, undecoded, files, .. } = self;
        let is_own = |metric: &&mut PairMetric| metric.tables.all().any(|spec| table.is(spec));
        let metric = metrics.iter_mut().find(is_own).ok_or_else(|| RefreshError("not served".into()))?;
        let loaded = loaded.as_ref().filter(|_| status.state != "failed");
        let loaded = loaded.ok_or_else(|| RefreshError(status.error.clone()))?;
        let map = metric.map.as_ref().map_err(|error| RefreshError(error.to_string()))?;
        let read = |row: &mut dyn FnMut(&[u8], &[u64])| {
            let wrong = |error| RefreshError(format!("{}: map {}: {error}", files.object, map.name));
            loaded.read(map, row).map_err(wrong)
        };
        let labels = &metric.labels;
        let mut note = |skipped: &Skipped| {
            *undecoded += skipped.undecoded;
            if let (Some(reason), false) = (&skipped.reason, metric.told) {
                log::warn!("user.{}: {}: row left out: {reason}", files.name, map.name);
                metric.told = true;
            }
        };
        match &mut metric.what {
            What::Counter(counter) => {
                let mut series = CounterSeries::default();
                read(&mut |key, values| series.add(counter, map.by_cpu, key, values, names))?;
                note(&series.skipped);
                let cpu = map.by_cpu && keeps_cpu(&counter.labels);
                fill_counter(table, labels, cpu, &series.values);
            }
            What::Histogram(histogram) => {
                let KeptHistogram { declared, scale, tops, read: kept } = &mut **histogram;
                let cluster = table.cluster().unwrap_or(0);
                let taken = kept.take().filter(|kept| kept.by != cluster && kept.at.elapsed() < SAME_FETCH);
                let (series, is_first) = match taken {
                    Some(taken) => (taken.series, false),
                    None => {
                        let mut series = HistogramSeries::default();
                        read(&mut |key, values| series.add(declared, map.by_cpu, key, values, names))?;
                        note(&series.skipped);
                        (series, true)
                    }
                };
                match metric.tables.buckets.is_some_and(|spec| table.is(spec)) {
                    true => fill_buckets(table, labels, scale, tops, &series),
                    false => fill_series(table, labels, scale, &series),
                }
                if is_first {
                    *kept = Some(Read { at: Instant::now(), by: cluster, series });
                }
            }
        }
        Ok(())
    }

    fn losses(&self, _kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        each(UNDECODED, self.undecoded);
    }
}

/// The names of series: those of equal labels once cleaned are told apart.
#[derive(Default)]
struct Instances(HashMap<String, usize>);

impl Instances {
    fn name(&mut self, texts: &[Vec<u8>], cpu: bool) -> String {
        let last = texts.len().wrapping_sub(1);
        let part = |(i, text): (usize, &Vec<u8>)| match cpu && i == last {
            true => format!("cpu{}", clean(text)),
            false => clean(text),
        };
        let name = texts.iter().enumerate().map(part).collect::<Vec<_>>().join("::");
        let times = self.0.entry(name.clone()).or_default();
        *times += 1;
        if *times == 1 {
            name
        } else {
            format!("{name}~{times}")
        }
    }
}

/// A label's text as a part of a name: no blank, comma or control character, and not empty.
fn clean(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let cleaned = text.chars().map(|c| match c {
        '\n' => ';',
        c if c.is_whitespace() || c.is_control() || c == ',' => '_',
        c => c,
    });
    let cleaned: String = cleaned.collect();
    if cleaned.is_empty() {
        "_".into()
    } else {
        cleaned
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

fn fill_counter(table: &mut Table, labels: &[&'static str], cpu: bool, values: &BTreeMap<Texts, u64>) {
    let mut instances = Instances::default();
    for (texts, value) in values {
        match labels.is_empty() {
            true => drop(table.single().set(COUNTER, *value)),
            false => {
                let name = instances.name(texts, cpu);
                let labels = Arc::new(labels_of(labels, texts));
                table.named(name.as_bytes()).set(COUNTER, *value).labels(&labels);
            }
        }
    }
}

fn fill_series(table: &mut Table, labels: &[&'static str], scale: &Scale, series: &HistogramSeries) {
    let mut instances = Instances::default();
    for (texts, keys) in &series.keys {
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
        match scale.factor {
            Some(factor) => drop(row.set(SUM, sum.wrapping_mul(factor))),
            None => drop(row.set(FLOAT_SUM, sum as f64 * scale.ratio)),
        }
    }
}

fn fill_buckets(
    table: &mut Table,
    labels: &[&'static str],
    scale: &Scale,
    tops: &mut HashMap<Texts, usize>,
    series: &HistogramSeries,
) {
    // Series that are gone need no top.
    tops.retain(|texts, _| series.keys.contains_key(texts));
    let mut instances = Instances::default();
    for (texts, keys) in &series.keys {
        let mut counts = scale.counts(keys);
        let top = tops.entry(texts.clone()).or_default();
        *top = (*top).max(counts.len());
        counts.resize(*top, 0);
        let name = if labels.is_empty() { String::new() } else { format!("::{}", instances.name(texts, false)) };
        for (bound, count) in scale.bounds.iter().zip(counts) {
            let mut own = labels_of(labels, texts);
            own.push(("le", SeriesLabel::Text(bound.le.clone())));
            table.named(format!("{}{name}", bound.name).as_bytes()).set(BUCKET, count).labels(&Arc::new(own));
        }
    }
}

/// Whether the declaration is one of a metric's tables.
impl Tables {
    fn all(&self) -> impl Iterator<Item = &'static TableSpec> {
        self.series.into_iter().chain(self.buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_series_are_clean_and_differ() {
        let mut instances = Instances::default();
        let mut name = |texts: &[&str], cpu| {
            let texts: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            instances.name(&texts, cpu)
        };
        assert_eq!(name(&["dm-0", "read"], false), "dm-0::read");
        assert_eq!(name(&["a b,c\td", ""], false), "a_b_c_d::_");
        assert_eq!(name(&["main\nidle"], false), "main;idle");
        assert_eq!(name(&["main;idle"], false), "main;idle~2");
        assert_eq!(name(&["9", "1"], true), "9::cpu1");
    }
}
