//! The processes with the most block I/O in the last interval. Kernel side: bpf/biotop.bpf.c with bpf/shared/owners.bpf.h, the table
//! of submitters, whose counters only grow: an interval is the difference of two readings.

use super::shared::block::{self, Disks, IoCounts, Owner, Submitter, SubmitterTable};
use crate::bpf::features::PLUG_CLOCK;
use crate::bpf::types;
use crate::host::exists;
use crate::kit::*;
use crate::{metrics, module_log, options};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

metrics! {
    PID: u32 = 0 "proc.io.perdev.pid" INSTANT NONE "process that submitted the I/O";
    COMM: str = 1 "proc.io.perdev.comm" INSTANT NONE "command name of the process";
    DIRECTION: str = 2 "proc.io.perdev.direction" INSTANT NONE "R for reads, W for writes";
    MAJOR: u32 = 3 "proc.io.perdev.major" INSTANT NONE "major number of the disk";
    MINOR: u32 = 4 "proc.io.perdev.minor" INSTANT NONE "minor number of the disk";
    DISK: str = 5 "proc.io.perdev.disk" INSTANT NONE "name of the disk";
    IO: u32 = 6 "proc.io.perdev.io" INSTANT NONE "requests completed in the last interval";
    BYTES: u64 = 7 "proc.io.perdev.bytes" INSTANT BYTE "bytes moved in the last interval";
    DURATION: u32 = 8 "proc.io.perdev.duration" INSTANT USEC "average time of the requests of the last interval";
}

options! {
    /// Seconds that the table covers; 0 = since the last fetch by any client; negative = the table stays empty.
    interval: Interval = Interval::Seconds(1);
    /// Show I/O of unknown submitters, as process 0.
    include_residual: bool = false;
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Order of the rows.
    sort: IoOrder = IoOrder { by: IoColumn::Bytes, descending: true };
}

static TABLE: TableSpec = TableSpec {
    cluster: 10,
    shape: Shape::Rows {
        count: "process_count",
        order: RowOrder::Highest("most bytes first or as `sort` orders them"),
    },
    metrics: METRICS,
    ..TableSpec::NEW
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "biotop",
    summary: "top block I/O by process",
    overhead: Overhead::low("250 ns per request"),
    needs: "CONFIG_BLK_DEV_IO_TRACE, and for durations Linux 6.5, fentry or kprobes",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&block::SUBMIT, &block::COMPLETE, &block::ISSUE],
    maps: block::OWNER_MAPS,
    needs_to_run: &[Need::Processes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        if options.interval == Interval::Never {
            setup.section.warn("with a negative interval there are no values");
        }
        Ok(Box::new(Biotop::new(options, exists, block::disk_name)))
    },
    ..Spec::NEW
};

/// Half of the interval between ticks, which come a little early or late: a summary is due at its nearest tick.
const HALF_A_TICK: Duration = Duration::from_millis(500);

/// I/O of a process on a disk in one direction, in the interval.
struct Summary {
    submitter: Submitter,
    comm: Vec<u8>,
    writes: bool,
    disk: Vec<u8>,
    cells: IoCounts,
}

impl Summary {
    /// Returns the average time of requests in microseconds; `None` without a request whose start time is known.
    fn average(&self) -> Option<u64> {
        (self.cells.ns / 1000).checked_div(self.cells.requests.saturating_sub(self.cells.untimed))
    }

    fn compare(&self, other: &Summary, order: IoOrder) -> Ordering {
        let value = |row: &Summary| match order.by {
            IoColumn::Bytes => row.cells.bytes,
            IoColumn::Io => row.cells.requests,
            IoColumn::Duration => row.average().unwrap_or(0),
            IoColumn::Rw => u64::from(row.writes),
        };
        let by_value = value(self).cmp(&value(other));
        let by_value = if order.descending { by_value.reverse() } else { by_value };
        by_value.then_with(|| (self.submitter, self.writes).cmp(&(other.submitter, other.writes)))
    }
}

struct Biotop {
    options: Options,
    owners: SubmitterTable,
    disk_name: block::DiskName,
    /// The reading at the beginning of the interval.
    before: BTreeMap<Submitter, Owner>,
    began: Instant,
    /// Rows of the last complete interval, in the order of the table.
    rows: Vec<Summary>,
    /// Number of requests without a start time so far.
    untimed: u64,
}

impl Biotop {
    fn new(options: Options, exists: fn(u32) -> bool, disk_name: block::DiskName) -> Biotop {
        Biotop {
            options,
            owners: SubmitterTable::new(exists),
            disk_name,
            before: BTreeMap::new(),
            began: Instant::now(),
            rows: Vec::new(),
            untimed: 0,
        }
    }

