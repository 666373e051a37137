//! Histograms and counters by owner, such as a cgroup or a network (bpf/shared/places.bpf.h): names of the owners that have counted, and
//! reuse of rows.
//!
//! Owners without a place, and those whose series has ended, count for the series `other`, so that the sum over all series never
//! falls.

use super::groups::{cpu_shift, groups};
use crate::bpf::types::{fine_hist, mark, place_owner};
use crate::bpf::Field;
use crate::host::NoCgroups;
use crate::kit::{
    set_buckets, Buckets, Fine, HistogramTables, Host, Kept, Kernel, Metric, OwnRow, OwnedTable, Plan, Row, Rows,
    RowsView, SeriesLabels, Starting, Table, TableSpec, Window, WindowClock,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ticks (seconds) for which the series of an owner that is gone stays.
const STAY: u64 = 60;
/// Ticks between a row's last use by a program and its next owner: a program runs for microseconds.
const REST: u64 = 2;
/// Number of ticks after which each owner is looked for again.
const TURNS: u64 = 8;
/// Owner of a place until its row is free (`PLACE_RETIRED`).
const RETIRED: u64 = u64::MAX;
/// Name of the series for owners without one of their own.
const OTHER: &[u8] = b"other";
/// Number of ids without a name that are remembered, so that they are not looked for again.
const STRANGERS: usize = 1 << 16;

/// Maps, histograms and counters of a module by owner.
pub struct ByPlace<R: 'static> {
    /// Owners by place.
    pub owners: Rows<place_owner>,
    /// Counters: for each group of CPUs a row for `other`, then a row for each place.
    pub rows: Rows<R>,
    /// Marks of the rows that a program has counted in.
    pub marks: Rows<mark>,
    /// Histograms, in the order of the metrics.
    pub histograms: &'static [Field<R, fine_hist>],
    /// Other counters, with their metrics.
    pub counters: &'static [(Metric<u64>, Field<R, u64>)],
    /// Metric with the name of the series.
    pub name: Metric<str>,
    /// Events of owners without a place, and of nobody.
    pub beyond: Beyond<R>,
}

/// Events that count for `other`, reported as lost, from [`crate::beyond!`].
pub struct Beyond<R: 'static> {
    /// Name and sentence of the loss, as of [`EachLoss`].
    pub loss: &'static str,
    /// Counters, each of which counts other events.
    pub counted: &'static [Field<R, u64>],
    /// Histograms, each of which counts other events.
    pub timed: &'static [Field<R, fine_hist>],
}

/// Declares events of owners without a place: the name of the loss and its owners, then counters (`counted`) or histograms (`timed`), each
/// of which counts other events.
///
/// ```text
/// beyond!("table-full: questions of processes", counted, [dns_owner::queries])
/// ```
#[macro_export]
macro_rules! beyond {
    (@of $owners:literal, $counted:expr, $timed:expr) => {
        $crate::modules::shared::places::Beyond {
            loss: concat!($owners, " without a row in the table, counted for other"),
            counted: $counted,
            timed: $timed,
        }
    };
    ($owners:literal, counted, $fields:expr) => {
        $crate::beyond!(@of $owners, &$fields, &[])
    };
    ($owners:literal, timed, $fields:expr) => {
        $crate::beyond!(@of $owners, &[], &$fields)
    };
}

/// Number of places, and number of CPUs that share their rows.
pub struct Size {
    /// Number of places, less 1.
    pub mask: u32,
    /// Binary logarithm of the number of CPUs that share rows.
    pub shift: u32,
}

impl<R> ByPlace<R> {
    /// Sizes the maps for a number of owners.
    pub fn plan(&self, places: usize, host: &Host, plan: &mut Plan) -> Size {
        let most = (host.memory << 20 >> 7).min(96 << 20);
        let shift = cpu_shift(host.cpus, (places + 1) * size_of::<R>(), most);
        plan.entries(self.owners.def.name, places);
        let rows = groups(host.cpus, shift) * (places + 1);
        plan.entries(self.rows.def.name, rows);
        plan.entries(self.marks.def.name, rows);
        Size { mask: places as u32 - 1, shift }
    }
}

/// A source of the names of owners.
pub trait Names {
    /// Returns the name of an owner; `None` if it belongs to nobody.
    fn name(&self, _id: u64) -> Option<Vec<u8>> {
        None
    }

