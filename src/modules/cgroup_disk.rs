//! Block I/O latency by cgroup. Kernel side: bpf/cgroup_disk.bpf.c.

use super::shared::block::{starts, COMPLETE, ISSUE};
use super::shared::cgroups::BY_PATH;
use super::shared::groups::tell;
use super::shared::places::{ByPlace, PlacedHistograms};
use crate::bpf::features::PLUG_CLOCK;
use crate::bpf::types::{self, cgd_row, cgd_side, mark, place_owner};
use crate::host::{Cgroups, Controller, NoCgroups};
use crate::kit::*;
use crate::{beyond, histograms, maps, module_log, options};

histograms! {
    "cgroup.disk";
    tables "each cgroup", "each bucket of each cgroup", 400 327 436, BY_PATH;
    1 "read.total" "reads by cgroup" "from allocation to completion" READS;
    2 "read.queue" "reads by cgroup" "from allocation to issue to the device" READS;
    3 "write.total" "writes by cgroup" "from allocation to completion" WRITES;
    4 "write.queue" "writes by cgroup" "from allocation to issue to the device" WRITES;
    with NAME: str = 0 "name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
    with READ_BYTES: u64 = 1 "read.bytes" COUNTER BYTE "bytes that reads of the cgroup transferred";
    with WRITE_BYTES: u64 = 2 "write.bytes" COUNTER BYTE "bytes that writes of the cgroup transferred";
}

const READS: &str = "Series are cgroups by path, each request with the nearest one that has the controller io. The series \"other\" has requests of \
                     cgroups without a row of their own (option \"max_cgroups\"), of none, and of those that were removed more than a minute ago.";
const WRITES: &str = "Series are cgroups by path, each request with the nearest one that has the controller io. With cgroup v2 and its controllers \
                      memory and io, buffered data that is written back later counts for the cgroup that wrote it, else for the root. \
                      The series \"other\" has requests of cgroups without a row of their own (option \"max_cgroups\"), of none, and of \
                      those that were removed more than a minute ago.";

maps! {
    rows OWNERS: place_owner = "cgd_owners", taken id;
    rows ROWS: cgd_row = "cgd_rows", taken used, marked in "cgd_marks";
    rows MARKS: mark = "cgd_marks";
    private STARTS: u64 = "cgd_starts";
}

options! {
    /// Cgroups with counters of their own; the number is rounded up to a power of two. Other cgroups are the series `other`. Each takes 15 KB of memory, or that for each CPU.
    max_cgroups: CgroupCount = CgroupCount(1024);
    histograms;
}

static BY_CGROUP: ByPlace<cgd_row> = ByPlace {
    owners: OWNERS,
    rows: ROWS,
    marks: MARKS,
    histograms: &[
        cgd_row::read.then(cgd_side::total),
        cgd_row::read.then(cgd_side::queue),
        cgd_row::write.then(cgd_side::total),
        cgd_row::write.then(cgd_side::queue),
    ],
    counters: &[(READ_BYTES, cgd_row::read.then(cgd_side::bytes)), (WRITE_BYTES, cgd_row::write.then(cgd_side::bytes))],
    name: NAME,
    beyond: beyond!(
        "table-full: requests of no cgroup, or of cgroups",
        timed,
        [cgd_row::read.then(cgd_side::total), cgd_row::write.then(cgd_side::total)]
    ),
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "cgroup_disk",
    summary: "block I/O latency by cgroup: services, containers, pods, virtual machines",
    overhead: Overhead::low("250 ns per request"),
    needs: "CONFIG_BLK_CGROUP and CONFIG_BLK_DEV_IO_TRACE",
    tables: &[&TABLE, &BY_BUCKET, &IN_SECONDS],
    options: OPTIONS,
    hooks: &[&COMPLETE, &ISSUE],
    maps: MAPS,
    make: |setup| Ok(Box::new(CgroupDisk::new(Options::read(setup.section)?, Cgroups::of(Controller::BlockIo)))),
    ..Spec::NEW
};

struct CgroupDisk {
    options: Options,
    cgroups: PlacedHistograms<cgd_row>,
    is_v1: bool,
}

impl CgroupDisk {
    fn new(options: Options, cgroups: Result<Cgroups, NoCgroups>) -> CgroupDisk {
        let is_v1 = cgroups.as_ref().is_ok_and(|cgroups| cgroups.is_v1);
        let cgroups = PlacedHistograms::new(&BY_CGROUP, cgroups, options.window.window(), options.buckets);
        CgroupDisk { options, cgroups, is_v1 }
    }
}

impl Module for CgroupDisk {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let Some(size) = self.cgroups.plan(self.options.max_cgroups.places(), host, plan) else { return };
        // Here, since a module that is off is made too, for its errors.
        if self.is_v1 {
            module_log!(warn, "blkio is on cgroup v1, which charges buffered writes to the root cgroup.");
        }
        let starts = starts(host);
        constants.cgd_mask = size.mask;
        constants.cgd_cpu_shift = size.shift;
        constants.cgd_shared = size.shift > 0;
        constants.cgd_start_shift = 32 - starts.ilog2();
        tell(
            size.shift,
            "a cgroup",
            "10 ns more per request, or more where they complete requests of one cgroup at the same time",
        );
        plan.attach(&COMPLETE);
        plan.attach_if(&ISSUE, PLUG_CLOCK);
        plan.entries(STARTS.name, starts);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let prometheus = self.options.prometheus;
        PlacedHistograms::add_tables(Running::of(*self), TABLES, prometheus, |module| Some(&mut module.cgroups))
            .losses(Self::losses)
            .started()
    }
}

impl CgroupDisk {
    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let sum = |of: Field| {
            [cgd_row::read, cgd_row::write].iter().fold(0, |sum, side| sum + self.cgroups.sum(kernel, side.then(of)))
        };
        each("untimed: requests without a usable start time", sum(cgd_side::unmeasured));
        each("other-start: requests counted from their other start time", sum(cgd_side::no_start));
    }
}

type Field = crate::bpf::Field<cgd_side, u64>;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(cgroups: Result<Cgroups, NoCgroups>, host: &Host) -> (Plan, types::rodata) {
        let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
        CgroupDisk::new(Options::default(), cgroups).plan(host, &mut plan, &mut constants);
        (plan, constants)
    }

    #[test]
    fn a_machine_without_block_cgroups_is_told_so() {
        let (plan, _) = plan(Err(NoCgroups::BlockIo), &Host::SMALL);
        let reason = plan.refusal.unwrap();
        assert!(reason.starts_with("no mounted hierarchy of cgroups has block I/O: "), "{reason}");
    }

    /// A test that counters are kept by CPU if there is memory for them.
    #[test]
    fn memory_is_bounded() {
        for (cpus, memory, shift) in [(1, 1024, 0), (2, 1024, 1), (2, 24_000, 0), (64, 256_000, 4), (256, 1_000_000, 6)]
        {
            let host = Host { cpus, memory, ..Host::SMALL };
            let mut plan = Plan::default();
            let size = BY_CGROUP.plan(CgroupCount(1000).places(), &host, &mut plan);
            assert_eq!((size.mask, size.shift), (1023, shift), "{cpus} CPUs, {memory} MB");
            let rows = plan.entries.iter().find(|(name, _)| *name == ROWS.def.name).unwrap().1 as usize;
            let bytes = rows * size_of::<cgd_row>();
            assert_eq!(rows, cpus.div_ceil(1 << shift) * 1025);
            assert!(bytes <= 96 << 20 && (shift == 0 || cpus <= 1 << shift || bytes <= memory << 13), "{bytes}");
        }
    }
}
