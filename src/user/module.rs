//! A pair at work: its object is loaded when the agent loads its modules, and each of its metrics is a table, or two for a histogram.

use super::cgroup_map::KeptCgroups;
use super::config::{Counter, Decoder, Histogram, Label, PairConfig, PairError};
use super::decode::covered;
use super::directory::PairFiles;
use super::events::EventSeries;
use super::kaddrs;
use super::names::Names;
use super::quantiles::Windows;
use super::rows::{fill_buckets, fill_counter, fill_series};
use super::series::{keeps_cpu, CounterSeries, HistogramSeries, Scale, Served, Skipped, Texts};
use super::tables::{leak, ServedMetric, Tables};
use crate::bpf::types;
use crate::kit::{
    excerpt, EachLoss, Host, Kernel, Layout, Module, PairStatus, Plan, RefreshError, Running, State, Table,
};
use crate::loader::{forget_pinned, want_pinned, LoadedPair, OpenPair, PairMap, PairOptions, PairSetup, PinRequest};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for which a histogram's map, read for one of its tables, serves the other too: a fetch asks for both within it.
const SAME_FETCH: Duration = Duration::from_millis(200);
/// Names and descriptions of lost rows.
const UNDECODED: &str = "undecoded: rows of maps whose keys could not be decoded";
const CUT: &str = "series: rows and events beyond the max_instances series of their metric; rows at each reading";
/// Name and description of lost events.
const LOST: &str = "events: events of programs that found no room in a buffer of their CPU";
/// Interval between readings of events; a buffer has to hold those of an interval.
const EVENTS_EVERY: Duration = Duration::from_millis(100);

/// The module of a pair.
pub struct PairModule {
    files: Files,
    options: PairOptions,
    object: Option<Vec<u8>>,
    metrics: Vec<PairMetric>,
    names: Names,
    kaddrs: Vec<String>,
    cgroup: Option<String>,
    cgroups: Option<KeptCgroups>,
    pin: bool,
    /// Largest kernel memory of its maps, in bytes.
    max_memory: u64,
    loaded: Option<LoadedPair>,
    status: PairStatus,
    undecoded: u64,
    /// Number of rows that had no room in the tables.
    cut: u64,
    events_read: Instant,
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
    /// Names of the labels in PCP.
    labels: Vec<&'static str>,
    /// The map of its values, or the reason why there are none.
    map: Result<PairMap, PairError>,
    told: bool,
}

enum What {
    Counter(Box<KeptCounter>),
    Histogram(Box<KeptHistogram>),
}

/// A counter at work.
struct KeptCounter {
    declared: Counter,
    served: Served,
    /// The series of events, for a counter of events.
    events: Option<EventSeries>,
}

/// A histogram at work.
struct KeptHistogram {
    declared: Histogram,
    served: Served,
    scale: Scale,
    /// Number of buckets of each series, up to the highest that ever counted.
    tops: HashMap<Texts, usize>,
    read: Option<Read>,
    windows: Option<Windows>,
}

/// A histogram's map as it was read for one of its tables, kept for the other.
struct Read {
    at: Instant,
    as_buckets: bool,
    series: HistogramSeries,
}

impl What {
    fn name(&self) -> &str {
        match self {
            What::Counter(counter) => &counter.declared.name,
            What::Histogram(histogram) => &histogram.declared.name,
        }
    }

    fn place(&self) -> &str {
        match self {
            What::Counter(counter) => &counter.declared.place,
            What::Histogram(histogram) => &histogram.declared.place,
        }
    }

    fn labels(&self) -> &[Label] {
        match self {
            What::Counter(counter) => &counter.declared.labels,
            What::Histogram(histogram) => &histogram.declared.labels,
        }
    }

    /// Returns the series of events, for a counter of events.
    fn events(&mut self) -> Option<&mut EventSeries> {
        match self {
            What::Counter(counter) => counter.events.as_mut(),
            What::Histogram(_) => None,
        }
    }

    fn counts_events(&self) -> bool {
        matches!(self, What::Counter(counter) if counter.events.is_some())
    }

