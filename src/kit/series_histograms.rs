//! Histograms by series: rows of maps tell which series they belong to, and series come and go; or all of them are always there.
//!
//! A [`SeriesDef`] describes the histograms of a series and their tables; [`SeriesHistograms`] keeps them.

use super::kernel::{Kernel, Row, RowsView};
use super::{
    set_buckets, set_counts, Buckets, Declared, Fine, HistogramTables, Kept, MapDef, Metric, Rows, Seconds,
    SeriesLabel, SeriesLabels, Shape, Spec, Starting, Table, TableSpec, Window, WindowClock,
};
use crate::bpf::types::fine_hist;
use crate::bpf::{Field, Untyped};
use std::collections::BTreeMap;
use std::iter::Zip;
use std::ops::Range;
use std::slice::{Iter, IterMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of ticks after which the name of a series is looked up again.
pub const NAMES_EVERY: u64 = 10;

/// Rows of a map that belong to series: all of them, or each second, third and so on.
pub struct SeriesRows<T: 'static> {
    map: Rows<T>,
    key: RowKey,
    first: usize,
    step: usize,
}

/// The key of a row's series.
#[derive(Clone, Copy)]
enum RowKey {
    /// A word of the row.
    Word(Field<Untyped, u64>),
    /// The number of the row, from 1 on; beginning again as often as the namer says.
    Number,
    /// 1, since there is one series only.
    One,
}

impl<T> SeriesRows<T> {
    /// Takes all rows; `key` is the field that tells the series, 0 while a row belongs to none.
    pub const fn all(map: Rows<T>, key: Field<T, u64>) -> Self {
        SeriesRows { map, key: RowKey::Word(key.erased()), first: 0, step: 1 }
    }

    /// Takes one row of each `step`, beginning with the row `first`.
    pub const fn each(map: Rows<T>, key: Field<T, u64>, first: usize, step: usize) -> Self {
        SeriesRows { map, key: RowKey::Word(key.erased()), first, step }
    }

    /// Takes all rows, each for a series of its own, whose key is the row's number from 1 on. Behind the first [`Namer::turn`] rows are
    /// as many of the same series, and so on.
    pub const fn by_number(map: Rows<T>) -> Self {
        SeriesRows { map, key: RowKey::Number, first: 0, step: 1 }
    }

    /// Takes all rows for one series, whose key is 1.
    pub const fn of_one(map: Rows<T>) -> Self {
        SeriesRows { map, key: RowKey::One, first: 0, step: 1 }
    }

    /// Returns a part of the rows of a series, whose sum is the series' own.
    pub const fn part<F>(&self, field: Field<T, F>) -> SeriesPart<F> {
        let source = Source { map: self.map.def, key: self.key, first: self.first, step: self.step };
        SeriesPart { source, field: field.erased() }
    }
}

/// A part of the rows of a series.
pub struct SeriesPart<F> {
    source: Source,
    field: Field<Untyped, F>,
}

#[derive(Clone, Copy)]
struct Source {
    map: MapDef,
    key: RowKey,
    first: usize,
    step: usize,
}

