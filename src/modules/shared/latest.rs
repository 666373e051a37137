//! Tables of the latest events, the latest first, from the records of a ring (bpf/shared/latest.bpf.h). One process has at most a
//! quarter of the rows while others have some.

use super::cgroups::{CgroupPaths, Tree};
use crate::bpf::types::{event_head, latest_stat};
use crate::bpf::{record, Record};
use crate::host::{since_1970, Cgroups, Controller};
use crate::kit::{
    EachLoss, Host, Kernel, MapDef, Metric, Pages, Plan, RowCount, RowMut, Rows, Starting, Sums, Table, TableSpec,
};
use std::collections::{HashMap, VecDeque};

/// Number of processes with a share of their own in a ring (`SHARES`).
const SHARES: usize = 1024;

/// Maps and columns of a table of the latest events, from [`crate::latest!`].
pub struct LatestMaps {
    /// Records.
    pub ring: MapDef,
    /// Events that found no room.
    pub lost: Rows<latest_stat>,
    /// Bytes that each process took.
    pub shares: MapDef,
    /// Columns of each such table.
    pub columns: Columns,
}

/// Columns that each table of the latest events has.
#[derive(Clone, Copy)]
pub struct Columns {
    /// Time of the event.
    pub time: Metric<u64>,
    /// Number of the event.
    pub seq: Metric<u64>,
    /// Path of the cgroup of the event.
    pub cgroup_path: Metric<str>,
}

/// Declares the maps of a module with a table of the latest events, as `LATEST`, with its other maps, as `MAPS`: the stem of LATEST in its
/// C file, the struct of a record, and the common columns of the table.
///
/// ```text
/// latest! { "exit", exit_event, rows::COLUMNS; rows COUNTS: exit_row = "exit_rows"; }
/// ```
#[macro_export]
macro_rules! latest {
    ($stem:literal, $event:ty, $columns:expr; $($others:tt)*) => {
        use $crate::bpf::types::latest_stat;
        $crate::maps! {
            ring EVENTS: $event = concat!($stem, "_events"), lost latest_stat.full in concat!($stem, "_lost");
            rows LOST: latest_stat = concat!($stem, "_lost");
            private SHARES: $crate::bpf::types::share = concat!($stem, "_shares");
            $($others)*
        }
        static LATEST: $crate::modules::shared::latest::LatestMaps = $crate::modules::shared::latest::LatestMaps {
            ring: EVENTS,
            lost: LOST,
            shares: SHARES,
            columns: $columns,
        };
    };
}

/// Counters beside a table of the latest events: sums of a module's rows, and the events that got no row.
pub struct EventCounts<R: 'static> {
    /// Table with one row.
    pub table: &'static TableSpec,
    /// Sums.
    pub sums: Sums<R>,
    /// Events without a row.
    pub lost: Metric<u64>,
}

/// An event that has a row.
struct Event<E> {
    owner: u64,
    /// Number of the event.
    seq: u64,
    /// Milliseconds since 1970.
    time: u64,
    cgroup: u64,
    of: E,
}

/// The latest events, each with what a module keeps of it.
pub struct Latest<E> {
    maps: &'static LatestMaps,
    most: usize,
    pages: Pages,
    /// Events with a row, the latest first.
    rows: VecDeque<Event<E>>,
    /// Number of rows by owner.
    held: HashMap<u64, usize>,
    /// Number of events so far.
    events: u64,
    cgroups: CgroupPaths,
}

impl<E: Record + Send> Latest<E> {
    /// Makes an empty list of records as they are, with the cgroups of v2.
    pub fn of_records(maps: &'static LatestMaps, rows: RowCount, pages: Pages) -> Latest<E> {
        Latest::new(maps, rows, pages, Cgroups::of(Controller::Unified).ok())
    }

    /// Takes the records from the ring.
    pub fn take(&mut self, kernel: &dyn Kernel) {
        self.drain(kernel, record::<E>);
    }

    /// Adds the table and the counters beside it, with what [`Self::add_table`] adds.
    pub fn add_tables<M: Send + 'static, R>(
        running: Starting<M>,
        table: &'static TableSpec,
        counts: &'static EventCounts<R>,
        of: fn(&mut M) -> &mut Self,
        put: fn(RowMut<'_>, &E),
    ) -> Starting<M>
    where
        E: 'static,
    {
        Self::add_table(running, table, of, put).quick(counts.table, move |module, kernel, table| {
            counts.sums.row(kernel, table).set(counts.lost, of(module).lost(kernel));
        })
    }

