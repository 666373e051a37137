//! Latency by disk, operation and phase: bcc.disk.dev.*, and bcc.disk.all.OP.total over all disks.

use super::super::shared::block::disk_name;
use super::filter::DiskFilter;
use super::{DiskNumber, Operation, ROWS, SMALLS};
use crate::bpf::types::{bio_row, bio_small};
use crate::kit::{
    Kernel, NamedSeries, Namer, SeriesDef, SeriesHistograms, SeriesLabel, SeriesLabels, SeriesRows, Shape,
};
use std::fs;
use std::path::Path;

/// Largest number of disks with identifiers.
pub const MOST_DISKS: usize = 4096;

/// Histograms of each disk.
pub mod dev {
    crate::histograms! {
        "disk.dev";
        tables "each disk", "each bucket of each disk", 320 321 430, Shape::Named { max: MOST_DISKS };
        1 "read.total" "reads by disk" "from allocation to completion" "";
        2 "read.device" "reads by disk" "from issue to the device to completion" "";
        3 "read.queue" "reads by disk" "from allocation to issue to the device" "";
        4 "write.total" "writes by disk" "from allocation to completion" "";
        5 "write.device" "writes by disk" "from issue to the device to completion" "";
        6 "write.queue" "writes by disk" "from allocation to issue to the device" "";
        7 "flush.total" "flushes by disk" "from allocation to completion" "";
        8 "discard.total" "discards by disk" "from allocation to completion" "";
        with NAME: str = 0 "name" DISCRETE NONE "name of the disk, for the variables of a dashboard";
        with READ_BYTES: u64 = 1 "read.bytes" COUNTER BYTE "bytes that reads of the disk transferred";
        with WRITE_BYTES: u64 = 2 "write.bytes" COUNTER BYTE "bytes that writes to the disk transferred";
        with DISCARD_BYTES: u64 = 3 "discard.bytes" COUNTER BYTE "bytes that were discarded on the disk";
    }
    use super::*;

    const fn full(operation: Operation) -> SeriesRows<bio_row> {
        SeriesRows::each(ROWS, bio_row::disk, operation as usize % 2, 2)
    }

    const fn small(operation: Operation) -> SeriesRows<bio_small> {
        SeriesRows::each(SMALLS, bio_small::disk, operation as usize % 2, 2)
    }

    const READS: SeriesRows<bio_row> = full(Operation::Read);
    const WRITES: SeriesRows<bio_row> = full(Operation::Write);
    const FLUSHES: SeriesRows<bio_small> = small(Operation::Flush);
    const DISCARDS: SeriesRows<bio_small> = small(Operation::Discard);

    /// The histograms with those of all disks.
    pub static DEF: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[
            READS.part(bio_row::total),
            READS.part(bio_row::device),
            READS.part(bio_row::queue),
            WRITES.part(bio_row::total),
            WRITES.part(bio_row::device),
            WRITES.part(bio_row::queue),
            FLUSHES.part(bio_small::total),
            DISCARDS.part(bio_small::total),
        ],
        name: Some(NAME),
        counters: &[
            (READ_BYTES, READS.part(bio_row::bytes)),
            (WRITE_BYTES, WRITES.part(bio_row::bytes)),
            (DISCARD_BYTES, DISCARDS.part(bio_small::bytes)),
        ],
        sum: Some((whole::TABLES, &[0, 3, 6, 7])),
        ..SeriesDef::NEW
    };
}

/// Histograms of all disks.
pub mod whole {
    const ONCE: &str =
        "Without requests of device-mapper disks that have a row of their own: the disks below have them.";
    crate::histograms! {
        "disk.all";
        tables "all disks", "each bucket", 324 323 431, Shape::Single;
        1 "read.total" "reads of all disks" "from allocation to completion" ONCE;
        2 "write.total" "writes to all disks" "from allocation to completion" ONCE;
        3 "flush.total" "flushes of all disks" "from allocation to completion" ONCE;
        4 "discard.total" "discards on all disks" "from allocation to completion" ONCE;
    }
    use super::*;
}

/// Histograms of disks with their windows, and of what is by disk and more.
pub type DiskHistograms = SeriesHistograms<DiskNamer>;