/// Histograms of series, and their tables.
pub struct SeriesDef {
    /// Tables.
    pub tables: HistogramTables,
    /// Histograms in the order of the metrics.
    pub histograms: &'static [SeriesPart<fine_hist>],
    /// Metric with the name of the series.
    pub name: Option<Metric<str>>,
    /// Sums of counters.
    pub counters: &'static [(Metric<u64>, SeriesPart<u64>)],
    /// A label and its values, if each histogram above is the first of an array: element n is a series of its own, `NAME::VALUE` with
    /// value n, once it has counted.
    pub split: Option<(&'static str, &'static [&'static str])>,
    /// Tables of the sum over all series, and the histograms that they have.
    pub sum: Option<(HistogramTables, &'static [usize])>,
}

impl SeriesDef {
    /// Default values of the optional fields.
    pub const NEW: SeriesDef = SeriesDef {
        tables: HistogramTables { by_series: &TableSpec::NEW, by_bucket: &TableSpec::NEW, in_seconds: &TableSpec::NEW },
        histograms: &[],
        name: None,
        counters: &[],
        split: None,
        sum: None,
    };

    /// True if the series are always the same: their tables need no file, and their counts are always exact.
    fn is_fixed(&self) -> bool {
        !self.histograms.iter().any(|part| matches!(part.source.key, RowKey::Word(_)))
    }

    fn splits(&self) -> usize {
        self.split.map_or(1, |(_, values)| values.len())
    }
}

/// Name and labels of a series.
pub type NamedSeries = (Vec<u8>, SeriesLabels);

/// Histograms whose namer is a function.
pub type NamedHistograms = SeriesHistograms<fn(u64) -> Option<NamedSeries>>;

/// A source of the names of series, each of which has a key in its rows.
pub trait Namer: Send {
    /// Returns the name and labels of a series; `None` if it is gone and has none.
    fn name(&mut self, key: u64) -> Option<NamedSeries>;

    /// Looks at what may have changed, once a second; with `again` names are looked up after this.
    fn tick(&mut self, _kernel: &dyn Kernel, _again: bool) {}

    /// Number of rows by number after which the series come again.
    fn turn(&self) -> usize {
        usize::MAX
    }

    /// True if a series counts; asked once a second.
    fn counts(&mut self, _kernel: &dyn Kernel, _key: u64) -> bool {
        true
    }

    /// True if what a series counts is part of the sum over all.
    fn is_in_sum(&self, _key: u64) -> bool {
        true
    }
}

impl<F: FnMut(u64) -> Option<NamedSeries> + Send> Namer for F {
    fn name(&mut self, key: u64) -> Option<NamedSeries> {
        self(key)
    }
}

/// Histograms by series, with their windows.
pub struct SeriesHistograms<N> {
    /// Source of the names.
    pub namer: N,
    /// Buckets that are served.
    pub buckets: Buckets,
    clock: WindowClock,
    start: Instant,
    looks: u64,
    part: u64,
    views: Vec<View>,
    /// Rows by definition, with marks of those that belong to a series.
    sources: Vec<(Source, Vec<bool>)>,
    /// Histograms of a series, those of one definition after those of another.
    parts: Vec<Part<fine_hist>>,
    /// The sum that a histogram adds to, if any: its definition, and its place there.
    sums: Vec<Option<(usize, usize)>>,
    series: BTreeMap<u64, Series>,
}

/// A field of a row, with the number of its source.
struct Part<F>(usize, Field<Untyped, F>);

impl<F> Clone for Part<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Part<F> {}

/// A definition, and its part in what is kept of a series.
struct View {
    def: &'static SeriesDef,
    sources: Range<usize>,
    /// Number of its first histogram.
    first: usize,
    counters: Vec<(Metric<u64>, Part<u64>)>,
    /// Histograms of the sum, each with the number of the one that it sums up.
    sum: Vec<(usize, Kept)>,
}

struct Series {
    named: Option<(Vec<u8>, Arc<SeriesLabels>)>,
    counts: bool,
    is_in_sum: bool,
    /// Indices of its rows, by source.
    rows: Vec<Vec<usize>>,
    kept: Vec<Kept>,
}

type Views<'a> = [RowsView<'a, Untyped>];
type Histograms<'a> = Zip<IterMut<'a, Kept>, Iter<'a, Part<fine_hist>>>;

impl NamedHistograms {
    /// Makes the histograms of a definition with one series, which has no name.
    pub fn of_one(def: &'static SeriesDef, window: Window, buckets: Buckets) -> NamedHistograms {
        NamedHistograms::new(&[def], window, buckets, |_| Some(NamedSeries::default()))
    }

    /// Makes the module of which these histograms are all; its options are those of [`crate::options!`]'s line `histograms`.
    pub fn module(
        spec: &'static Spec,
        defs: &'static [&'static SeriesDef],
        (window, buckets, prometheus): (Seconds, Buckets, bool),
        name: fn(u64) -> Option<NamedSeries>,
    ) -> Box<Declared<NamedHistograms>> {
        Declared::of(spec, NamedHistograms::new(defs, window.window(), buckets, name), move |running| {
            NamedHistograms::add_tables(running, defs, prometheus, |histograms| Some(histograms))
                .tick(|histograms, kernel| histograms.tick(kernel))
        })
    }
}

impl<N: Namer> SeriesHistograms<N> {
    /// Makes histograms without series. All definitions have the same series; those of the first one are served by [`Self::served`].
    pub fn new(defs: &[&'static SeriesDef], window: Window, buckets: Buckets, namer: N) -> Self {
        let (mut views, mut sources, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for &def in defs {
            let (from, first) = (sources.len(), parts.len());
            for split in 0..def.splits() {
                let histograms = def.histograms.iter();
                parts.extend(histograms.map(|part| Part(add(&mut sources, from, part), part.field.further(split))));
            }
            let counters = def.counters.iter();
            let counters = counters.map(|(metric, part)| (*metric, Part(add(&mut sources, from, part), part.field)));
            let counters = counters.collect();
            let sum = def.sum.iter().flat_map(|(_, histograms)| *histograms);
            let sum = sum.map(|histogram| (first + histogram, Kept::default())).collect();
            views.push(View { def, sources: from..sources.len(), first, counters, sum });
        }
        let mut sums = vec![None; parts.len()];
        for (number, view) in views.iter().enumerate() {
            view.sum.iter().enumerate().for_each(|(at, (of, _))| sums[*of] = Some((number, at)));
        }
        let sources = sources.into_iter().map(|source| (source, Vec::new())).collect();
        let clock = WindowClock::new(window);
        let (start, series) = (Instant::now(), BTreeMap::new());
        SeriesHistograms { namer, buckets, clock, start, looks: 0, part: 0, views, sources, parts, sums, series }
    }

    /// Adds the tables of these definitions, the same as those of [`Self::new`], to those of a module, and the work of each second.
    pub fn add_tables<T: Send + 'static>(
        running: Starting<T>,
        defs: &[&'static SeriesDef],
        prometheus: bool,
        of: fn(&mut T) -> Option<&mut Self>,
    ) -> Starting<T>
    where
        N: 'static,
    {
        let with = move |fill: fn(&mut Self, usize, &dyn Kernel, &mut Table), view: usize| {
            move |module: &mut T, kernel: &dyn Kernel, table: &mut Table| {
                of(module).into_iter().for_each(|histograms| fill(histograms, view, kernel, table));
            }
        };
        let running = running.tick(move |module, kernel| of(module).into_iter().for_each(|of| of.tick(kernel)));
        defs.iter().enumerate().fold(running, |running, (view, def)| {
            let (fill, fill_buckets) = (with(Self::fill, view), with(Self::fill_buckets, view));
            if def.is_fixed() {
                return running.quick_histograms(def.tables, prometheus, fill, fill_buckets);
            }
            let running = running.histograms(def.tables, prometheus, fill, fill_buckets);
            let Some((tables, _)) = def.sum else { return running };
            let (fill, fill_buckets) = (with(Self::fill_sum, view), with(Self::fill_buckets_of_sum, view));
            running.histograms(tables, prometheus, fill, fill_buckets)
        })
    }

    /// Adds new counts to the windows; called once a second.
    pub fn tick(&mut self, kernel: &dyn Kernel) {
        self.look(kernel, self.start.elapsed());
    }

    /// Does the work of a tick at this time after the start.
    pub fn look(&mut self, kernel: &dyn Kernel, since_start: Duration) {
        let rows = self.find(kernel, 0..self.sources.len());
        self.looks += 1;
        let again = self.looks.is_multiple_of(NAMES_EVERY);
        self.namer.tick(kernel, again);
        for (&key, series) in &mut self.series {
            series.counts = self.namer.counts(kernel, key);
            if again {
                let found = self.namer.name(key).map(shared);
                if series.named != found {
                    series.named = found;
                }
            }
        }
        let continues = self.sources.first().is_some_and(|(source, _)| kernel.continues(&source.map));
        let part = self.clock.look(since_start, continues);
        self.part = part;
        let mut looks = 0;
        for series in self.series.values_mut() {
            let is_in_sum = series.is_in_sum();
            for (number, (kept, &of)) in series.kept.iter_mut().zip(&self.parts).enumerate() {
                looks += 1;
                let counted = kept.look(part, parts(&rows, &series.rows, of), self.clock.look_at(looks));
                if let Some((view, at)) = self.sums[number].filter(|_| is_in_sum) {
                    self.views[view].sum[at].1.add(part, &counted);
                }
            }
        }
        self.views.iter_mut().flat_map(|view| &mut view.sum).for_each(|(_, sum)| sum.pass(part));
    }

    /// Returns the part of the windows that the last tick added to.
    pub fn part(&self) -> u64 {
        self.part
    }

    /// True once the first tick is over.
    pub fn has_ticked(&self) -> bool {
        self.looks > 0
    }

    /// Returns the series that are served: their keys, names and labels.
    pub fn served(&self) -> impl Iterator<Item = (u64, &[u8], &Arc<SeriesLabels>)> {
        self.series
            .iter()
            .filter_map(|(&key, series)| series.served().map(|(name, labels)| (key, name.as_slice(), labels)))
    }

    /// Notes series that have counted since the last call.
    pub fn look_for_new(&mut self, kernel: &dyn Kernel) {
        let sources = self.views[0].sources.clone();
        self.find(kernel, sources);
    }

    /// Fills the table of series of the definition with this number.
    fn fill(&mut self, view: usize, kernel: &dyn Kernel, table: &mut Table) {
        let is_fixed = self.views[view].def.is_fixed();
        self.each(view, kernel, |view, rows, own, (key, name, labels), histograms| {
            let mut row = match view.def.tables.by_series.shape {
                Shape::Single => table.single(),
                Shape::Numbered => table.numbered(key as u32 - 1, name).labels(labels),
                _ => table.named(name).labels(labels),
            };
            if let Some(metric) = view.def.name {
                row = row.text(metric, name);
            }
            for &(metric, Part(source, field)) in &view.counters {
                let all = own[source].iter().filter_map(|&at| Some(rows[source].get(at)?.get(field)));
                row = row.set(metric, all.fold(0, u64::wrapping_add));
            }
            for (histogram, (kept, &part)) in histograms.enumerate() {
                let parts = parts(rows, own, part);
                row = if is_fixed { kept.set_exact(row, histogram, parts) } else { kept.set(row, histogram, parts) };
            }
        });
    }

    /// Fills a table of the buckets of series.
    fn fill_buckets(&mut self, view: usize, kernel: &dyn Kernel, table: &mut Table) {
        let buckets = self.buckets;
        self.each(view, kernel, |view, rows, own, (_, name, labels), histograms| {
            let totals: Vec<_> = histograms.map(|(_, &part)| Fine::total(parts(rows, own, part))).collect();
            let is_single = view.def.tables.by_series.shape == Shape::Single;
            set_buckets(table, buckets, (!is_single).then_some((name, labels)), &totals);
        });
    }

    /// Passes each series of a definition that is served: its rows, its key, name and labels, its histograms.
    fn each<'a>(
        &mut self,
        view: usize,
        kernel: &'a dyn Kernel,
        mut each: impl FnMut(&View, &Views<'a>, &[Vec<usize>], (u64, &[u8], &Arc<SeriesLabels>), Histograms<'_>),
    ) {
        let rows = self.find(kernel, self.views[view].sources.clone());
        let view = &self.views[view];
        let size = view.def.histograms.len();
        for (&key, Series { named, counts, rows: own, kept, .. }) in &mut self.series {
            let Some((name, labels)) = named.as_ref().filter(|_| *counts) else { continue };
            let numbers = view.first..view.first + size * view.def.splits();
            let splits = kept[numbers.clone()].chunks_mut(size).zip(self.parts[numbers].chunks(size));
            for (split, (kept, of)) in splits.enumerate() {
                let Some((label, values)) = view.def.split else {
                    each(view, &rows, own, (key, name, labels), kept.iter_mut().zip(of));
                    continue;
                };
                if kept.iter_mut().zip(of).all(|(kept, &part)| kept.read(parts(&rows, own, part)).0 == 0) {
                    continue;
                }
                let name = [&name[..], b"::", values[split].as_bytes()].concat();
                let value = (label, SeriesLabel::Text(values[split].to_owned()));
                let labels = Arc::new(labels.iter().cloned().chain([value]).collect());
                each(view, &rows, own, (key, &name, &labels), kept.iter_mut().zip(of));
            }
        }
    }

    /// Fills the table of the sum over all series.
    fn fill_sum(&mut self, view: usize, kernel: &dyn Kernel, table: &mut Table) {
        let rows = self.find(kernel, self.views[view].sources.clone());
        let mut row = table.single();
        for (histogram, &(number, ref kept)) in self.views[view].sum.iter().enumerate() {
            let (mut count, mut sum) = (0u64, 0u64);
            for series in self.series.values_mut().filter(|series| series.is_in_sum()) {
                let of = series.kept[number].read(parts(&rows, &series.rows, self.parts[number]));
                (count, sum) = (count.wrapping_add(of.0), sum.wrapping_add(of.1));
            }
            row = kept.set_quantiles(set_counts(row, histogram, (count, sum)), histogram);
        }
    }

    /// Fills a table of the buckets of the sum over all series.
    fn fill_buckets_of_sum(&mut self, view: usize, kernel: &dyn Kernel, table: &mut Table) {
        let rows = self.find(kernel, self.views[view].sources.clone());
        let own = || self.series.values().filter(|series| series.is_in_sum());
        let total = |part| Fine::total(own().flat_map(|series| parts(&rows, &series.rows, part)));
        let totals: Vec<_> = self.views[view].sum.iter().map(|&(number, _)| total(self.parts[number])).collect();
        set_buckets(table, self.buckets, None, &totals);
    }

    /// Notes rows of these sources that have got a series since the last call. Returns the rows of all sources.
    fn find<'a>(&mut self, kernel: &'a dyn Kernel, which: Range<usize>) -> Vec<RowsView<'a, Untyped>> {
        let rows: Vec<_> = self.sources.iter().map(|(source, _)| kernel.untyped(&source.map)).collect();
        let (sources, histograms, turn) = (rows.len(), self.parts.len(), self.namer.turn().max(1));
        for at in which {
            let (Source { key, first, step, .. }, owned) = &mut self.sources[at];
            owned.resize(rows[at].len().saturating_sub(*first).div_ceil(*step), false);
            for (nth, owned) in owned.iter_mut().enumerate().filter(|(_, owned)| !**owned) {
                let row = *first + nth * *step;
                let key = match key {
                    RowKey::Word(key) => rows[at].get(row).map_or(0, |row| row.get(*key)),
                    RowKey::Number => (row % turn) as u64 + 1,
                    RowKey::One => 1,
                };
                if key == 0 {
                    continue;
                }
                *owned = true;
                let namer = &mut self.namer;
                let new = || Series {
                    named: namer.name(key).map(shared),
                    counts: namer.counts(kernel, key),
                    is_in_sum: namer.is_in_sum(key),
                    rows: vec![Vec::new(); sources],
                    kept: (0..histograms).map(|_| Kept::default()).collect(),
                };
                self.series.entry(key).or_insert_with(new).rows[at].push(row);
            }
        }
        rows
    }
}

