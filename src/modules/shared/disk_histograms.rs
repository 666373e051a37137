//! Latency by disk, operation and phase: bcc.disk.dev.*, and bcc.disk.all.OP.total over all disks. Whoever has the rows says what
//! is where in them ([`DiskRows`]).

use crate::bpf::types::fine_hist;
use crate::bpf::Field;
use crate::kit::{
    set_buckets, set_counts, Fine, FineCounts, Kept, Kernel, Row, Rows, RowsView, SeriesLabel, SeriesLabels, Shape,
    Table, TableSpec, Window, WindowClock,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations, as rows have them.
pub const OPERATIONS: usize = 4;

/// Phases of a request: in all, in the device, and before it.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Total,
    Device,
    Queue,
}

/// Operation and phase of each histogram of a disk, in the order of the metrics.
const OF_DISK: [(usize, Phase); 8] = [
    (0, Phase::Total),
    (0, Phase::Device),
    (0, Phase::Queue),
    (1, Phase::Total),
    (1, Phase::Device),
    (1, Phase::Queue),
    (2, Phase::Total),
    (3, Phase::Total),
];

/// Disks that get identifiers, and the most buckets of all of them.
const MOST_DISKS: usize = 4096;
const MOST_BUCKETS: usize = 1 << 21;

mod dev {
    crate::histograms! {
        "disk.dev";
        1 "read.total" "reads by disk" "from allocation to completion" "";
        2 "read.device" "reads by disk" "from issue to the device to completion" "";
        3 "read.queue" "reads by disk" "from allocation to issue to the device" "";
        4 "write.total" "writes by disk" "from allocation to completion" "";
        5 "write.device" "writes by disk" "from issue to the device to completion" "";
        6 "write.queue" "writes by disk" "from allocation to issue to the device" "";
        7 "flush.total" "flushes by disk" "from allocation to completion" "";
        8 "discard.total" "discards by disk" "from allocation to completion" "";
        with NAME: str = 0 "name" DISCRETE NONE "name of the disk";
        with READ_BYTES: u64 = 1 "read.bytes" COUNTER BYTE "bytes that reads of the disk transferred";
        with WRITE_BYTES: u64 = 2 "write.bytes" COUNTER BYTE "bytes that writes to the disk transferred";
        with DISCARD_BYTES: u64 = 3 "discard.bytes" COUNTER BYTE "bytes that were discarded on the disk";
    }
    use super::*;

    pub static TABLE: TableSpec = TableSpec {
        summary: "each disk",
        cluster: 320,
        shape: Shape::Named { max: MOST_DISKS },
        metrics: SERIES,
        histograms: HISTOGRAMS,
        ..TableSpec::NEW
    };
    pub static BY_BUCKET: TableSpec = TableSpec {
        summary: "each bucket of each disk",
        cluster: 321,
        shape: Shape::Buckets { max: MOST_BUCKETS },
        metrics: BUCKETS,
        histograms: HISTOGRAMS,
        ..TableSpec::NEW
    };

    /// Sets what a disk's row has besides its histograms.
    pub fn set_others<'a>(row: crate::kit::RowMut<'a>, name: &[u8], bytes: [u64; OPERATIONS]) -> crate::kit::RowMut<'a> {
        row.text(NAME, name).set(READ_BYTES, bytes[0]).set(WRITE_BYTES, bytes[1]).set(DISCARD_BYTES, bytes[3])
    }
}

mod whole {
    crate::histograms! {
        "disk.all";
        1 "read.total" "reads of all disks" "from allocation to completion" "Without requests of device-mapper disks: the disks below have them.";
        2 "write.total" "writes to all disks" "from allocation to completion" "Without requests of device-mapper disks: the disks below have them.";
        3 "flush.total" "flushes of all disks" "from allocation to completion" "Without requests of device-mapper disks: the disks below have them.";
        4 "discard.total" "discards on all disks" "from allocation to completion" "Without requests of device-mapper disks: the disks below have them.";
    }
    use super::*;

    pub static TABLE: TableSpec =
        TableSpec { summary: "all disks", cluster: 324, metrics: SERIES, histograms: HISTOGRAMS, ..TableSpec::NEW };
    pub static BY_BUCKET: TableSpec = TableSpec {
        summary: "each bucket",
        cluster: 323,
        shape: Shape::Buckets { max: MOST_BUCKETS },
        metrics: BUCKETS,
        histograms: HISTOGRAMS,
        ..TableSpec::NEW
    };
}

/// The tables: disks and their buckets, all disks and their buckets.
pub const TABLES: [&TableSpec; 4] = [&dev::TABLE, &dev::BY_BUCKET, &whole::TABLE, &whole::BY_BUCKET];

