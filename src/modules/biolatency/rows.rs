//! Rows of disks as the programs count them: their owners and counters.

use super::{ROWS, SMALLS};
use crate::bpf::types::{bio_row, bio_small, fine_hist};
use crate::bpf::Field;
use crate::kit::{Kernel, Row};

/// An operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Reads, as /proc/diskstats has them.
    Read,
    /// Writes, with zeroing.
    Write,
    /// Flushes of the disk's cache.
    Flush,
    /// Discards.
    Discard,
}

/// A disk by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskNumber {
    /// Major number.
    pub major: u32,
    /// First minor number.
    pub minor: u32,
}

/// The counters of an operation of a disk, of one CPU or several: all rows of the same disk and operation add up.
#[derive(Clone, Copy)]
pub enum BioRow<'a> {
    /// Reads or writes.
    Full(Row<'a, bio_row>),
    /// Flushes or discards.
    Small(Row<'a, bio_small>),
}

/// Passes each row that has counted to `each`: its disk (`None` for disks without a row of their own), its operation, its counters.
pub fn each_row(kernel: &dyn Kernel, mut each: impl FnMut(Option<DiskNumber>, Operation, BioRow<'_>)) {
    for (at, row) in kernel.rows(ROWS).iter().enumerate() {
        let operation = Operation::of_full(at);
        if let word @ 1.. = row.get(bio_row::disk) {
            each(DiskNumber::read(word), operation, BioRow::Full(row));
        }
    }
    for (at, row) in kernel.rows(SMALLS).iter().enumerate() {
        let operation = Operation::of_small(at);
        if let word @ 1.. = row.get(bio_small::disk) {
            each(DiskNumber::read(word), operation, BioRow::Small(row));
        }
    }
}

impl Operation {
    /// Returns the operation of a row of reads and writes.
    pub fn of_full(row: usize) -> Operation {
        [Operation::Read, Operation::Write][row % 2]
    }

    /// Returns the operation of a row of flushes and discards.
    pub fn of_small(row: usize) -> Operation {
        [Operation::Flush, Operation::Discard][row % 2]
    }

    /// Returns the operation of a request as the programs classify it: odd operations write (include/linux/blk_types.h).
    pub fn of_request(operation: u32) -> Operation {
        match operation {
            2 => Operation::Flush,
            3 => Operation::Discard,
            other => Operation::of_full(other as usize),
        }
    }

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        ["read", "write", "flush", "discard"][self as usize]
    }
}

impl DiskNumber {
    /// Reads the first word of a row; `None` for disks without a row of their own.
    pub fn read(word: u64) -> Option<DiskNumber> {
        let numbers = DiskNumber { major: (word << 1 >> 33) as u32, minor: word as u32 };
        (word >> 63 == 1).then_some(numbers)
    }

    /// Returns the first word of the disk's rows.
    pub fn word(self) -> u64 {
        1 << 63 | u64::from(self.major) << 32 | u64::from(self.minor)
    }
}

impl BioRow<'_> {
    /// Returns the number of completed requests.
    pub fn count(self) -> u64 {
        let total = match self {
            BioRow::Full(row) => row.part(bio_row::total),
            BioRow::Small(row) => row.part(bio_small::total),
        };
        total.words(fine_hist::buckets).fold(self.unmeasured().wrapping_add(self.no_start()), u64::wrapping_add)
    }

    /// Returns the bytes of these requests.
    pub fn bytes(self) -> u64 {
        self.word(bio_row::bytes, bio_small::bytes)
    }

    /// Returns the number of requests for which neither start time is known.
    pub fn unmeasured(self) -> u64 {
        self.word(bio_row::unmeasured, bio_small::unmeasured)
    }

    /// Returns the number of requests whose allocation time is not known: they are missing in the histograms from the allocation.
    pub fn no_start(self) -> u64 {
        self.word(bio_row::no_start, bio_small::no_start)
    }

    /// Returns the number of requests whose issue time is not known: their time in the device is measured from the allocation.
    pub fn no_issue(self) -> u64 {
        self.word(bio_row::no_issue, bio_small::no_issue)
    }

    fn word(self, full: Field<bio_row, u64>, small: Field<bio_small, u64>) -> u64 {
        match self {
            BioRow::Full(row) => row.get(full),
            BioRow::Small(row) => row.get(small),
        }
    }
}

/// Numbers of requests without some of the times.
#[derive(Default)]
pub struct Lost {
    pub unmeasured: u64,
    pub no_start: u64,
    pub no_issue: u64,
    pub others: u64,
}

impl Lost {
    /// Returns the sums over all disks.
    pub fn read(kernel: &dyn Kernel) -> Lost {
        let mut lost = Lost::default();
        each_row(kernel, |disk, _, row| {
            lost.unmeasured += row.unmeasured();
            lost.no_start += row.no_start();
            lost.no_issue += row.no_issue();
            if disk.is_none() {
                lost.others += row.count();
            }
        });
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::Fake;

    fn disk(major: u64, minor: u64) -> u64 {
        1 << 63 | major << 32 | minor
    }

    #[test]
    fn rows_tell_their_disk_and_operation() {
        let fake = Fake::new().with(ROWS, 4).with(SMALLS, 4);
        for (row, word) in [(0, 1 << 62), (3, disk(259, 1_048_575))] {
            fake.set(ROWS, row, bio_row::disk, word);
            fake.set(ROWS, row, bio_row::bytes, 4096);
            fake.set(SMALLS, row, bio_small::disk, word);
            fake.set(SMALLS, row, bio_small::unmeasured, 3);
        }
        let mut seen = Vec::new();
        each_row(&fake, |disk, operation, row| seen.push((disk, operation, row.bytes(), row.count())));
        let nvme = Some(DiskNumber { major: 259, minor: 1_048_575 });
        let full = [(None, Operation::Read, 4096, 0), (nvme, Operation::Write, 4096, 0)];
        assert_eq!(seen, [full[0], full[1], (None, Operation::Flush, 0, 3), (nvme, Operation::Discard, 0, 3)]);
    }
}