impl Series {
    fn served(&self) -> Option<&(Vec<u8>, Arc<SeriesLabels>)> {
        self.named.as_ref().filter(|_| self.counts)
    }

    fn is_in_sum(&self) -> bool {
        self.counts && self.is_in_sum
    }
}

/// Returns the number of a part's source, which is one of those from `from` on.
fn add<F>(sources: &mut Vec<Source>, from: usize, part: &SeriesPart<F>) -> usize {
    let is_it = |of: &Source| (of.map.name, of.first) == (part.source.map.name, part.source.first);
    sources[from..].iter().position(is_it).map_or_else(
        || {
            sources.push(part.source);
            sources.len() - 1
        },
        |at| from + at,
    )
}

/// Returns a part of each row of a series.
fn parts<'a>(
    rows: &'a Views<'a>,
    own: &'a [Vec<usize>],
    Part(source, field): Part<fine_hist>,
) -> impl Iterator<Item = Row<'a, fine_hist>> + Clone {
    own[source].iter().filter_map(move |&at| Some(rows[source].get(at)?.part(field)))
}

fn shared((name, labels): NamedSeries) -> (Vec<u8>, Arc<SeriesLabels>) {
    (name, Arc::new(labels))
}

#[cfg(test)]
impl<N: Namer> SeriesHistograms<N> {
    /// Returns one of the tables, filled.
    pub fn filled(&mut self, kernel: &dyn Kernel, spec: &'static TableSpec) -> Table {
        let mut table = Table::of(spec);
        let is = |of: &TableSpec| of.cluster == spec.cluster;
        for (view, def) in self.views.iter().map(|view| view.def).enumerate().collect::<Vec<_>>() {
            let HistogramTables { by_series, by_bucket, in_seconds } = def.tables;
            match () {
                _ if is(by_series) => self.fill(view, kernel, &mut table),
                _ if is(by_bucket) || is(in_seconds) => self.fill_buckets(view, kernel, &mut table),
                _ => {}
            }
            let Some((HistogramTables { by_series, by_bucket, in_seconds }, _)) = def.sum else { continue };
            match () {
                _ if is(by_series) => self.fill_sum(view, kernel, &mut table),
                _ if is(by_bucket) || is(in_seconds) => self.fill_buckets_of_sum(view, kernel, &mut table),
                _ => {}
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::runq_row;
    use crate::kit::Fake;

    const ROWS: Rows<runq_row> = Rows::new("rows");
    const KEY: Field<runq_row, u64> = runq_row::unmeasured;
    static TABLE: TableSpec = TableSpec::NEW;
    static DEF: SeriesDef = SeriesDef {
        tables: HistogramTables { by_series: &TABLE, by_bucket: &TABLE, in_seconds: &TABLE },
        histograms: &[SeriesRows::each(ROWS, KEY, 1, 2).part(runq_row::waits)],
        ..SeriesDef::NEW
    };

    #[test]
    fn a_row_is_found_once_it_has_an_owner() {
        let fake = Fake::new().with(ROWS, 5);
        let namer = |_: u64| None::<NamedSeries>;
        let mut histograms = SeriesHistograms::new(&[&DEF], Window(Duration::from_secs(60)), Buckets::default(), namer);
        let mut found = || {
            histograms.look_for_new(&fake);
            histograms.series.iter().map(|(&key, series)| (key, series.rows[0].clone())).collect::<Vec<_>>()
        };
        fake.set(ROWS, 3, KEY, 7);
        fake.set(ROWS, 2, KEY, 9);
        assert_eq!([found(), found()], [[(7, vec![3])], [(7, vec![3])]], "even rows are of no series");
        fake.set(ROWS, 1, KEY, 7);
        assert_eq!(found(), [(7, vec![3, 1])]);
    }
}
