//! Latency by disk, operation and size of the request: bcc.disk.size.*, with the option `by_size`.

use super::disks::MOST_DISKS;
use super::SIZES;
use crate::bpf::types::bio_size_row;
use crate::kit::{SeriesDef, SeriesRows, Shape};

/// Classes of sizes, each from above the one before it.
const CLASSES: [&str; 10] = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "over"];

const NOTE: &str = "By the size of the whole request: 4K up to 4 KB, 8K up to 8 KB and so on, over above 1 MB. With the option by_size.";

crate::histograms! {
    "disk.size";
    tables "each disk and request size", "each bucket of each disk and request size", 325 326 432, Shape::Named { max: MOST_DISKS }, if "by_size";
    1 "read.total" "reads by disk and size" "from allocation to completion" NOTE;
    2 "write.total" "writes by disk and size" "from allocation to completion" NOTE;
}

const READS: SeriesRows<bio_size_row> = SeriesRows::each(SIZES, bio_size_row::disk, 0, 2);
const WRITES: SeriesRows<bio_size_row> = SeriesRows::each(SIZES, bio_size_row::disk, 1, 2);

/// Histograms of disks and sizes: the sizes that have counted.
pub static DEF: SeriesDef = SeriesDef {
    tables: TABLES,
    histograms: &[READS.part(bio_size_row::sizes.nth(0)), WRITES.part(bio_size_row::sizes.nth(0))],
    split: Some(("size", &CLASSES)),
    ..SeriesDef::NEW
};

#[cfg(test)]
mod tests {
    use super::super::disks::tests::{cell, disks_with, VDA};
    use super::super::filter::DiskFilter;
    use super::super::{disks, ROWS, SMALLS};
    use super::*;
    use crate::bpf::types::{bio_row, fine_hist};
    use crate::kit::{Fake, Fine, Key, SeriesLabel};

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
        let filter = DiskFilter::new(Default::default(), |_| None);
        let mut sizes = disks_with(&[&disks::dev::DEF, &DEF], 60, filter);
        for (row, class, requests) in [(0, 0, 1), (4, 0, 2), (4, 9, 4), (5, 4, 8)] {
            count(&fake, row, class, requests);
        }
        sizes.tick(&fake);
        count(&fake, 5, 4, 8);
        let table = sizes.filled(&fake, &TABLE);
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
        let table = sizes.filled(&fake, &BY_BUCKET);
        assert_eq!((table.len(), table.name(6 + 26)), (3 * 26, "64-127::vda::64K".into()));
        assert_eq!(cell(&table, 6 + 26, "disk.size.write.total.bucket", &BY_BUCKET), Some(16));
        assert!(matches!(table.keys()[0], Key::Name(_)), "identifiers are kept by name");
    }
}