    /// Passes the names of these owners to `found`, and removes their ids; ids that remain belong to nobody. For sources that know several
    /// names at a time.
    fn find(&self, ids: &mut HashSet<u64>, found: &mut dyn FnMut(u64, Vec<u8>)) {
        ids.retain(|&id| self.name(id).map(|name| found(id, name)).is_none());
    }

    /// True if the owner still exists.
    fn is_there(&self, _id: u64, _name: &[u8]) -> bool {
        true
    }

    /// Returns the name of the owner's series.
    fn series(&self, _id: u64, name: &[u8]) -> Vec<u8> {
        name.into()
    }

    /// Returns the labels of an owner, or of those without a series by their name and 0.
    fn labels(&self, id: u64, name: &[u8]) -> SeriesLabels;
}

/// Histograms of owners with their windows.
pub struct PlacedHistograms<R: 'static> {
    of: &'static ByPlace<R>,
    names: Result<Box<dyn Names + Send>, NoCgroups>,
    buckets: Buckets,
    clock: WindowClock,
    start: Instant,
    ticks: u64,
    /// Places by number; `None` for those without an owner.
    places: Vec<Option<Box<Place>>>,
    series: BTreeMap<Vec<u8>, Series<R>>,
    other: Series<R>,
    /// Names of owners with a series, by their ids.
    known: HashMap<u64, Vec<u8>>,
    strangers: HashSet<u64>,
    claims: OwnedTable<place_owner>,
    /// True if owners without a place are none that should have one.
    is_beyond_meant: bool,
}

/// A place in the table of owners.
struct Place {
    /// Id of its owner.
    id: u64,
    /// Name of the series that its rows count for; `None` for `other`.
    series: Option<Vec<u8>>,
    /// Tick at which its owner was found to be gone.
    gone: Option<u64>,
    /// Tick at which it was taken from its owner.
    retired: Option<u64>,
}

struct Series<R> {
    labels: Arc<SeriesLabels>,
    /// Indices of its rows in each group of CPUs.
    rows: Vec<usize>,
    /// Counts of rows that it had and that were freed.
    past: Option<OwnRow<R>>,
    kept: Vec<Kept>,
    /// True if it is there whether its owner has counted or not.
    stays: bool,
}