    /// Adds the table, the work at records in the ring and each second, and the events without a row.
    pub fn add_table<M: Send + 'static>(
        running: Starting<M>,
        table: &'static TableSpec,
        of: fn(&mut M) -> &mut Self,
        put: fn(RowMut<'_>, &E),
    ) -> Starting<M>
    where
        E: 'static,
    {
        running
            .table(table, move |module, kernel, table| {
                let latest = of(module);
                latest.take(kernel);
                latest.fill(table, put);
            })
            .woken(move |module, kernel| of(module).take(kernel))
            .tick(move |module, kernel| of(module).take(kernel))
            .events(move |module| of(module).events())
            .losses_of_part(move |module, kernel, each| of(module).losses(kernel, each))
    }
}

impl<E> Latest<E> {
    /// Makes an empty list. `tree` has the cgroups of v2.
    pub fn new<T: Tree + Send + 'static>(
        maps: &'static LatestMaps,
        rows: RowCount,
        pages: Pages,
        tree: Option<T>,
    ) -> Latest<E> {
        let cgroups = CgroupPaths::new(tree);
        Latest { maps, most: rows.0 as usize, pages, rows: VecDeque::new(), held: HashMap::new(), events: 0, cgroups }
    }

    /// Sizes the maps. Returns the size of the ring in bytes, for the programs.
    pub fn plan(&self, host: &Host, plan: &mut Plan) -> u64 {
        let ring = self.pages.bytes();
        plan.entries(self.maps.ring.name, ring);
        plan.entries(self.maps.lost.def.name, host.cpus);
        plan.entries(self.maps.shares.name, SHARES);
        ring as u64
    }

    /// Takes the records from the ring. `read` returns what is kept of one; `None`: it is no event of interest.
    pub fn drain(&mut self, kernel: &dyn Kernel, mut read: impl FnMut(&[u8]) -> Option<E>) {
        let before = self.events;
        kernel.drain(&self.maps.ring, &mut |bytes| {
            let Some(head) = record::<event_head>(bytes) else { return };
            let Some(of) = read(bytes) else { return };
            self.events += 1;
            let event =
                Event { owner: head.owner, seq: self.events, time: since_1970(head.ns), cgroup: head.cgroup, of };
            *self.held.entry(event.owner).or_default() += 1;
            self.rows.push_front(event);
            if self.rows.len() > self.most {
                self.drop_one();
            }
        });
        if self.events > before {
            self.cgroups.keep(self.rows.iter().map(|event| event.cgroup));
        }
    }

    /// Drops the oldest event of the latest event's process if that has more than a quarter of the rows, else of the process with most
    /// rows, or else the oldest of all.
    fn drop_one(&mut self) {
        let share = (self.most / 4).max(1);
        let of_latest = self.rows.front().and_then(|event| self.held.get_key_value(&event.owner));
        let most = self.held.iter().max_by_key(|(_, rows)| **rows);
        let owner = of_latest.into_iter().chain(most).find(|(_, rows)| **rows > share).map(|(owner, _)| *owner);
        let place = self.rows.iter().rposition(|event| owner.is_none_or(|owner| event.owner == owner));
        let Some(Event { owner, .. }) = place.and_then(|place| self.rows.remove(place)) else { return };
        match self.held.get_mut(&owner) {
            Some(rows) if *rows > 1 => *rows -= 1,
            _ => {
                self.held.remove(&owner);
            }
        }
    }

    /// Returns the number of events that became rows so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Fills a row for each event with the common columns; `set` adds those of the module.
    pub fn fill(&self, table: &mut Table, set: impl Fn(RowMut<'_>, &E)) {
        for (row, event) in self.rows.iter().enumerate() {
            let Columns { time, seq, cgroup_path } = self.maps.columns;
            let mut cells = table.indexed(row as u32).set(time, event.time).set(seq, event.seq);
            if let Some(path) = self.cgroups.path(event.cgroup) {
                cells = cells.text(cgroup_path, path);
            }
            set(cells, &event.of);
        }
    }

    /// Fills a row for each event, without the common columns.
    pub fn each(&self, table: &mut Table, set: impl Fn(RowMut<'_>, &E)) {
        for (row, event) in self.rows.iter().enumerate() {
            set(table.indexed(row as u32), &event.of);
        }
    }

    /// Returns the number of events without a row.
    pub fn lost(&self, kernel: &dyn Kernel) -> u64 {
        let lost = kernel.rows(self.maps.lost);
        lost.sum(latest_stat::full).wrapping_add(lost.sum(latest_stat::crowded))
    }

    /// Reports events without a row.
    pub fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let lost = kernel.rows(self.maps.lost);
        each(
            "ring-full: events without a row because the ring buffer was full; buffer_page_count should be increased",
            lost.sum(latest_stat::full),
        );
        each(
            "share-full: events without a row because their process had a quarter of the ring buffer within a second",
            lost.sum(latest_stat::crowded),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{record, Columns, Latest, RowMut};
    use crate::bpf::record_bytes;
    use crate::bpf::types::event_head;
    use crate::kit::{Fake, MetricDef, Pages, RowCount, RowOrder, Shape, TableSpec};
    use crate::modules::shared::cgroups::tests::Directories;

    mod columns {
        use super::*;

        crate::metrics! {
            TIME: u64 = 0 "time" INSTANT MSEC "";
            SEQ: u64 = 1 "seq" INSTANT NONE "";
            CGROUP_PATH: str = 2 "cgroup_path" INSTANT NONE "";
            OWNER: u64 = 3 "owner" INSTANT NONE "";
        }

        pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };
        pub const ALL: &[MetricDef] = METRICS;

        pub fn put(row: RowMut<'_>, owner: &u64) {
            row.set(OWNER, *owner);
        }
    }

    latest! { "exit", event_head, columns::COLUMNS; }

    static TABLE: TableSpec = TableSpec {
        cluster: 1,
        shape: Shape::Rows { count: "process_count", order: RowOrder::Latest },
        metrics: columns::ALL,
        ..TableSpec::NEW
    };

    fn list(rows: u32, tree: Directories) -> Latest<u64> {
        assert_eq!(MAPS.len(), 3);
        Latest::new(&LATEST, RowCount(rows), Pages(64), Some(tree))
    }

    /// Takes an event of each of these owners into the list, and returns the owners and the numbers of its rows.
    fn rows_after(latest: &mut Latest<u64>, owners: impl IntoIterator<Item = u64>) -> (Vec<u64>, Vec<u64>) {
        let fake = Fake::new();
        for owner in owners {
            fake.record(&record_bytes(&event_head { ns: 1, cgroup: 7, owner }));
        }
        latest.drain(&fake, |bytes| record::<event_head>(bytes).map(|head| head.owner));
        let table = fake.filled_by(&TABLE, |_, table| latest.fill(table, columns::put));
        let column = |column| (0..table.len()).map(|row| table.number(row, column).unwrap()).collect();
        (column(3), column(1))
    }

    #[test]
    fn rows_are_the_latest_first_and_numbered() {
        let mut latest = list(3, Directories::default());
        assert_eq!(rows_after(&mut latest, [1, 2]), (vec![2, 1], vec![2, 1]));
        assert_eq!(rows_after(&mut latest, [3, 4]), (vec![4, 3, 2], vec![4, 3, 2]));
        assert_eq!(latest.events(), 4);
    }

    #[test]
    fn a_stranger_with_many_events_does_not_hide_those_of_others() {
        let mut latest = list(8, Directories::default());
        let (owners, _) = rows_after(&mut latest, std::iter::repeat_n(9, 100_000).chain([1, 2, 3]));
        assert_eq!(owners, [3, 2, 1, 9, 9, 9, 9, 9], "nobody else had events");
        let (owners, _) = rows_after(&mut latest, (4..7).chain(std::iter::repeat_n(9, 100_000)));
        assert_eq!(owners, [9, 9, 6, 5, 4, 3, 2, 1], "a quarter of the rows");
        let (owners, numbers) = rows_after(&mut latest, [1, 1]);
        assert_eq!(owners, [1, 1, 9, 9, 6, 5, 4, 3], "nobody has more than a quarter: the oldest went");
        assert!(numbers.is_sorted_by(|one, next| one > next), "{numbers:?}");
        assert_eq!(latest.held.values().sum::<usize>(), 8, "what is held is counted: {:?}", latest.held);
    }

    #[test]
    fn no_rows_are_none() {
        let mut latest = list(0, Directories::default());
        assert_eq!(rows_after(&mut latest, [1, 2]), (vec![], vec![]));
        assert!(latest.held.is_empty());
    }

    #[test]
    fn the_path_of_a_cgroup_is_found_while_it_exists_in_one_walk() {
        let tree = Directories::default();
        tree.make(7, "/system.slice/a.service");
        let mut latest = list(3, tree.clone());
        rows_after(&mut latest, [1, 2]);
        tree.remove(7);
        rows_after(&mut latest, [3]);
        assert_eq!(tree.walks(), 1);
        let table = Fake::new().filled_by(&TABLE, |_, table| latest.fill(table, columns::put));
        assert_eq!(table.value(0, 2), Some(crate::pcp::Atom::Str(b"/system.slice/a.service")));
    }

    #[test]
    fn half_a_record_is_passed_over() {
        let (fake, mut latest) = (Fake::new(), list(3, Directories::default()));
        fake.record(&[1, 2, 3]);
        latest.drain(&fake, |_| Some(1));
        assert_eq!(latest.events(), 0);
    }

    #[test]
    fn the_number_of_shares_is_that_of_the_programs() {
        let header = include_str!("../../../bpf/shared/latest.bpf.h");
        assert!(header.contains(&format!("\n#define SHARES {}\n", super::SHARES)));
    }
}