    /// Ends the interval, whose rows replace those of the one before.
    fn summarise(&mut self, kernel: &dyn Kernel) {
        let now = SubmitterTable::read(kernel);
        let mut disks = Disks::new(self.disk_name);
        let (mut rows, mut untimed) = (Vec::new(), 0);
        for (&submitter, owner) in &now {
            let before = self.before.get(&submitter).map_or([IoCounts::default(); 2], |before| before.directions);
            for (way, cells) in owner.directions.into_iter().enumerate() {
                let cells = cells.since(before[way]);
                untimed += cells.untimed;
                if cells.bytes > 0 && (submitter.pid != 0 || self.options.include_residual) {
                    let disk = disks.name(submitter.major, submitter.minor).unwrap_or(b"?").to_vec();
                    rows.push(Summary { submitter, comm: owner.comm.clone(), writes: way == 1, disk, cells });
                }
            }
        }
        rows.sort_by(|a, b| a.compare(b, self.options.sort));
        rows.truncate(self.options.process_count.0 as usize);
        (self.before, self.rows, self.began) = (now, rows, Instant::now());
        self.untimed += untimed;
        // A device without request time stamps: from now on the time of issue is taken by a program.
        if untimed > 0 {
            if let Err(error) = kernel.attach(&block::ISSUE) {
                module_log!(debug, "block_rq_issue: {error}");
            }
        }
    }
}

impl Module for Biotop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        self.owners.plan(host, plan, constants);
        constants.io_top = true;
        plan.leave_to(&["bioperpid"]);
        plan.attach_if(&block::ISSUE, PLUG_CLOCK);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self).table(&TABLE, Self::refresh).tick(Self::tick).losses(Self::losses).started()
    }
}

impl Biotop {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        if self.options.interval == Interval::AtFetch {
            self.summarise(kernel);
        }
        let saturated = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        for (index, row) in self.rows.iter().enumerate() {
            let cells = table
                .indexed(index as u32)
                .set(PID, row.submitter.pid)
                .text(COMM, &row.comm)
                .text(DIRECTION, if row.writes { b"W" } else { b"R" })
                .set(MAJOR, row.submitter.major)
                .set(MINOR, row.submitter.minor)
                .text(DISK, &row.disk)
                .set(IO, saturated(row.cells.requests))
                .set(BYTES, row.cells.bytes);
            if let Some(average) = row.average() {
                cells.set(DURATION, saturated(average));
            }
        }
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        if let Interval::Seconds(seconds) = self.options.interval {
            if self.began.elapsed() + HALF_A_TICK >= Duration::from_secs(seconds.into()) {
                self.summarise(kernel);
            }
        }
        self.owners.tick(kernel);
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        self.owners.losses(kernel, each);
        each("untimed: requests without a usable start time, left out of averages", self.untimed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::block::tests::{below_1000, fake, names, owner};
    use super::*;
    use crate::pcp::Atom;

    const DD: &[u8; 8] = b"dd\0\0\0\0\0\0";

    fn biotop(options: Options) -> Biotop {
        Biotop::new(options, below_1000, names)
    }

    fn at_fetch() -> Options {
        Options { interval: Interval::AtFetch, ..Options::default() }
    }

    /// Reads the rows: process, true for writes, requests, bytes, average.
    fn rows(module: &mut Biotop, fake: &Fake) -> Vec<(u64, String, u64, u64, Option<u64>)> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        let number = |row, column| table.number(row, column).unwrap();
        let row = |row| {
            let Some(Atom::Str(direction)) = table.value(row, DIRECTION.column) else { panic!("row {row}") };
            let direction = String::from_utf8_lossy(direction).into_owned();
            let [pid, requests, bytes] = [PID.column, IO.column, BYTES.column].map(|column| number(row, column));
            (pid, direction, requests, bytes, table.number(row, DURATION.column))
        };
        (0..table.len()).map(row).collect()
    }

    #[test]
    fn a_row_is_what_came_since_the_last_summary() {
        let fake = fake();
        let mut module = biotop(at_fetch());
        owner(&fake, 0, (77, 254, 0), DD, [[2, 8192, 300_000, 0], [1, 512, 7_000, 0]]);
        assert_eq!(rows(&mut module, &fake), [(77, "R".into(), 2, 8192, Some(150)), (77, "W".into(), 1, 512, Some(7))]);
        owner(&fake, 0, (77, 254, 0), DD, [[3, 12288, 301_000, 0], [1, 512, 7_000, 0]]);
        assert_eq!(rows(&mut module, &fake), [(77, "R".into(), 1, 4096, Some(1))]);
        assert!(rows(&mut module, &fake).is_empty());
    }