impl<R> PlacedHistograms<R> {
    /// Adds a table without histograms to those of a module, the work of each second, and the events of owners without a place.
    pub fn add_table<M: Send + 'static>(
        running: Starting<M>,
        table: &'static TableSpec,
        of: fn(&mut M) -> Option<&mut Self>,
    ) -> Starting<M>
    where
        R: 'static,
    {
        let running = running.table(table, move |module, kernel, table| {
            of(module).into_iter().for_each(|placed| placed.fill(kernel, table));
        });
        Self::add_work(running, of)
    }

    fn add_work<M: Send + 'static>(running: Starting<M>, of: fn(&mut M) -> Option<&mut Self>) -> Starting<M>
    where
        R: 'static,
    {
        running
            .tick(move |module, kernel| of(module).into_iter().for_each(|placed| placed.tick(kernel)))
            .losses_of_part(move |module, kernel, each| {
                for placed in of(module).into_iter().filter(|placed| !placed.is_beyond_meant) {
                    each(placed.of.beyond.loss, placed.beyond(kernel));
                }
            })
    }

    /// Adds the tables of histograms to those of a module, with what [`Self::add_table`] adds.
    pub fn add_tables<M: Send + 'static>(
        running: Starting<M>,
        tables: HistogramTables,
        prometheus: bool,
        of: fn(&mut M) -> Option<&mut Self>,
    ) -> Starting<M>
    where
        R: 'static,
    {
        let running = running.histograms(
            tables,
            prometheus,
            move |module, kernel, table| of(module).into_iter().for_each(|placed| placed.fill(kernel, table)),
            move |module, kernel, table| of(module).into_iter().for_each(|placed| placed.fill_buckets(kernel, table)),
        );
        Self::add_work(running, of)
    }

    /// Makes histograms without owners. There will be none where cgroups, which they are, have no names.
    pub fn new<N: Names + Send + 'static>(
        of: &'static ByPlace<R>,
        names: Result<N, NoCgroups>,
        window: Window,
        buckets: Buckets,
    ) -> Self {
        let labels = names.as_ref().map_or_else(|_| SeriesLabels::new(), |names| names.labels(0, OTHER));
        PlacedHistograms {
            of,
            names: names.map(|names| Box::new(names) as Box<dyn Names + Send>),
            buckets,
            clock: WindowClock::new(window),
            start: Instant::now(),
            ticks: 0,
            places: Vec::new(),
            series: BTreeMap::new(),
            other: Series { rows: vec![0], ..Series::new(labels, of.histograms.len()) },
            known: HashMap::new(),
            strangers: HashSet::new(),
            claims: OwnedTable::new(place_owner::id, place_owner::claims),
            is_beyond_meant: false,
        }
    }

    /// Makes events of owners without a place no losses: a list says who has one.
    pub fn of_a_list(self) -> Self {
        PlacedHistograms { is_beyond_meant: true, ..self }
    }

    /// Adds a series for an owner that may not have counted yet: clients need the value before an event to see it.
    pub fn begin(&mut self, id: u64, name: &[u8]) {
        if let Ok(names) = &self.names {
            let series = Series { stays: true, ..Series::new(names.labels(id, name), self.of.histograms.len()) };
            self.series.insert(names.series(id, name), series);
        }
    }

    /// Sizes the maps for a number of owners. Rows take a 128th of the memory and 96 MB at most, or else all CPUs share them.
    /// Refuses the plan, and returns `None`, if the owners cannot be named.
    pub fn plan(&self, places: usize, host: &Host, plan: &mut Plan) -> Option<Size> {
        match &self.names {
            Ok(_) => Some(self.of.plan(places, host, plan)),
            Err(none) => {
                plan.refuse(none.to_string());
                None
            }
        }
    }

    /// Adds new counts to the windows, and frees the rows of owners that are gone. Called once a second.
    pub fn tick(&mut self, kernel: &dyn Kernel) {
        self.look(kernel, self.start.elapsed());
    }

    fn look(&mut self, kernel: &dyn Kernel, since_start: Duration) {
        self.ticks += 1;
        self.find(kernel);
        self.find_gone();
        let part = self.clock.look(since_start, kernel.continues(&self.of.rows.def));
        let view = View::of(self.of, kernel);
        let all = self.series.values_mut().chain([&mut self.other]);
        for (number, series) in all.enumerate() {
            for (histogram, &field) in self.of.histograms.iter().enumerate() {
                let look = self.clock.look_at(number * self.of.histograms.len() + histogram);
                let rows = rows(view, &series.rows, &series.past);
                series.kept[histogram].look(part, rows.map(|row| row.part(field)), look);
            }
        }
        self.end_series(view);
        self.retire(kernel);
        self.give_back(kernel);
        self.claims.release_contested(kernel.rows(self.of.owners).iter().enumerate());
    }

    /// Fills the table of owners.
    pub fn fill(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        self.find(kernel);
        let (of, view) = (self.of, View::of(self.of, kernel));
        for (name, series) in self.all() {
            fill(of, view, name, series, table);
        }
    }

    /// Fills a table of the buckets of owners.
    pub fn fill_buckets(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        self.find(kernel);
        let (of, view, buckets) = (self.of, View::of(self.of, kernel), self.buckets);
        for (name, series) in self.all() {
            let all = || rows(view, &series.rows, &series.past);
            let total = |&field: &Field<R, fine_hist>| Fine::total(all().map(|row| row.part(field)));
            let totals: Vec<_> = of.histograms.iter().map(total).collect();
            set_buckets(table, buckets, Some((name, &series.labels)), &totals);
        }
    }

    fn all(&mut self) -> impl Iterator<Item = (&[u8], &mut Series<R>)> {
        self.series.iter_mut().map(|(name, series)| (&name[..], series)).chain([(OTHER, &mut self.other)])
    }

    /// Returns the sum of a counter over all series.
    pub fn sum(&self, kernel: &dyn Kernel, counter: Field<R, u64>) -> u64 {
        let view = View::of(self.of, kernel);
        let all = self.series.values().chain([&self.other]);
        all.flat_map(|series| rows(view, &series.rows, &series.past))
            .fold(0, |sum, row| sum.wrapping_add(row.get(counter)))
    }

    /// Returns the number of events of owners without a place, and of nobody.
    fn beyond(&self, kernel: &dyn Kernel) -> u64 {
        let Beyond { counted, timed, .. } = self.of.beyond;
        let rows = || View::of(self.of, kernel).rows_of(0);
        let counted = rows().flat_map(|row| counted.iter().map(move |&of| row.get(of)));
        let timed = rows().flat_map(|row| timed.iter().map(move |&of| Fine::count(row.part(of))));
        counted.chain(timed).fold(0, u64::wrapping_add)
    }

    /// Notes places that have got an owner since the last call. Without a hierarchy all are `other`.
    fn find(&mut self, kernel: &dyn Kernel) {
        let owners = kernel.rows(self.of.owners);
        self.places.resize_with(owners.len(), || None);
        let new = owners.iter().map(|owner| owner.get(place_owner::id)).enumerate();
        let new: Vec<(usize, u64)> =
            new.filter(|&(at, id)| id != 0 && id != RETIRED && self.places[at].is_none()).collect();
        let is_unknown = |id: &u64| !self.known.contains_key(id) && !self.strangers.contains(id);
        let mut unknown: HashSet<u64> = new.iter().map(|&(_, id)| id).filter(is_unknown).collect();
        if let (Ok(names), false) = (&self.names, unknown.is_empty()) {
            let known = &mut self.known;
            names.find(&mut unknown, &mut |id, name| {
                known.insert(id, name);
            });
            if self.strangers.len() + unknown.len() > STRANGERS {
                self.strangers.clear();
            }
            self.strangers.extend(unknown);
        }
        for (at, id) in new {
            let mut place = Place { id, series: None, gone: None, retired: None };
            let series = match (self.known.get(&id), &self.names) {
                (Some(name), Ok(names)) => {
                    let histograms = self.of.histograms.len();
                    let series = place.series.insert(names.series(id, name));
                    let series =
                        self.series.entry(series.clone()).or_insert_with(|| Series::new(Vec::new(), histograms));
                    series.labels = names.labels(id, name).into();
                    series
                }
                _ => &mut self.other,
            };
            series.rows.push(at + 1);
            self.places[at] = Some(Box::new(place));
        }
    }

    /// Checks some of the owners at each tick, and notes those that are gone.
    fn find_gone(&mut self) {
        let Ok(names) = &self.names else { return };
        let ticks = self.ticks;
        let turn = |(at, place): &(usize, &mut Place)| {
            place.series.is_some() && place.gone.is_none() && *at as u64 % TURNS == ticks % TURNS
        };
        for (_, place) in occupied(&mut self.places).filter(turn) {
            if !self.known.get(&place.id).is_some_and(|name| names.is_there(place.id, name)) {
                place.gone = Some(ticks);
            }
        }
    }

    /// Ends the series of owners that have been gone for long: their counts belong to `other` from now on, except for the quantiles.
    fn end_series(&mut self, view: View<'_, R>) {
        let is_over = |row: &usize| {
            self.places.get(row - 1).and_then(Option::as_ref).is_some_and(|place| place.is_over(self.ticks))
        };
        let ended = self.series.iter().filter(|(_, series)| !series.stays && series.rows.iter().all(is_over));
        let ended: Vec<Vec<u8>> = ended.map(|(name, _)| name.clone()).collect();
        if ended.is_empty() {
            return;
        }
        for series in ended.iter().filter_map(|name| self.series.remove(name)) {
            for row in &series.rows {
                self.places[row - 1].iter_mut().for_each(|place| place.series = None);
            }
            self.other.rows.extend(series.rows);
            if let Some(past) = series.past {
                self.other.past.get_or_insert_default().add(past.row());
            }
        }
        for (kept, &field) in self.other.kept.iter_mut().zip(self.of.histograms) {
            kept.skip(rows(view, &self.other.rows, &self.other.past).map(|row| row.part(field)));
        }
    }

    /// Takes places from owners that are gone, and from unknown ones: no program counts for them there from now on.
    fn retire(&mut self, kernel: &dyn Kernel) {
        let owners = kernel.rows(self.of.owners);
        let ticks = self.ticks;
        for (at, place) in occupied(&mut self.places) {
            let is_over = place.series.is_none() || place.is_over(ticks);
            if let (true, None, Some(owner)) = (is_over, place.retired, owners.get(at)) {
                owner.set(place_owner::id, RETIRED);
                place.retired = Some(ticks);
                self.known.remove(&place.id);
            }
        }
    }

    /// Clears the rows of retired places, once no program can still be adding to them, and releases the places a tick later: programs
    /// count by plain adds, which may load a count before they find the place. Their series keep the counts.
    fn give_back(&mut self, kernel: &dyn Kernel) {
        let (owners, view) = (kernel.rows(self.of.owners), View::of(self.of, kernel));
        for (at, owner) in owners.iter().enumerate() {
            let Some(place) = &self.places[at] else { continue };
            let Some(since) = place.retired.filter(|since| since + REST <= self.ticks) else { continue };
            if since + REST < self.ticks {
                self.places[at] = None;
                self.claims.release(owner);
                continue;
            }
            let series = match &place.series {
                Some(name) => self.series.get_mut(name).unwrap_or(&mut self.other),
                None => &mut self.other,
            };
            let past = series.past.get_or_insert_default();
            for row in view.rows_of(at + 1) {
                past.add(row);
                row.clear();
            }
            series.rows.retain(|&row| row != at + 1);
        }
    }
}

