//! Block I/O latency. Kernel side: bpf/biolatency.bpf.c, which counts by disk.

use super::shared::block::{COMPLETE, ISSUE};
use crate::bpf::features::PLUG_CLOCK;
use crate::bpf::types::{self, bio_row, bio_small};
use crate::kit::*;
use crate::{maps, metrics, module_log, options};
use std::sync::LazyLock;

metrics! {
    LATENCY: u64 = 0 "disk.all.latency" COUNTER USEC "block I/O requests by the time they took";
}

maps! {
    rows ROWS: bio_row = "bio_rows", taken disk;
    rows SMALLS: bio_small = "bio_smalls", taken disk;
    hash OWNERS: u64 = "bio_owners";
    private STARTS: u64 = "bio_starts";
}

options! {
    /// Include the time that a request is queued: measure from its allocation, as iostat's await does, not from its issue to the device.
    queued: bool = false;
    /// Take the time of issue with a program. False saves it and reads the time that the kernel keeps: since 6.9 that of the first
    /// request of a batch for all, so that the device's time has the batching in it and the queue's has not.
    issue: bool = true;
}

/// The major number of device-mapper disks.
static MAPPER: LazyLock<Option<u64>> = LazyLock::new(|| device_mapper(&std::fs::read_to_string("/proc/devices").ok()?));

static TABLE: TableSpec =
    TableSpec { cluster: 0, shape: Shape::Log2(Log2::MICROSECONDS), metrics: METRICS, ..TableSpec::NEW };

/// What a request did.
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

/// Calls for each row that has counted: its disk (`None`: of the disks that found no row of their own), its operation, its counters.
pub fn each_row(kernel: &dyn Kernel, mut each: impl FnMut(Option<DiskNumber>, Operation, BioRow<'_>)) {
    // Two rows an index, and index 0 belongs to no disk; the smaller rows are as many and at the same places.
    for (at, row) in kernel.rows(ROWS).iter().enumerate() {
        let operation = [Operation::Read, Operation::Write][at % 2];
        each_taken(row.get(bio_row::disk), || !row.is_zero(), |disk| each(disk, operation, BioRow::Full(row)));
    }
    for (at, row) in kernel.rows(SMALLS).iter().enumerate() {
        let operation = [Operation::Flush, Operation::Discard][at % 2];
        each_taken(row.get(bio_small::disk), || !row.is_zero(), |disk| each(disk, operation, BioRow::Small(row)));
    }
}
/// The declaration.
pub const SPEC: Spec = Spec {
    name: "biolatency",
    summary: "block I/O latency",
    overhead: Overhead::low("160 ns per request"),
    needs: "CONFIG_BLK_DEV_IO_TRACE",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&COMPLETE, &ISSUE],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        match options.queued {
            true => module_log!(info, "Including time in the queue: from the allocation of a request."),
            false => module_log!(info, "Without time in the queue: from the issue of a request to the device."),
        }
        LazyLock::force(&MAPPER);
        Ok(Box::new(Biolatency { options, unmeasured: 0 }))
    },
    ..Spec::NEW
};

struct Biolatency {
    options: Options,
    unmeasured: u64,
}

impl Module for Biolatency {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let disks = table_size(host.disks * 2, 16, 256);
        // Requests are spread by a hash: a quarter full keeps collisions rare, and a collision has a second choice.
        let starts = table_size(host.requests * 4, 8192, 1 << 18);
        constants.bio_disk_mask = disks as u32 - 1;
        constants.bio_start_mask = starts as u32 - 1;
        constants.bio_queued = self.options.queued;
        plan.attach(&COMPLETE);
        plan.attach_if(&ISSUE, PLUG_CLOCK);
        plan.entries(ROWS.def.name, disks * host.cpus);
        plan.entries(STARTS.name, starts);
    }

    /// Devices without request time stamps: from now on the time of issue is taken by a program.
    fn tick(&mut self, kernel: &dyn Kernel) {
        let rows = kernel.rows(ROWS);
        let without = rows.sum(bio_row::unmeasured) + rows.sum(bio_row::other_start);
        if without > self.unmeasured {
            self.unmeasured = without;
            if let Err(error) = kernel.attach(&ISSUE) {
                module_log!(debug, "block_rq_issue: {error}");
            }
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        let rows = kernel.rows(ROWS);
        each("untimed: requests without a usable start time", rows.sum(bio_row::unmeasured));
        each("other-start: requests counted from their other start time", rows.sum(bio_row::other_start));
    }
}

/// The major number in the line `253 device-mapper` of /proc/devices.
fn device_mapper(devices: &str) -> Option<u64> {
    devices.lines().find_map(|line| line.trim().strip_suffix(" device-mapper")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    fn module() -> Biolatency {
        Biolatency { options: Options::default(), unmeasured: 0 }
    }

    fn disk(major: u64, minor: u64) -> u64 {
        1 << 63 | major << 32 | minor
    }

    #[test]
    fn disks_and_cpus_are_added_up_without_device_mapper() {
        let fake = Fake::new().with(ROWS, 4);
        let rows = [(0, 8, 1), (1, 259, 10), (2, 253, 100), (3, 8, 1000)];
        for (row, major, count) in rows {
            fake.set(ROWS, row, bio_row::disk, disk(major, 16));
            fake.set(ROWS, row, bio_row::buckets.nth(1), count);
        }
        let mut table = Table::of(&TABLE);
        latency(|row| is_disk(row, Some(253))).read(&fake, &mut table);
        assert_eq!(table.value(1, 0), Some(Atom::U64(1011)));
        let here = fake.filled(&TABLE, &mut module());
        let counted = rows.iter().filter(|(_, major, _)| *MAPPER != Some(*major));
        assert_eq!(here.value(1, 0), Some(Atom::U64(counted.map(|(.., count)| count).sum())));
    }

    #[test]
    fn device_mapper_is_known_by_its_line() {
        let devices = "Character devices:\n  1 mem\n253 hidraw\n\nBlock devices:\n259 blkext\n252 device-mapper\n";
        assert_eq!((device_mapper(devices), device_mapper("")), (Some(252), None));
    }

    #[test]
    fn the_time_of_issue_is_taken_once_requests_come_without_one() {
        let fake = Fake::new().with(ROWS, 1);
        let mut module = module();
        module.tick(&fake);
        assert!(fake.attached().is_empty());
        fake.set(ROWS, 0, bio_row::unmeasured, 3);
        module.tick(&fake);
        assert_eq!(fake.attached(), ["block_rq_issue"]);
    }
}
