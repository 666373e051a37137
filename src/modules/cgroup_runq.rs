//! Run queue latency by cgroup. Kernel side: bpf/cgroup_runq.bpf.c, with the times of bpf/runqlat.bpf.c.

use super::runqlat::{kernel_keeps_times, plan_times, RUNQ_MAPS, SWITCH, WAKEUP, WAKEUP_NEW};
use super::shared::cgroups::BY_PATH;
use super::shared::groups::tell;
use super::shared::places::{ByPlace, PlacedHistograms};
use crate::bpf::types::{self, cgq_row, mark, place_owner};
use crate::host::{Cgroups, Controller, NoCgroups};
use crate::kit::*;
use crate::{beyond, histograms, maps, options};

histograms! {
    "cgroup";
    tables "each cgroup", "each bucket of each cgroup", 401 333 437, BY_PATH;
    1 "runq" "tasks by cgroup" "from ready to run to running on a CPU" NOTE;
    with NAME: str = 0 "runq.name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
}

const NOTE: &str =
    "Series are cgroups of v2 by path. The series \"other\" has tasks of cgroups without a row of their own (option \
                    \"max_cgroups\"), and of those that were removed more than a minute ago.";

maps! {
    rows OWNERS: place_owner = "cgq_owners", taken id;
    rows ROWS: cgq_row = "cgq_rows", taken used, marked in "cgq_marks";
    rows MARKS: mark = "cgq_marks";
}

options! {
    /// Cgroups with counters of their own; the number is rounded up to a power of two. Other cgroups are the series `other`. Each takes 4 KB of memory, or that for each CPU.
    max_cgroups: CgroupCount = CgroupCount(1024);
    histograms;
}

static BY_CGROUP: ByPlace<cgq_row> = ByPlace {
    owners: OWNERS,
    rows: ROWS,
    marks: MARKS,
    histograms: &[cgq_row::waits],
    counters: &[],
    name: NAME,
    beyond: beyond!("table-full: tasks of cgroups", timed, [cgq_row::waits]),
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "cgroup_runq",
    summary: "run queue latency by cgroup: services, containers, pods, virtual machines",
    overhead: Overhead::medium("32 ns per context switch"),
    needs: "cgroup v2",
    tables: &[&TABLE, &BY_BUCKET, &IN_SECONDS],
    options: OPTIONS,
    hooks: &[&SWITCH, &WAKEUP, &WAKEUP_NEW],
    maps: &joined::<{ MAPS.len() + RUNQ_MAPS.len() }>(&[MAPS, RUNQ_MAPS]),
    make: |setup| Ok(Box::new(CgroupRunq::new(Options::read(setup.section)?, Cgroups::of(Controller::Unified)))),
    ..Spec::NEW
};

struct CgroupRunq {
    options: Options,
    cgroups: PlacedHistograms<cgq_row>,
}

impl CgroupRunq {
    fn new(options: Options, cgroups: Result<Cgroups, NoCgroups>) -> CgroupRunq {
        let cgroups = PlacedHistograms::new(&BY_CGROUP, cgroups, options.window.window(), options.buckets);
        CgroupRunq { options, cgroups }
    }
}

impl Module for CgroupRunq {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let Some(size) = self.cgroups.plan(self.options.max_cgroups.places(), host, plan) else { return };
        constants.cgq_mask = size.mask;
        constants.cgq_cpu_shift = size.shift;
        constants.cgq_shared = size.shift > 0;
        tell(
            size.shift,
            "a cgroup",
            "10 ns more per context switch, or more where tasks of one cgroup start on them at the same time",
        );
        plan_times(kernel_keeps_times(), host, plan, constants);
        plan.leave_to(&["runqlat"]);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let prometheus = self.options.prometheus;
        PlacedHistograms::add_tables(Running::of(*self), TABLES, prometheus, |module| Some(&mut module.cgroups))
            .losses(Self::losses)
            .started()
    }
}

impl CgroupRunq {
    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each(
            "untimed: wake-ups that were not seen, so the wait is unknown",
            self.cgroups.sum(kernel, cgq_row::unmeasured),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_cgroup_v2_is_told_so() {
        let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
        CgroupRunq::new(Options::default(), Err(NoCgroups::Unified)).plan(&Host::SMALL, &mut plan, &mut constants);
        assert_eq!(plan.refusal.unwrap(), "cgroup v2 is not mounted: mount it (mount -t cgroup2 none /sys/fs/cgroup)");
        assert!(plan.hooks.is_empty() && plan.entries.is_empty());
    }
}