fn fill<R>(of: &ByPlace<R>, view: View<'_, R>, name: &[u8], series: &mut Series<R>, table: &mut Table) {
    let Series { labels, rows: indexes, past, kept, .. } = series;
    let all = || rows(view, indexes, past);
    let mut cells = table.named(name).labels(labels).text(of.name, name);
    for &(metric, field) in of.counters {
        cells = cells.set(metric, all().fold(0, |sum, row| sum.wrapping_add(row.get(field))));
    }
    for (histogram, &field) in of.histograms.iter().enumerate() {
        cells = kept[histogram].set(cells, histogram, all().map(|row| row.part(field)));
    }
}

/// Returns the places that have an owner, with their numbers.
fn occupied(places: &mut [Option<Box<Place>>]) -> impl Iterator<Item = (usize, &mut Place)> {
    places.iter_mut().enumerate().filter_map(|(at, place)| Some((at, &mut **place.as_mut()?)))
}

impl Place {
    fn is_over(&self, ticks: u64) -> bool {
        self.gone.is_some_and(|since| since + STAY <= ticks)
    }
}

impl<R> Series<R> {
    fn new(labels: SeriesLabels, histograms: usize) -> Series<R> {
        let kept = (0..histograms).map(|_| Kept::default()).collect();
        Series { labels: Arc::new(labels), rows: Vec::new(), past: None, kept, stays: false }
    }
}