    #[test]
    fn clients_see_the_same_rows_however_often_they_fetch() {
        let fake = fake();
        let mut module = biotop(Options::default());
        owner(&fake, 0, (77, 254, 0), DD, [[2, 8192, 300_000, 0], [0; 4]]);
        module.summarise(&fake);
        owner(&fake, 0, (77, 254, 0), DD, [[9, 90_000, 900_000, 0], [0; 4]]);
        for _ in 0..3 {
            assert_eq!(rows(&mut module, &fake), [(77, "R".into(), 2, 8192, Some(150))]);
        }
    }

    #[test]
    fn the_whole_row_is_of_one_submitter() {
        let fake = fake();
        owner(&fake, 0, (77, 254, 0), b"caf\xc3\xa9\0\0\0", [[2, 8192, 300_000, 0], [0; 4]]);
        owner(&fake, 1, (78, 9, 4), DD, [[0; 4], [1, 1, 1_000, 0]]);
        let table = fake.filled_by(&TABLE, |kernel, table| biotop(at_fetch()).refresh(kernel, table));
        assert_eq!(table.value(0, COMM.column), Some(Atom::Str(b"caf\xc3\xa9")));
        assert_eq!(table.value(0, DISK.column), Some(Atom::Str(b"vda")));
        assert_eq!(table.value(0, MAJOR.column), Some(Atom::U32(254)));
        assert_eq!(table.value(1, DISK.column), Some(Atom::Str(b"?")));
        assert_eq!(table.value(1, MINOR.column), Some(Atom::U32(4)));
    }

    #[test]
    fn process_0_is_shown_on_request() {
        let fake = fake();
        owner(&fake, 0, (0, 254, 0), &[0; 8], [[2, 8192, 300_000, 0], [0; 4]]);
        assert!(rows(&mut biotop(at_fetch()), &fake).is_empty());
        let options = Options { include_residual: true, ..at_fetch() };
        assert_eq!(rows(&mut biotop(options), &fake).len(), 1);
    }

    #[test]
    fn rows_are_in_the_order_asked_for_and_as_many() {
        let fake = fake();
        owner(&fake, 0, (1, 254, 0), DD, [[5, 100, 5_000, 0], [0; 4]]);
        owner(&fake, 1, (2, 254, 0), DD, [[1, 300, 9_000, 0], [0; 4]]);
        owner(&fake, 2, (3, 254, 0), DD, [[0; 4], [3, 200, 6_000, 0]]);
        owner(&fake, 3, (4, 254, 0), DD, [[0; 4], [3, 200, 6_000, 0]]);
        let order = |by, descending| {
            let options = Options { sort: IoOrder { by, descending }, process_count: RowCount(3), ..at_fetch() };
            rows(&mut biotop(options), &fake).iter().map(|row| row.0).collect::<Vec<_>>()
        };
        assert_eq!(order(IoColumn::Bytes, true), [2, 3, 4]);
        assert_eq!(order(IoColumn::Bytes, false), [1, 3, 4]);
        assert_eq!(order(IoColumn::Io, true), [1, 3, 4]);
        assert_eq!(order(IoColumn::Duration, true), [2, 3, 4]);
        assert_eq!(order(IoColumn::Rw, false), [1, 2, 3]);
        assert_eq!(order(IoColumn::Rw, true), [3, 4, 1]);
    }

    #[test]
    fn a_negative_interval_shows_nothing() {
        let fake = fake();
        owner(&fake, 0, (77, 254, 0), DD, [[2, 8192, 300_000, 0], [0; 4]]);
        let mut module = biotop(Options { interval: Interval::Never, ..Options::default() });
        module.tick(&fake);
        assert!(rows(&mut module, &fake).is_empty());
    }

    #[test]
    fn averages_leave_out_untimed_requests_and_saturate() {
        let fake = fake();
        owner(&fake, 0, (77, 254, 0), DD, [[3, 8192, 300_000, 2], [2, 512, 0, 2]]);
        owner(&fake, 1, (78, 254, 0), DD, [[1, 1, u64::MAX, 0], [0; 4]]);
        let mut module = biotop(at_fetch());
        let rows = rows(&mut module, &fake);
        assert_eq!([rows[0].4, rows[1].4, rows[2].4], [Some(300), None, Some(u32::MAX.into())]);
        assert_eq!(fake.attached(), ["block_rq_issue"]);
        let mut lost = Vec::new();
        module.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost.last(), Some(&4));
    }
}
