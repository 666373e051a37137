//! Latency by disk, operation and size of the request: bcc.disk.size.*, with the option `by_size`.

use super::disks::{DiskHistograms, MOST_DISKS};
use super::{OwnedRows, SIZES};
use crate::bpf::types::{bio_size_row, fine_hist};
use crate::kit::{
    set_buckets, Buckets, Fine, Kept, Kernel, Row, RowsView, SeriesLabel, SeriesLabels, Shape, Table, TableSpec,
    WindowClock,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Classes of sizes, each from above the one before it.
const CLASSES: [&str; 10] = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "over"];

const NOTE: &str = "By the size of the whole request: 4K up to 4 KB, 8K up to 8 KB and so on, over above 1 MB. With the option by_size.";

crate::histograms! {
    "disk.size";
    1 "read.total" "reads by disk and size" "from allocation to completion" NOTE;
    2 "write.total" "writes by disk and size" "from allocation to completion" NOTE;
}

/// Table of disks and sizes.
pub static TABLE: TableSpec =
    TableSpec::by_series("each disk and request size", 325, Shape::Named { max: MOST_DISKS }, SERIES, HISTOGRAMS)
        .with_options(&["by_size"]);
/// Table of the buckets of disks and sizes.
pub static BY_BUCKET: TableSpec =
    TableSpec::by_bucket("each bucket of each disk and request size", 326, BUCKETS, HISTOGRAMS)
        .with_options(&["by_size"]);

/// Table of the buckets of disks and sizes for Prometheus.
pub static IN_SECONDS: TableSpec =
    TableSpec::in_seconds("each bucket of each disk and request size", 432, SECONDS, HISTOGRAMS)
        .with_options(&["by_size", "prometheus"]);

/// Histograms of disks and sizes with their windows.
#[derive(Default)]
pub struct SizeHistograms {
    /// Rows that belong to one of the disks.
    owned: OwnedRows,
    disks: BTreeMap<u64, Disk>,
}

#[derive(Default)]
struct Disk {
    /// Rows of reads, and of writes.
    rows: [Vec<usize>; 2],
    kept: [[Kept; CLASSES.len()]; 2],
}

impl SizeHistograms {
    /// Adds new counts to this part of the windows. Called once a second.
    pub fn tick(&mut self, kernel: &dyn Kernel, part: u64, clock: WindowClock) {
        let rows = self.find(kernel);
        let mut number = 0;
        for disk in self.disks.values_mut() {
            for (kept, of) in disk.kept.iter_mut().zip(&disk.rows) {
                for (class, kept) in kept.iter_mut().enumerate() {
                    number += 1;
                    kept.look(part, parts(rows, of, class), clock.look_at(number));
                }
            }
        }
    }

    /// Fills the table with the disks that are served: the sizes that have counted.
    pub fn fill(&mut self, kernel: &dyn Kernel, disks: &DiskHistograms, table: &mut Table) {
        self.each(kernel, disks, |rows, disk, class, name, labels| {
            let row = table.named(name).labels(labels);
            let ways = disk.kept.iter_mut().zip(&disk.rows).enumerate();
            ways.fold(row, |row, (way, (kept, of))| kept[class].set(row, way, parts(rows, of, class)));
        });
    }

    /// Fills a table of buckets.
    pub fn fill_buckets(&mut self, kernel: &dyn Kernel, disks: &DiskHistograms, buckets: Buckets, table: &mut Table) {
        self.each(kernel, disks, |rows, disk, class, name, labels| {
            let totals = [0, 1].map(|way| Fine::total(parts(rows, &disk.rows[way], class)));
            set_buckets(table, buckets, Some((name, labels)), &totals);
        });
    }

    /// Passes each size that has counted, of each disk that is served, with the name and the labels of its series.
    fn each<'a>(
        &mut self,
        kernel: &'a dyn Kernel,
        disks: &DiskHistograms,
        mut each: impl FnMut(RowsView<'a, bio_size_row>, &mut Disk, usize, &[u8], &Arc<SeriesLabels>),
    ) {
        let rows = self.find(kernel);
        for (word, name, labels) in disks.served() {
            let Some(disk) = self.disks.get_mut(&word) else { continue };
            for (class, &size) in CLASSES.iter().enumerate() {
                if [0, 1].iter().all(|&way| disk.kept[way][class].read(parts(rows, &disk.rows[way], class)).0 == 0) {
                    continue;
                }
                let series = [name, b"::", size.as_bytes()].concat();
                let size = ("size", SeriesLabel::Text(size.to_owned()));
                let labels = Arc::new(labels.iter().cloned().chain([size]).collect::<SeriesLabels>());
                each(rows, disk, class, &series, &labels);
            }
        }
    }