/// The rows of a map, a number of them for each group of CPUs.
struct View<'a, R> {
    rows: RowsView<'a, R>,
    per_group: usize,
}

impl<R> Clone for View<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for View<'_, R> {}

impl<'a, R> View<'a, R> {
    fn of(of: &ByPlace<R>, kernel: &'a dyn Kernel) -> View<'a, R> {
        View { rows: kernel.rows(of.rows), per_group: kernel.rows(of.owners).len() + 1 }
    }

    /// Returns the row with this index of each group.
    fn rows_of(self, index: usize) -> impl Iterator<Item = Row<'a, R>> + Clone {
        (0..self.rows.len() / self.per_group).filter_map(move |group| self.rows.get(group * self.per_group + index))
    }
}

/// Returns all rows that count for a series.
fn rows<'a, R>(
    view: View<'a, R>,
    indexes: &'a [usize],
    past: &'a Option<OwnRow<R>>,
) -> impl Iterator<Item = Row<'a, R>> + Clone {
    indexes.iter().flat_map(move |&index| view.rows_of(index)).chain(past.as_ref().map(OwnRow::row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::{cgd_row, cgd_side};
    use crate::kit::{Fake, MetricDef, Shape, TableSpec};
    use crate::modules::shared::cgroups::tests::Directories;
    use crate::pcp::{Sem, Type, Units};

    const OWNERS: Rows<place_owner> = Rows::new("owners");
    const ROWS: Rows<cgd_row> = Rows::new("rows");
    const MARKS: Rows<mark> = Rows::new("marks");
    const READS: Field<cgd_row, fine_hist> = cgd_row::read.then(cgd_side::total);
    const BYTES: Field<cgd_row, u64> = cgd_row::read.then(cgd_side::bytes);
    const PLACES: usize = 4;

    const fn metric(name: &'static str) -> MetricDef {
        let (sem, units) = (Sem::COUNTER, Units::COUNT);
        MetricDef { item: 0, name, also: &[], ty: Type::U64, sem, units, oneline: "" }
    }

    static TABLE: TableSpec = TableSpec {
        cluster: 1,
        shape: Shape::Named { max: 100 },
        metrics: &[
            metric("count"),
            metric("sum"),
            metric("p50"),
            metric("p90"),
            metric("p99"),
            metric("p999"),
            metric("max"),
            metric("name"),
            metric("bytes"),
        ],
        ..TableSpec::NEW
    };
    static BY_BUCKET: TableSpec =
        TableSpec { cluster: 2, shape: Shape::Buckets { max: 1000 }, metrics: &[metric("bucket")], ..TableSpec::NEW };
    static BY_CGROUP: ByPlace<cgd_row> = ByPlace {
        owners: OWNERS,
        rows: ROWS,
        marks: MARKS,
        histograms: &[READS],
        counters: &[(Metric::new(8), BYTES)],
        name: Metric::new(7),
        beyond: beyond!("table-full: reads of cgroups", timed, [READS]),
    };

    /// Makes histograms on a machine with two groups of CPUs.
    fn start() -> (Fake, Directories, PlacedHistograms<cgd_row>) {
        let fake = Fake::new().with(OWNERS, PLACES).with(ROWS, 2 * (PLACES + 1));
        let tree = Directories::default();
        let cgroups =
            PlacedHistograms::new(&BY_CGROUP, Ok(tree.clone()), Window(Duration::from_secs(60)), Buckets::default());
        (fake, tree, cgroups)
    }

    /// Middle of the bucket of 100 us, in microseconds.
    const MEDIAN: Option<u64> = Some(102);

    /// Counts reads of 4 KB in 100 us as a program does; if all places are taken they count for index 0.
    fn count(fake: &Fake, id: u64, reads: u64) {
        let owner = |place: usize| fake.row(OWNERS, place);
        let has = |place: &usize| owner(*place).get(place_owner::id) == id;
        let is_free = |place: &usize| owner(*place).get(place_owner::claims) == 0;
        let place = (0..PLACES).find(has).or_else(|| (0..PLACES).find(is_free));
        if let Some(place) = place {
            owner(place).set(place_owner::claims, 1);
            owner(place).set(place_owner::id, id);
        }
        let group = id as usize % 2 * (PLACES + 1);
        let row = fake.row(ROWS, group + place.map_or(0, |place| place + 1));
        let bucket = fine_hist::buckets.nth(Fine::bucket(100_000));
        row.part(READS).set(bucket, row.part(READS).get(bucket) + reads);
        row.part(READS).set(fine_hist::sum, row.part(READS).get(fine_hist::sum) + reads * 100_000);
        row.set(BYTES, row.get(BYTES) + reads * 4096);
    }

    /// Returns each series with its count.
    fn counts(fake: &Fake, cgroups: &mut PlacedHistograms<cgd_row>) -> Vec<(String, u64)> {
        let mut table = Table::of(&TABLE);
        cgroups.fill(fake, &mut table);
        (0..table.len())
            .map(|row| {
                let count = table.number(row, 0).unwrap();
                assert_eq!((table.number(row, 1), table.number(row, 8)), (Some(count * 100_000), Some(count * 4096)));
                (table.name(row), count)
            })
            .collect()
    }

    fn named(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    fn ticks(fake: &Fake, cgroups: &mut PlacedHistograms<cgd_row>, ticks: u64) {
        (0..ticks).for_each(|_| cgroups.look(fake, Duration::ZERO));
    }

    fn p50(fake: &Fake, cgroups: &mut PlacedHistograms<cgd_row>, name: &str) -> Option<u64> {
        let mut table = Table::of(&TABLE);
        cgroups.fill(fake, &mut table);
        table.number((0..table.len()).find(|&row| table.name(row) == name).unwrap(), 2)
    }

    fn is_free(fake: &Fake) -> bool {
        let kernel: &dyn Kernel = fake;
        (0..2 * (PLACES + 1)).filter(|row| row % (PLACES + 1) > 0).all(|row| fake.row(ROWS, row).is_zero())
            && kernel.rows(OWNERS).iter().all(|owner| owner.is_zero())
    }

    /// oomkill counts on a machine without cgroup v2, too.
    #[test]
    fn without_a_hierarchy_all_counts_are_others() {
        let fake = Fake::new().with(OWNERS, PLACES).with(ROWS, 2 * (PLACES + 1));
        let none: Result<Directories, NoCgroups> = Err(NoCgroups::Unified);
        let mut cgroups = PlacedHistograms::new(&BY_CGROUP, none, Window(Duration::from_secs(60)), Buckets::default());
        for round in 1..=3 {
            (1..=6).for_each(|id| count(&fake, id, 10));
            assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 60 * round)]));
            ticks(&fake, &mut cgroups, 2 * REST + 2);
            assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 60 * round)]));
            assert!(is_free(&fake), "{round}");
        }
    }

    #[test]
    fn cgroups_have_series_under_their_paths_after_one_walk() {
        let (fake, tree, mut cgroups) = start();
        tree.make(10, "/a");
        tree.make(11, "/b c");
        count(&fake, 10, 3);
        count(&fake, 11, 4);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("/a", 3), ("/b\\x20c", 4), ("other", 0)]));
        count(&fake, 10, 1);
        ticks(&fake, &mut cgroups, 20);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("/a", 4), ("/b\\x20c", 4), ("other", 0)]));
        assert_eq!(tree.walks(), 1, "walks");
        assert_eq!(p50(&fake, &mut cgroups, "/a"), MEDIAN);
        let mut table = Table::of(&BY_BUCKET);
        cgroups.fill_buckets(&fake, &mut table);
        assert_eq!((table.len(), table.name(6), table.number(6, 0)), (3 * 26, "64-127::/a".into(), Some(4)));
        assert_eq!(table.labels(30), Some(&Names::labels(&tree, 11, b"/b c")));
    }

    #[test]
    fn two_places_of_one_cgroup_are_one_series() {
        let (fake, tree, mut cgroups) = start();
        tree.make(10, "/a");
        count(&fake, 10, 3);
        fake.set(OWNERS, 2, place_owner::id, 10);
        fake.set(OWNERS, 2, place_owner::claims, 1);
        fake.set(ROWS, 3, READS.then(fine_hist::buckets).nth(Fine::bucket(100_000)), 2);
        fake.set(ROWS, 3, READS.then(fine_hist::sum), 200_000);
        fake.set(ROWS, 3, BYTES, 2 * 4096);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("/a", 5), ("other", 0)]));
    }

    #[test]
    fn what_finds_no_place_counts_for_other() {
        let (fake, tree, mut cgroups) = start();
        (1..=6).for_each(|id| tree.make(id, &format!("/{id}")));
        (1..=6).for_each(|id| count(&fake, id, 10));
        let expected = [("/1", 10), ("/2", 10), ("/3", 10), ("/4", 10), ("other", 20)];
        assert_eq!(counts(&fake, &mut cgroups), named(&expected));
        assert_eq!(cgroups.beyond(&fake), 20);
        assert_eq!(cgroups.sum(&fake, BYTES), 60 * 4096);
    }

    /// The row of a removed cgroup is free again, and empty; its counts have gone to `other`, whose quantiles do not change.
    #[test]
    fn the_series_of_a_removed_cgroup_ends_a_minute_later() {
        let (fake, tree, mut cgroups) = start();
        tree.make(10, "/a");
        count(&fake, 10, 3);
        ticks(&fake, &mut cgroups, 10);
        tree.remove(10);
        ticks(&fake, &mut cgroups, STAY);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("/a", 3), ("other", 0)]), "a minute later");
        let kernel: &dyn Kernel = &fake;
        while !kernel.rows(OWNERS).iter().any(|owner| owner.get(place_owner::id) == RETIRED) {
            ticks(&fake, &mut cgroups, 1);
        }
        assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 3)]));
        // A program that had found the row before it was retired.
        count(&fake, RETIRED, 1);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 4)]));
        ticks(&fake, &mut cgroups, REST + 1);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 4)]));
        assert!(is_free(&fake));
        assert_eq!(p50(&fake, &mut cgroups, "other"), MEDIAN, "the late one");
        assert!(cgroups.known.is_empty() && cgroups.series.is_empty() && cgroups.other.rows == [0]);
    }

    #[test]
    fn a_series_that_ended_leaves_the_quantiles_of_other_alone() {
        let (fake, tree, mut cgroups) = start();
        tree.make(10, "/a");
        count(&fake, 10, 3);
        ticks(&fake, &mut cgroups, 10);
        tree.remove(10);
        ticks(&fake, &mut cgroups, STAY + TURNS + REST + 16);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 3)]));
        assert_eq!(p50(&fake, &mut cgroups, "other"), None);
    }

    #[test]
    fn a_cgroup_that_returns_goes_on_with_its_series() {
        let (fake, tree, mut cgroups) = start();
        tree.make(10, "/a");
        count(&fake, 10, 3);
        ticks(&fake, &mut cgroups, 10);
        tree.remove(10);
        ticks(&fake, &mut cgroups, 20);
        tree.make(20, "/a");
        count(&fake, 20, 4);
        for _ in 0..STAY + TURNS + REST {
            ticks(&fake, &mut cgroups, 1);
            assert_eq!(counts(&fake, &mut cgroups), named(&[("/a", 7), ("other", 0)]));
        }
        let kernel: &dyn Kernel = &fake;
        let owners: Vec<u64> = kernel.rows(OWNERS).iter().map(|owner| owner.get(place_owner::id)).collect();
        assert_eq!(owners, [0, 20, 0, 0], "the place of the first is free");
        assert_eq!(p50(&fake, &mut cgroups, "/a"), MEDIAN);
        tree.remove(20);
        ticks(&fake, &mut cgroups, STAY + TURNS + REST);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 7)]));
        assert!(is_free(&fake));
    }

    /// A cgroup that came, counted and went between two ticks: nobody knows its name.
    #[test]
    fn a_cgroup_without_a_directory_counts_for_other() {
        let (fake, tree, mut cgroups) = start();
        let mut total = 0;
        for id in 1..=100 {
            count(&fake, id, 2);
            total += 2;
            ticks(&fake, &mut cgroups, id % 3);
            assert_eq!(counts(&fake, &mut cgroups), named(&[("other", total)]));
        }
        ticks(&fake, &mut cgroups, REST + 1);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("other", total)]));
        assert!(is_free(&fake));
        let walks = tree.walks();
        count(&fake, 100, 1);
        ticks(&fake, &mut cgroups, 2);
        assert_eq!(tree.walks(), walks, "it is known not to be there");
    }

    /// Some cgroups live for a minute, most for a moment: memory is bounded by the number of existing ones, and no count is lost.
    #[test]
    fn ten_thousand_cgroups_that_come_and_go_leave_nothing() {
        let (fake, tree, mut cgroups) = start();
        for id in 1..=10_000 {
            tree.make(id, &format!("/job-{id}"));
            count(&fake, id, 2);
            if id % 5 == 0 {
                cgroups.look(&fake, Duration::ZERO);
            }
            tree.remove(id);
            if id % 1000 == 0 {
                let all = counts(&fake, &mut cgroups);
                assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), 2 * id);
                assert!(all.len() <= PLACES + 1 && cgroups.known.len() <= PLACES, "{all:?}");
                let rows = cgroups.series.values().map(|series| series.rows.len()).sum::<usize>();
                assert!(rows + cgroups.other.rows.len() <= PLACES + 1 && cgroups.strangers.len() <= STRANGERS);
            }
        }
        let walks = tree.walks();
        ticks(&fake, &mut cgroups, STAY + TURNS + REST);
        assert_eq!(counts(&fake, &mut cgroups), named(&[("other", 20_000)]));
        assert!(is_free(&fake) && cgroups.known.is_empty() && tree.walks() == walks);
    }

    #[test]
    fn a_place_both_claimants_left_is_free_at_the_second_tick() {
        let (fake, _, mut cgroups) = start();
        fake.set(OWNERS, 2, place_owner::claims, 2);
        ticks(&fake, &mut cgroups, 2);
        assert!(is_free(&fake));
    }
}