/// Returns the name and labels of a disk; `None` if it is gone.
pub type LookUp = fn(DiskNumber) -> Option<NamedSeries>;

/// Names of disks. Disks without a row of their own have none, and count for all disks only.
pub struct DiskNamer {
    /// Source of names and labels.
    pub look_up: LookUp,
    /// The option `devices`.
    pub filter: DiskFilter,
    /// Returns true if requests of disks with a major number are those of disks below.
    pub is_above: fn(u32) -> bool,
}

impl DiskNamer {
    /// True if the option `devices` selects a disk; `None` stands for disks without a row of their own.
    pub fn shows(&mut self, kernel: &dyn Kernel, disk: Option<DiskNumber>) -> bool {
        self.filter.counts(kernel, disk.map_or(0, DiskNumber::word))
    }
}

impl Namer for DiskNamer {
    fn name(&mut self, disk: u64) -> Option<NamedSeries> {
        DiskNumber::read(disk).and_then(self.look_up)
    }

    fn tick(&mut self, kernel: &dyn Kernel, again: bool) {
        self.filter.tick(kernel, again);
    }

    fn counts(&mut self, kernel: &dyn Kernel, disk: u64) -> bool {
        self.filter.counts(kernel, disk)
    }

    fn is_in_sum(&self, disk: u64) -> bool {
        !DiskNumber::read(disk).is_some_and(|number| (self.is_above)(number.major))
    }
}