/// Where rows have what.
pub struct DiskRows<T: 'static> {
    /// A row for a disk and an operation, one or several.
    pub rows: Rows<T>,
    /// Disk and operation of a row that has an owner; disk 0 for those without a row of their own.
    pub owner: fn(Row<'_, T>) -> Option<(u64, usize)>,
    /// The numbers of a disk.
    pub numbers: fn(u64) -> (u32, u32),
    /// In all, in the device, before it.
    pub phases: [Field<T, fine_hist>; 3],
    /// Bytes transferred.
    pub bytes: Field<T, u64>,
}

/// What is known of a disk: its name and its labels; `None` if it is gone.
pub type LookUp = fn(u32, u32) -> Option<(Vec<u8>, SeriesLabels)>;

/// Looks after which a disk's name is looked up again.
const NAMES_EVERY: u64 = 10;

/// Histograms of disks with their windows.
pub struct DiskHistograms<T: 'static> {
    at: DiskRows<T>,
    look_up: LookUp,
    /// Whether a disk's requests are those of disks below.
    is_above: fn(u32) -> bool,
    /// All buckets are served, not only powers of two.
    all_buckets: bool,
    clock: WindowClock,
    start: Instant,
    looks: u64,
    /// Rows that belong to one of the disks.
    owned: Vec<bool>,
    disks: BTreeMap<u64, Disk>,
    whole: [Kept; OPERATIONS],
}

struct Disk {
    name: Option<(Vec<u8>, Arc<SeriesLabels>)>,
    is_above: bool,
    rows: [Vec<usize>; OPERATIONS],
    kept: [Kept; OF_DISK.len()],
}

impl<T> DiskHistograms<T> {
    /// No disk yet.
    pub fn new(at: DiskRows<T>, window: Window, all_buckets: bool, look_up: LookUp, is_above: fn(u32) -> bool) -> Self {
        DiskHistograms {
            at,
            look_up,
            is_above,
            all_buckets,
            clock: WindowClock::new(window),
            start: Instant::now(),
            looks: 0,
            owned: Vec::new(),
            disks: BTreeMap::new(),
            whole: Default::default(),
        }
    }

    /// Once a second: takes what was counted into the windows.
    pub fn tick(&mut self, kernel: &dyn Kernel) {
        self.look(kernel, self.start.elapsed());
    }

    fn look(&mut self, kernel: &dyn Kernel, since_start: Duration) {
        self.find(kernel);
        self.looks += 1;
        if self.looks % NAMES_EVERY == 0 {
            self.name_again();
        }
        let part = self.clock.look(since_start);
        let rows = kernel.rows(self.at.rows);
        let mut number = 0;
        for disk in self.disks.values_mut() {
            for (histogram, &(operation, phase)) in OF_DISK.iter().enumerate() {
                number += 1;
                let parts = parts(rows, &disk.rows[operation], self.at.phases[phase as usize]);
                let counted = disk.kept[histogram].look(part, parts, self.clock.anyway(number));
                if phase == Phase::Total && !disk.is_above {
                    self.whole[operation].add(part, &counted);
                }
            }
        }
        self.whole.iter_mut().for_each(|kept| kept.pass(part));
    }