    /// Notes rows that have got an owner since the last call.
    fn find<'a>(&mut self, kernel: &'a dyn Kernel) -> RowsView<'a, bio_size_row> {
        let rows = kernel.rows(SIZES);
        for (at, disk) in self.owned.find(rows, bio_size_row::disk) {
            self.disks.entry(disk).or_default().rows[at % 2].push(at);
        }
        rows
    }
}

/// Returns the histogram of a class of each of these rows.
fn parts<'a>(
    rows: RowsView<'a, bio_size_row>,
    of: &'a [usize],
    class: usize,
) -> impl Iterator<Item = Row<'a, fine_hist>> + Clone {
    of.iter().filter_map(move |&at| rows.get(at)?.parts(bio_size_row::sizes).nth(class))
}

#[cfg(test)]
mod tests {
    use super::super::disks::tests::{cell, disks, VDA};
    use super::super::{ROWS, SMALLS};
    use super::*;
    use crate::bpf::types::bio_row;
    use crate::kit::{Fake, Key};

    /// Counts requests of 100 us in a class of a row: reads in even rows, writes in odd ones.
    fn count(fake: &Fake, row: usize, class: usize, requests: u64) {
        fake.set(ROWS, row, bio_row::disk, VDA);
        fake.set(SIZES, row, bio_size_row::disk, VDA);
        let part = fake.row(SIZES, row).parts(bio_size_row::sizes).nth(class).unwrap();
        let bucket = fine_hist::buckets.nth(Fine::bucket(100_000));
        part.set(bucket, part.get(bucket) + requests);
        part.set(fine_hist::sum, part.get(fine_hist::sum) + requests * 100_000);
    }

    #[test]
    fn sizes_of_a_disk_are_series_once_they_have_counted() {
        let fake = Fake::new().with(ROWS, 8).with(SMALLS, 8).with(SIZES, 8);
        let (mut disks, mut sizes) = (disks(60), SizeHistograms::default());
        for (row, class, requests) in [(0, 0, 1), (4, 0, 2), (4, 9, 4), (5, 4, 8)] {
            count(&fake, row, class, requests);
        }
        let (part, clock) = disks.tick(&fake);
        sizes.tick(&fake, part, clock);
        count(&fake, 5, 4, 8);
        let mut table = Table::of(&TABLE);
        sizes.fill(&fake, &disks, &mut table);
        assert_eq!(table.names(), ["vda::4K", "vda::64K", "vda::over"]);
        let cells = |name: &str| [0, 1, 2].map(|row| cell(&table, row, &format!("disk.size.{name}"), &TABLE));
        assert_eq!(cells("read.total.count"), [Some(3), Some(0), Some(4)]);
        assert_eq!(cells("write.total.count"), [Some(0), Some(16), Some(0)]);
        assert_eq!(cells("write.total.sum"), [Some(0), Some(1_600_000), Some(0)]);
        let p99 = cells("write.total.p99");
        assert!(p99[1].is_some_and(|us| us.abs_diff(100) <= 4) && p99[0].is_none(), "{p99:?}");
        let labels = table.labels(1).unwrap();
        assert_eq!(labels.last(), Some(&("size", SeriesLabel::Text("64K".into()))));
        assert_eq!(labels[0], ("disk", SeriesLabel::Text("vda".into())));
        let mut table = Table::of(&BY_BUCKET);
        sizes.fill_buckets(&fake, &disks, Buckets::default(), &mut table);
        assert_eq!((table.len(), table.name(6 + 26)), (3 * 26, "64-127::vda::64K".into()));
        assert_eq!(cell(&table, 6 + 26, "disk.size.write.total.bucket", &BY_BUCKET), Some(16));
        assert!(matches!(table.keys()[0], Key::Name(_)), "identifiers are kept by name");
    }
}