    /// Returns the number of bytes of a map's key that the labels cover.
    fn covers(&self, by_cpu: bool) -> usize {
        match self {
            What::Counter(counter) => {
                let labels = &counter.declared.labels;
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

/// Returns the map of each metric, or the reason why it does not fit the metric.
fn maps(metrics: &[PairMetric], files: &Files, known: &BTreeMap<String, PairMap>) -> Vec<Result<PairMap, PairError>> {
    let map = |metric: &PairMetric| {
        let what = &metric.what;
        let wrong = |reason: String| PairError { file: files.yaml.clone(), place: what.place().into(), reason };
        let name = what.name();
        let Some(map) = known.get(name) else {
            let maps: Vec<&str> = known.keys().filter(|map| !map.contains('.')).map(|map| &**map).collect();
            let meant = crate::config::did_you_mean(name, maps.iter().copied());
            let name = excerpt(name);
            let reason = format!("expected a map `{name}` in {}, which has {}{meant}", files.object, maps.join(", "));
            return Err(wrong(reason));
        };
        if what.counts_events() {
            return match map.is_events {
                true => Ok(map.clone()),
                false => Err(wrong(format!(
                    "expected the map `{name}` to be a perf event array or a ring buffer, since `perf_event_array` is true"
                ))),
            };
        }
        if map.is_events {
            return Err(wrong(format!(
                "expected a line `perf_event_array: true`, since programs send events by the map `{name}`"
            )));
        }
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
    /// Makes the module of a pair's files, and the metrics that it serves. Errors are in its status.
    pub fn new(files: PairFiles, options: PairOptions) -> (PairModule, Vec<ServedMetric>) {
        let PairFiles { name, yaml, text, object, bytes } = files;
        let files = Files { name, yaml: yaml.display().to_string(), object: object.display().to_string() };
        let config = text.map_err(|error| vec![error]).and_then(|text| PairConfig::parse(&files.yaml, &text));
        let (mut errors, mut metrics) = (Vec::new(), Vec::new());
        let (mut wanted, mut place, mut cgroups, mut pins, mut most) = (Vec::new(), None, None, false, 0);
        match config {
            Ok(PairConfig { counters, histograms, kaddrs, cgroup_map, cgroup, pin, max_memory, notes }) => {
                most = max_memory;
                (wanted, place, cgroups, pins) = (kaddrs, cgroup, cgroup_map.map(KeptCgroups::new), pin);
                errors.extend(notes);
                let counters = counters.into_iter().map(|declared| {
                    let events = declared.events.map(EventSeries::new);
                    let served = Served::new(declared.max_instances);
                    What::Counter(Box::new(KeptCounter { declared, served, events }))
                });
                let histograms = histograms.into_iter().map(|declared| {
                    let (scale, windows) = (Scale::of(&declared), declared.quantiles.map(Windows::new));
                    let (served, tops) = (Served::new(declared.max_instances), HashMap::new());
                    What::Histogram(Box::new(KeptHistogram { declared, served, scale, tops, read: None, windows }))
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
                What::Counter(counter) => ServedMetric::counter(&counter.declared),
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
        let module = PairModule {
            files,
            options,
            object,
            metrics,
            names: Names::default(),
            kaddrs: wanted,
            cgroup: place,
            cgroups,
            pin: pins,
            max_memory: most,
            loaded: None,
            status,
            undecoded: 0,
            cut: 0,
            events_read: Instant::now(),
        };
        (module, served)
    }

    /// Returns the name of the pair.
    pub fn name(&self) -> &str {
        &self.files.name
    }

    /// Returns the number of metrics that the YAML declares.
    pub fn metrics(&self) -> usize {
        self.metrics.len()
    }

    /// Sets the tables of a metric. An error makes the state of the pair `failed`.
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
            if let Err(error) = self.setup(&opened.maps()) {
                self.fail(&[error]);
            }
        }
    }

    /// True if a label is decoded to the name of a kernel symbol.
    pub fn resolves_symbols(&self) -> bool {
        let decoders = self.metrics.iter().flat_map(|metric| metric.what.labels()).flat_map(|label| &label.decoders);
        decoders.into_iter().any(|decoder| matches!(decoder, Decoder::Ksym | Decoder::Kstack { .. }))
    }

    /// True if programs run at perf events: CPUs that come on line later need an event, too.
    pub fn samples(&self) -> bool {
        const SECTION: &[u8] = b"perf_event/";
        self.object.iter().any(|object| object.windows(SECTION.len()).any(|bytes| bytes == SECTION))
    }

    /// Returns the status of the pair.
    pub fn status(&self) -> &PairStatus {
        &self.status
    }

    fn open(&mut self) -> Option<OpenPair> {
        let bytes = self.object.take()?;
        // Map names of the kernel's own sections begin with it.
        match OpenPair::open(&super::tables::word(&self.files.name), bytes, &self.options) {
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

    /// Finds the map of each metric. A wrong map costs only its metric.
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

    /// Loads the pair and attaches its programs.
    pub fn load(&mut self) {
        // What is wrong with a file may be put right: its counts are kept till then.
        match self.pin || self.status.state == "failed" && Path::new(&self.files.yaml).exists() {
            true => want_pinned(&self.section()),
            false => forget_pinned(&self.section()),
        }
        if self.status.state == "failed" {
            return;
        }
        let begin = Instant::now();
        let Some(opened) = self.open() else { return };
        self.match_maps(&opened.maps());
        if self.status.state == "failed" {
            return;
        }
        let setup = match self.setup(&opened.maps()) {
            Ok(setup) => setup,
            Err(error) => return self.fail(&[error]),
        };
        let loaded = opened.load(&setup).map_err(|refusal| self.refused("object", &refusal));
        let loaded = loaded.and_then(|mut loaded| {
            // Programs that begin at once find cgroups in their map, and a buffer for their events.
            self.begin(&loaded)?;
            loaded.attach();
            Ok(loaded)
        });
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return self.fail(&[error]),
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
        self.status.loading = begin.elapsed();
        // Programs that run nowhere and the maps that they do not fill are no use of the kernel's memory.
        if self.status.state != "failed" {
            self.status.memory = loaded.memory();
            self.loaded = Some(loaded);
        }
    }
}

impl PairModule {
    /// Collects the values that loading needs: constants, the cgroup, and maps to pin. Fails if the maps are too large, or a kernel
    /// symbol is unknown.
    fn setup(&mut self, maps: &BTreeMap<String, PairMap>) -> Result<PairSetup, PairError> {
        self.fits(maps)?;
        if let Some(cgroups) = &mut self.cgroups {
            cgroups.check(&self.files.yaml, maps.get(cgroups.name()))?;
        }
        let wrong = |reason| PairError { file: self.files.yaml.clone(), place: "kaddrs".into(), reason };
        let constants = match self.kaddrs.is_empty() {
            true => Vec::new(),
            false => {
                let file = File::open("/proc/kallsyms").map_err(|error| wrong(format!("/proc/kallsyms: {error}")))?;
                kaddrs::constants(&self.kaddrs, BufReader::new(file)).map_err(|refusal| wrong(refusal.message))?
            }
        };
        Ok(PairSetup { constants, cgroup: self.cgroup.clone(), pin: self.to_pin() })
    }

    /// Checks that its maps fit into the allowed memory. The kernel would take minutes to allocate a map of many gigabytes, and
    /// cannot be stopped.
    fn fits(&self, maps: &BTreeMap<String, PairMap>) -> Result<(), PairError> {
        let sum = maps.values().fold(0_u64, |sum, map| sum.saturating_add(map.memory));
        let Some(largest) = maps.values().max_by_key(|map| map.memory).filter(|_| sum > self.max_memory) else {
            return Ok(());
        };
        let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
        let reason = format!(
            "expected maps of at most {} MB of kernel memory, got {} MB, of which `{}` has {}; give it fewer entries, or add a line \
             `max_memory: {}` to {}",
            megabytes(self.max_memory),
            megabytes(sum),
            largest.name,
            megabytes(largest.memory),
            megabytes(sum),
            self.files.yaml
        );
        Err(PairError { file: self.files.object.clone(), place: "maps".into(), reason })
    }

    fn section(&self) -> String {
        format!("user.{}", super::tables::word(&self.files.name))
    }

    /// Returns the maps of the metrics, if they are to be pinned, with a layout of labels and buckets: these give keys their meaning.
    fn to_pin(&self) -> Option<PinRequest> {
        let (mut layout, mut maps) = (Layout::begin(), Vec::new());
        for metric in self.metrics.iter().filter(|_| self.pin) {
            let Some(map) = metric.map.as_ref().ok().filter(|map| !map.is_events) else { continue };
            maps.push(map.name.clone());
            layout = layout.with(&map.name);
            for label in metric.what.labels() {
                layout = layout.with(format_args!("{} {} {}", label.name, label.size, label.padding));
            }
            if let What::Histogram(histogram) = &metric.what {
                let Histogram { bucket, buckets, multiplier, .. } = &histogram.declared;
                layout = layout.with(format_args!("{} {} {buckets:?} {multiplier:?}", bucket.size, bucket.padding));
            }
        }
        (!maps.is_empty()).then(|| PinRequest { unit: self.section(), layout, maps })
    }

    /// Prepares maps and buffers that programs use from their first run on.
    fn begin(&mut self, loaded: &LoadedPair) -> Result<(), PairError> {
        let wrong = |place: &str, reason| PairError { file: self.files.object.clone(), place: place.into(), reason };
        if let Some(cgroups) = &mut self.cgroups {
            cgroups.update(loaded).map_err(|refusal| wrong("cgroup_id_map", refusal.to_string()))?;
        }
        for metric in &mut self.metrics {
            let size = covered(metric.what.labels());
            if let (Some(events), Ok(map)) = (metric.what.events(), &metric.map) {
                let reader = loaded.events(&map.name, size, events.buffer());
                events.reader = Some(reader.map_err(|refusal| wrong(&map.name, refusal.to_string()))?);
            }
        }
        Ok(())
    }

    /// Counts the events since the last reading.
    fn read_events(&mut self) {
        let PairModule { metrics, names, undecoded, cut, files, .. } = self;
        for metric in metrics {
            let What::Counter(counter) = &mut metric.what else { continue };
            let KeptCounter { declared, events: Some(events), .. } = &mut **counter else { continue };
            let skipped = events.read(declared, names);
            note(&skipped, &files.name, &declared.name, (undecoded, cut), &mut metric.told);
        }
        self.events_read = Instant::now();
    }

    /// Reads the histograms with quantiles.
    fn read_windows(&mut self) {
        let PairModule { metrics, names, loaded: Some(loaded), .. } = self else { return };
        for metric in metrics {
            let (What::Histogram(histogram), Ok(map)) = (&mut metric.what, &metric.map) else { continue };
            let KeptHistogram { declared, served, scale, windows: Some(windows), .. } = &mut **histogram else {
                continue;
            };
            let mut series = HistogramSeries::default();
            // What a fetch would tell of this look, it tells of its own.
            let read =
                loaded.read(map, &mut |key, values| series.add(declared, map.by_cpu, key, values, names, served));
            if read.is_ok() {
                series.finish(served);
                let counts = series.values.iter().map(|(texts, keys)| (texts.clone(), scale.counts(keys)));
                windows.take(&counts.collect(), Instant::now());
            }
        }
    }
}

/// Counts rows or events that are in no series, and logs the first of a metric.
fn note(skipped: &Skipped, pair: &str, map: &str, (undecoded, cut): (&mut u64, &mut u64), told: &mut bool) {
    *undecoded += skipped.undecoded;
    *cut += skipped.cut;
    if let (Some(reason), false) = (&skipped.reason, *told) {
        log::warn!("user.{pair}: {map}: row left out: {reason}");
        *told = true;
    }
}

/// Joins errors to a text, in which equal errors in several places are one.
fn sentences(errors: &[PairError]) -> String {
    let is_same = |one: &PairError, other: &PairError| (&one.file, &one.reason) == (&other.file, &other.reason);
    let sentence = |same: &[PairError]| {
        let [first, others @ ..] = same else { return String::new() };
        let also: Vec<&str> = others.iter().take(2).map(|error| &*error.place).collect();
        let also = if also.is_empty() { String::new() } else { format!(", {}", also.join(", ")) };
        let more = if others.len() > 2 { format!(" and {} more", others.len() - 2) } else { String::new() };
        PairError { place: format!("{}{also}{more}", first.place), ..first.clone() }.to_string()
    };
    errors.chunk_by(is_same).map(sentence).collect::<Vec<_>>().join("; ")
}

impl Module for PairModule {
    /// Plans nothing: the pair has an object of its own.
    fn plan(&mut self, _host: &Host, _plan: &mut Plan, _constants: &mut types::rodata) {}

    fn start(mut self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        self.load();
        let status = self.status.clone();
        let tables: Vec<Tables> = self.metrics.iter().map(|metric| metric.tables).collect();
        let mut running = Running::of(*self)
            .tick(Self::tick)
            .woken(|pair, _| pair.read_events())
            .due(Self::due)
            .losses(Self::losses)
            .let_go(|pair| drop(pair.loaded.take_if(|loaded| loaded.can_let_go())))
            .state(|pair| {
                let pair = pair.clone();
                let runs = move || Some(pair.idle()?.loaded.as_ref().map_or((0, 0), LoadedPair::runs));
                State::Pair(status, Box::new(runs))
            });
        for (metric, Tables { series, buckets }) in tables.into_iter().enumerate() {
            for (spec, as_buckets) in
                series.map(|spec| (spec, false)).into_iter().chain(buckets.map(|spec| (spec, true)))
            {
                running = running.table(spec, move |pair, _, table| pair.fill(metric, as_buckets, table));
            }
        }
        running.started()
    }
}

impl PairModule {
    /// Fills a table of a metric: its series, or the buckets of these.
    fn fill(&mut self, metric: usize, as_buckets: bool, table: &mut Table) -> Result<(), RefreshError> {
        let PairModule { metrics, loaded, names, status, undecoded, cut, files, .. } = self;
        let metric = &mut metrics[metric];
        let loaded = loaded.as_ref().filter(|_| status.state != "failed");
        let loaded = loaded.ok_or_else(|| RefreshError(status.error.clone()))?;
        let map = metric.map.as_ref().map_err(|error| RefreshError(error.to_string()))?;
        let read = |row: &mut dyn FnMut(&[u8], &[u64])| {
            let wrong = |error| RefreshError(format!("{}: map {}: {error}", files.object, map.name));
            loaded.read(map, row).map_err(wrong)
        };
        let labels = &metric.labels;
        let mut note =
            |skipped: &Skipped| note(skipped, &files.name, &map.name, (&mut *undecoded, &mut *cut), &mut metric.told);
        match &mut metric.what {
            What::Counter(counter) => {
                let KeptCounter { declared, served, events } = &mut **counter;
                if let Some(events) = events {
                    note(&events.read(declared, names));
                    fill_counter(table, labels, false, events.values());
                    return Ok(());
                }
                let mut series = CounterSeries::default();
                read(&mut |key, values| series.add(declared, map.by_cpu, key, values, names, served))?;
                series.finish(served);
                note(&series.skipped);
                let cpu = map.by_cpu && keeps_cpu(&declared.labels);
                fill_counter(table, labels, cpu, series.values.iter().map(|(texts, value)| (texts, *value)));
            }
            What::Histogram(histogram) => {
                let KeptHistogram { declared, served, scale, tops, read: kept, windows } = &mut **histogram;
                let taken = kept.take().filter(|kept| kept.as_buckets != as_buckets && kept.at.elapsed() < SAME_FETCH);
                let (series, is_first) = match taken {
                    Some(taken) => (taken.series, false),
                    None => {
                        let mut series = HistogramSeries::default();
                        read(&mut |key, values| series.add(declared, map.by_cpu, key, values, names, served))?;
                        series.finish(served);
                        note(&series.skipped);
                        (series, true)
                    }
                };
                match as_buckets {
                    true => {
                        let cut = fill_buckets(table, labels, scale, tops, &series, declared.max_instances);
                        note(&Skipped { cut, ..Skipped::default() });
                    }
                    false => fill_series(table, labels, scale, windows.as_ref(), &series),
                }
                if is_first {
                    *kept = Some(Read { at: Instant::now(), as_buckets, series });
                }
            }
        }
        Ok(())
    }

    /// Reads events and the histograms with quantiles, updates the map of cgroups, and attaches to CPUs that have come on line.
    fn tick(&mut self, _kernel: &dyn Kernel) {
        self.read_events();
        self.read_windows();
        if let (Some(cgroups), Some(loaded)) = (&mut self.cgroups, &self.loaded) {
            cgroups.tick(loaded, &self.files.name);
        }
        for (program, refusal) in self.loaded.iter_mut().flat_map(LoadedPair::follow_cpus) {
            log::warn!("user.{}: program {program} on a CPU that came on line: {refusal}", self.files.name);
        }
    }

    fn due(&self) -> Option<Instant> {
        let counts_events = self.loaded.is_some() && self.metrics.iter().any(|metric| metric.what.counts_events());
        counts_events.then(|| self.events_read + EVENTS_EVERY)
    }

    fn losses(&self, _kernel: &dyn Kernel, each: EachLoss<'_>) {
        each(UNDECODED, self.undecoded);
        let events = || {
            self.metrics.iter().filter_map(|metric| match &metric.what {
                What::Counter(counter) => counter.events.as_ref(),
                What::Histogram(_) => None,
            })
        };
        if events().next().is_some() {
            each(LOST, events().map(|events| events.lost).sum());
        }
        each(CUT, self.cut + events().map(|events| events.cut).sum::<u64>());
    }
}