    /// Fills one of [`TABLES`].
    pub fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        self.find(kernel);
        let rows = kernel.rows(self.at.rows);
        if table.is(&dev::TABLE) {
            self.fill_disks(rows, table);
        } else if table.is(&whole::TABLE) {
            self.fill_whole(rows, table);
        } else if table.is(&dev::BY_BUCKET) {
            for disk in self.disks.values() {
                let Some((name, labels)) = &disk.name else { continue };
                let counts = self.counts(rows, &OF_DISK, |operation| disk.rows[operation].iter());
                set_buckets(table, self.all_buckets, Some((name, labels)), &counts);
            }
        } else if table.is(&whole::BY_BUCKET) {
            let own = || self.disks.values().filter(|disk| !disk.is_above);
            let totals = [0, 1, 2, 3].map(|operation| (operation, Phase::Total));
            let counts = self.counts(rows, &totals, |operation| own().flat_map(move |disk| &disk.rows[operation]));
            set_buckets(table, self.all_buckets, None, &counts);
        }
    }

    fn fill_disks(&mut self, rows: RowsView<'_, T>, table: &mut Table) {
        for disk in self.disks.values_mut() {
            let Some((name, labels)) = &disk.name else { continue };
            let bytes = std::array::from_fn(|operation| {
                let of = disk.rows[operation].iter().filter_map(|&row| rows.get(row));
                of.fold(0u64, |sum, row| sum.wrapping_add(row.get(self.at.bytes)))
            });
            let mut row = dev::set_others(table.named(name).labels(labels), name, bytes);
            for (histogram, &(operation, phase)) in OF_DISK.iter().enumerate() {
                let kept = &mut disk.kept[histogram];
                let counts = kept.read(parts(rows, &disk.rows[operation], self.at.phases[phase as usize]));
                row = kept.set_quantiles(set_counts(row, histogram, counts), histogram);
            }
        }
    }

    fn fill_whole(&mut self, rows: RowsView<'_, T>, table: &mut Table) {
        let mut row = table.single();
        for operation in 0..OPERATIONS {
            let total = OF_DISK.iter().position(|&of| of == (operation, Phase::Total)).unwrap_or_default();
            let (mut count, mut sum) = (0u64, 0u64);
            for disk in self.disks.values_mut().filter(|disk| !disk.is_above) {
                let of_disk = disk.kept[total].read(parts(rows, &disk.rows[operation], self.at.phases[0]));
                (count, sum) = (count.wrapping_add(of_disk.0), sum.wrapping_add(of_disk.1));
            }
            row = self.whole[operation].set_quantiles(set_counts(row, operation, (count, sum)), operation);
        }
    }

    /// The buckets of these histograms over rows.
    fn counts<'a, R: Iterator<Item = &'a usize>>(
        &self,
        rows: RowsView<'_, T>,
        of: &[(usize, Phase)],
        rows_of: impl Fn(usize) -> R,
    ) -> Vec<FineCounts> {
        let counts = |&(operation, phase): &(usize, Phase)| {
            let mut counts = [0; Fine::BUCKETS];
            for row in rows_of(operation).filter_map(|&row| rows.get(row)) {
                Fine::add(row.part(self.at.phases[phase as usize]), &mut counts);
            }
            counts
        };
        of.iter().map(counts).collect()
    }

    /// Takes rows that have got an owner since the last time.
    fn find(&mut self, kernel: &dyn Kernel) {
        let rows = kernel.rows(self.at.rows);
        self.owned.resize(rows.len(), false);
        for (at, row) in rows.iter().enumerate() {
            if self.owned[at] {
                continue;
            }
            let Some((disk, operation)) = (self.at.owner)(row) else { continue };
            let (look_up, is_above, numbers) = (self.look_up, self.is_above, self.at.numbers);
            let disk = self.disks.entry(disk).or_insert_with(|| {
                let (major, minor) = numbers(disk);
                let name = (disk != 0).then(|| look_up(major, minor)).flatten();
                Disk {
                    name: name.map(|(name, labels)| (name, Arc::new(labels))),
                    is_above: is_above(major),
                    rows: Default::default(),
                    kept: Default::default(),
                }
            });
            disk.rows[operation.min(OPERATIONS - 1)].push(at);
            self.owned[at] = true;
        }
    }

    /// Disks come and go: one that is gone is not served.
    fn name_again(&mut self) {
        for (&key, disk) in self.disks.iter_mut().filter(|(key, _)| **key != 0) {
            let (major, minor) = (self.at.numbers)(key);
            let found = (self.look_up)(major, minor);
            let is_same = matches!((&disk.name, &found), (Some((old, of)), Some((new, labels))) if old == new && **of == *labels);
            if !is_same {
                disk.name = found.map(|(name, labels)| (name, Arc::new(labels)));
            }
        }
    }
}

/// A histogram in each of these rows.
fn parts<'a, T>(
    rows: RowsView<'a, T>,
    of: &'a [usize],
    phase: Field<T, fine_hist>,
) -> impl Iterator<Item = Row<'a, fine_hist>> + Clone {
    of.iter().filter_map(move |&row| Some(rows.get(row)?.part(phase)))
}

/// What sysfs has on a disk.
pub fn look_up(major: u32, minor: u32) -> Option<(Vec<u8>, SeriesLabels)> {
    let name = super::block::disk_name(major, minor)?;
    let disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let labels = labels(&disk, &String::from_utf8_lossy(&name));
    Some((name, labels))
}

fn labels(disk: &Path, name: &str) -> SeriesLabels {
    let text = |file: &Path| -> Option<String> {
        let text = fs::read(file).ok()?;
        let text: String =
            String::from_utf8_lossy(&text).trim().chars().map(|c| if c.is_control() { '_' } else { c }).collect();
        (!text.is_empty()).then_some(text)
    };
    let mut labels = vec![("disk", SeriesLabel::Text(name.to_owned()))];
    for (label, file) in [("device_mapper_name", "dm/name"), ("model", "device/model")] {
        labels.extend(text(&disk.join(file)).map(|text| (label, SeriesLabel::Text(text))));
    }
    let rotational = text(&disk.join("queue/rotational"));
    labels.extend(rotational.map(|text| ("rotational", SeriesLabel::Flag(text != "0"))));
    let node = disk.ancestors().find_map(|device| text(&device.join("numa_node"))?.parse().ok());
    labels.extend(node.filter(|&node: &i64| node >= 0).map(|node| ("numa_node", SeriesLabel::Number(node))));
    labels
}