/// Reads the name and labels of a disk from sysfs.
pub fn look_up(DiskNumber { major, minor }: DiskNumber) -> Option<(Vec<u8>, SeriesLabels)> {
    let name = disk_name(major, minor)?;
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::IGNOREDS;
    use super::*;
    use crate::bpf::types::fine_hist;
    use crate::kit::{Buckets, Fake, Fine, Key, Pattern, Table, TableSpec, Window};
    use crate::pcp::Atom;
    use std::time::Duration;

    pub const VDA: u64 = 1 << 63 | 254 << 32;
    const DM: u64 = 1 << 63 | 253 << 32;
    const GONE: u64 = 1 << 63 | 8 << 32;
    const OTHERS: u64 = 1 << 62;

    fn named(number: DiskNumber) -> Option<(Vec<u8>, SeriesLabels)> {
        let name = match number.major {
            254 => "vda",
            253 => "dm-0",
            _ => return None,
        };
        Some((name.into(), vec![("disk", SeriesLabel::Text(name.into()))]))
    }

    pub fn disks(window: u64) -> DiskHistograms {
        disks_with(&[&dev::DEF], window, DiskFilter::new(Default::default(), |_| None))
    }

    pub fn disks_with(defs: &[&'static SeriesDef], window: u64, filter: DiskFilter) -> DiskHistograms {
        let namer = DiskNamer { look_up: named, filter, is_above: |major| major == 253 };
        SeriesHistograms::new(defs, Window(Duration::from_secs(window)), Buckets::default(), namer)
    }

    /// Counts requests with a time in microseconds in the row of a disk: reads in even rows, writes in odd ones.
    fn count(fake: &Fake, row: usize, disk: u64, us: u64, requests: u64) {
        fake.set(ROWS, row, bio_row::disk, disk);
        for phase in [bio_row::total, bio_row::device, bio_row::queue] {
            let part = fake.row(ROWS, row).part(phase);
            let bucket = fine_hist::buckets.nth(Fine::bucket(us * 1000));
            part.set(bucket, part.get(bucket) + requests);
            part.set(fine_hist::sum, part.get(fine_hist::sum) + requests * us * 1000);
        }
    }

    fn filled(disks: &mut DiskHistograms, fake: &Fake, spec: &'static TableSpec) -> Table {
        disks.filled(fake, spec)
    }

    pub fn cell(table: &Table, row: usize, name: &str, spec: &TableSpec) -> Option<u64> {
        let column = spec.column(name);
        table.number(row, column)
    }

    fn fake() -> Fake {
        Fake::new().with(ROWS, 16).with(SMALLS, 16)
    }

    #[test]
    fn a_disk_has_count_sum_and_quantiles_by_operation() {
        let (fake, mut disks) = (fake(), disks(60));
        count(&fake, 0, VDA, 100, 98);
        count(&fake, 2, VDA, 9_000, 2);
        count(&fake, 3, VDA, 50, 1);
        fake.set(ROWS, 2, bio_row::bytes, 4096);
        disks.look(&fake, Duration::ZERO);
        count(&fake, 2, VDA, 9_000, 1);
        let table = filled(&mut disks, &fake, &dev::TABLE);
        let cell = |name: &str| cell(&table, 0, &format!("disk.dev.{name}"), &dev::TABLE);
        assert_eq!(table.names(), ["vda"]);
        assert_eq!((cell("read.total.count"), cell("read.total.sum")), (Some(101), Some(98 * 100_000 + 3 * 9_000_000)));
        let near = |name: &str, exact: f64| {
            let found = cell(name).unwrap() as f64;
            assert!((found - exact).abs() <= exact * Fine::ERROR + 0.5, "{name}: {found}, not {exact}");
        };
        near("read.total.p50", 100.0);
        near("read.queue.p99", 9_000.0);
        near("write.device.max", 50.0);
        assert_eq!((cell("flush.total.count"), cell("flush.total.p50")), (Some(0), None));
        assert_eq!((cell("read.bytes"), cell("write.bytes")), (Some(4096), Some(0)));
        assert_eq!(
            table.value(0, dev::TABLE.metrics.iter().position(|m| m.name == "disk.dev.name").unwrap()),
            Some(Atom::Str(b"vda"))
        );
        assert_eq!(table.labels(0), named(DiskNumber { major: 254, minor: 0 }).map(|(_, labels)| labels).as_ref());
    }

    /// Known times in the rows of two CPUs over several looks are compared with the values of the table.
    #[test]
    fn quantiles_of_known_times_are_within_their_bound() {
        let (fake, mut disks) = (fake(), disks(60));
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut times = Vec::new();
        for second in 0..20 {
            for n in 0..500 {
                // Two modes, and a tail over three orders of magnitude.
                let us = match n % 10 {
                    0..6 => 80 + random() % 20,
                    6..9 => 2_000 + random() % 400,
                    _ => 3_000 + (1 << (random() % 10)) * (random() % 1000),
                };
                count(&fake, 2 * (n % 2), VDA, us, 1);
                times.push(us);
            }
            disks.look(&fake, Duration::from_secs(second));
        }
        times.sort_unstable();
        let table = filled(&mut disks, &fake, &dev::TABLE);
        let cell = |name: &str| cell(&table, 0, &format!("disk.dev.read.total.{name}"), &dev::TABLE).unwrap();
        assert_eq!((cell("count"), cell("sum")), (10_000, times.iter().sum::<u64>() * 1000));
        for (name, permille) in [("p50", 500), ("p90", 900), ("p99", 990), ("p999", 999), ("max", 1000)] {
            let (found, exact) = (cell(name) as f64, times[times.len() * permille / 1000 - 1] as f64);
            assert!((found - exact).abs() <= exact * Fine::ERROR + 0.5, "{name}: {found}, not {exact}");
        }
    }

    #[test]
    fn counts_of_an_agent_before_are_in_no_window() {
        let (fake, mut disks) = (fake().continuing(), disks(60));
        count(&fake, 0, VDA, 5_000, 1000);
        disks.look(&fake, Duration::ZERO);
        count(&fake, 0, VDA, 100, 10);
        count(&fake, 2, VDA, 100, 10);
        disks.look(&fake, Duration::from_secs(1));
        for (spec, name) in [(&dev::TABLE, "disk.dev.read.total"), (&whole::TABLE, "disk.all.read.total")] {
            let table = filled(&mut disks, &fake, spec);
            let [count, max] = ["count", "max"].map(|last| cell(&table, 0, &format!("{name}.{last}"), spec));
            assert_eq!(count, Some(1020));
            assert!(max < Some(110), "{max:?}");
        }
    }

    #[test]
    fn a_fetch_changes_no_window_and_an_empty_one_has_no_quantiles() {
        let (fake, mut disks) = (fake(), disks(12));
        count(&fake, 0, VDA, 100, 10);
        disks.look(&fake, Duration::ZERO);
        let p50 = |disks: &mut DiskHistograms| {
            cell(&filled(disks, &fake, &dev::TABLE), 0, "disk.dev.read.total.p50", &dev::TABLE)
        };
        let before = p50(&mut disks);
        count(&fake, 0, VDA, 5_000, 1000);
        assert_eq!([p50(&mut disks), p50(&mut disks)], [before, before], "fetches");
        disks.look(&fake, Duration::from_secs(1));
        assert!(p50(&mut disks) > before, "what fetches have read counts in the window");
        disks.look(&fake, Duration::from_secs(12));
        assert!(p50(&mut disks) > before, "the second is in it");
        disks.look(&fake, Duration::from_secs(13));
        let table = filled(&mut disks, &fake, &dev::TABLE);
        assert_eq!(cell(&table, 0, "disk.dev.read.total.p50", &dev::TABLE), None);
        assert_eq!(cell(&table, 0, "disk.dev.read.total.count", &dev::TABLE), Some(1010));
    }

    #[test]
    fn all_disks_are_those_without_a_disk_below_them() {
        let (fake, mut disks) = (fake(), disks(60));
        for (row, disk) in [(0, VDA), (2, DM), (4, GONE), (6, OTHERS)] {
            count(&fake, row, disk, 100, 10);
        }
        disks.look(&fake, Duration::ZERO);
        assert_eq!(filled(&mut disks, &fake, &dev::TABLE).names(), ["dm-0", "vda"], "one is gone, others have no name");
        let table = filled(&mut disks, &fake, &whole::TABLE);
        assert_eq!(cell(&table, 0, "disk.all.read.total.count", &whole::TABLE), Some(30));
        assert!(cell(&table, 0, "disk.all.read.total.p99", &whole::TABLE).is_some());
        let table = filled(&mut disks, &fake, &whole::BY_BUCKET);
        let total: u64 = (0..table.len()).filter_map(|row| table.number(row, 0)).sum();
        assert_eq!((table.len(), total, table.name(6)), (26, 30, "64-127".into()));
        assert!(matches!(table.keys()[6], Key::Numbered(6, _)), "identifiers are fixed");
    }

    #[test]
    fn buckets_of_a_disk_are_dense_with_the_bounds_first() {
        let (fake, mut disks) = (fake(), disks(60));
        count(&fake, 1, VDA, 100, 10);
        let table = filled(&mut disks, &fake, &dev::BY_BUCKET);
        assert_eq!(
            (table.len(), table.name(0), table.name(25)),
            (26, "0-1::vda".into(), "33554432-4294967295::vda".into())
        );
        assert_eq!(cell(&table, 6, "disk.dev.write.queue.bucket", &dev::BY_BUCKET), Some(10));
        assert_eq!(cell(&table, 6, "disk.dev.read.queue.bucket", &dev::BY_BUCKET), Some(0));
        disks.buckets = Buckets::Fine;
        assert_eq!(filled(&mut disks, &fake, &dev::BY_BUCKET).len(), 417);
    }

    /// Quantiles computed from the buckets as Prometheus does equal those that the agent serves.
    #[test]
    fn buckets_for_prometheus_count_those_below_them() {
        let (fake, mut disks) = (fake(), disks(60));
        count(&fake, 0, VDA, 100, 10);
        count(&fake, 0, VDA, 3000, 2);
        disks.look(&fake, Duration::ZERO);
        let table = filled(&mut disks, &fake, &dev::IN_SECONDS);
        let read = |row: usize, last: &str| cell(&table, row, &format!("disk.dev.read.total.{last}"), &dev::IN_SECONDS);
        let bounds: Vec<String> = [5, 6, 11, 25, 26].map(|row| table.name(row)).into();
        assert_eq!(bounds, ["0.000064::vda", "0.000128::vda", "0.004096::vda", "+Inf::vda", "vda"]);
        let buckets = [5, 6, 10, 11, 25, 26].map(|row| read(row, "seconds_bucket"));
        assert_eq!(buckets, [Some(0), Some(10), Some(10), Some(12), Some(12), None]);
        assert_eq!((read(26, "seconds_count"), read(25, "seconds_count")), (Some(12), None));
        let sum = dev::IN_SECONDS.metrics.iter().position(|metric| metric.name == "disk.dev.read.total.seconds_sum");
        assert_eq!(table.value(26, sum.unwrap()), Some(Atom::Double(0.007)));
        let table = filled(&mut disks, &fake, &whole::IN_SECONDS);
        assert_eq!((table.name(25), table.name(26), table.len()), ("+Inf".into(), "all".into(), 27));
        disks.buckets = Buckets::Quarters;
        let table = filled(&mut disks, &fake, &dev::IN_SECONDS);
        let below = |bound: &str| {
            let row = (0..table.len()).find(|&row| table.name(row) == format!("{bound}::vda")).expect(bound);
            cell(&table, row, "disk.dev.read.total.seconds_bucket", &dev::IN_SECONDS)
        };
        assert_eq!(
            (table.len(), below("0.000096"), below("0.000112"), below("+Inf")),
            (103, Some(0), Some(10), Some(12))
        );
        disks.buckets = Buckets::Fine;
        let table = filled(&mut disks, &fake, &dev::IN_SECONDS);
        assert_eq!((table.len(), table.name(416)), (418, "+Inf::vda".into()));
    }

    /// A clock may be so coarse that the sum of the times stands still: each histogram is still read now and then.
    #[test]
    fn times_of_nothing_come_into_the_window_too() {
        let (fake, mut disks) = (fake(), disks(60));
        count(&fake, 0, VDA, 0, 10);
        for _ in 0..16 {
            disks.look(&fake, Duration::ZERO);
        }
        let table = filled(&mut disks, &fake, &dev::TABLE);
        assert_eq!(cell(&table, 0, "disk.dev.read.total.count", &dev::TABLE), Some(10));
        assert_eq!(cell(&table, 0, "disk.dev.read.total.max", &dev::TABLE), Some(0));
    }

    #[test]
    fn disks_that_do_not_match_are_in_no_table() {
        let fake = fake().with(IGNOREDS, 64);
        let identify = |number: DiskNumber| named(number).map(|(name, _)| (name, 1));
        let filter = DiskFilter::new(Pattern::of("^v"), identify);
        let mut disks = disks_with(&[&dev::DEF], 60, filter);
        for (row, disk) in [(0, VDA), (2, DM), (4, GONE), (6, OTHERS)] {
            count(&fake, row, disk, 100, 10);
        }
        disks.look(&fake, Duration::ZERO);
        assert_eq!(filled(&mut disks, &fake, &dev::TABLE).names(), ["vda"]);
        let table = filled(&mut disks, &fake, &whole::TABLE);
        assert_eq!(cell(&table, 0, "disk.all.read.total.count", &whole::TABLE), Some(10));
        let table = filled(&mut disks, &fake, &dev::BY_BUCKET);
        assert_eq!((table.len(), table.name(0)), (26, "0-1::vda".into()));
        let table = filled(&mut disks, &fake, &whole::BY_BUCKET);
        assert_eq!((0..table.len()).filter_map(|row| table.number(row, 0)).sum::<u64>(), 10);
    }

    /// The directories have the form of those of a PCI disk below /sys/devices, and of one of device-mapper.
    #[test]
    fn labels_of_a_disk_are_what_sysfs_has() {
        let sysfs = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = sysfs.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("pci0/nvme0/numa_node", "1\n");
        write("pci0/nvme0/nvme0n1/queue/rotational", "0\n");
        write("pci0/nvme0/nvme0n1/device/model", "Fast  \x01 1T  \n");
        write("virtual/dm-0/dm/name", "vg-home\n");
        write("virtual/dm-0/queue/rotational", "1\n");
        write("virtual/dm-0/device/model", "\n");
        let text = |text: &str| SeriesLabel::Text(text.to_owned());
        assert_eq!(
            labels(&sysfs.path().join("pci0/nvme0/nvme0n1"), "nvme0n1"),
            [
                ("disk", text("nvme0n1")),
                ("model", text("Fast  _ 1T")),
                ("rotational", SeriesLabel::Flag(false)),
                ("numa_node", SeriesLabel::Number(1)),
            ]
        );
        write("numa_node", "-1\n");
        assert_eq!(
            labels(&sysfs.path().join("virtual/dm-0"), "dm-0"),
            [("disk", text("dm-0")), ("device_mapper_name", text("vg-home")), ("rotational", SeriesLabel::Flag(true)),]
        );
        assert_eq!(labels(&sysfs.path().join("gone"), "gone"), [("disk", text("gone"))]);
    }
}
