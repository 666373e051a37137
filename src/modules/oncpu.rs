//! Turns of tasks on a CPU: times, how they end, moves between CPUs. Kernel side: bpf/oncpu.bpf.c.

use super::runqlat::{plan_switches, RUNQ_MAPS, SWITCH};
use super::shared::cgroups::{counters_by_cgroup, BY_PATH};
use super::shared::groups::tell;
use super::shared::places::{ByPlace, PlacedHistograms};
use crate::bpf::types::{self, mark, onc_group, onc_row, place_owner};
use crate::kit::*;
use crate::{beyond, maps, options, tracepoint};

mod turns {
    crate::histograms! {
        "sched";
        tables "all CPUs", "each bucket", 450 451 453, Shape::Single;
        1 "oncpu" "turns of tasks on a CPU" "from one switch to the next" "";
        with VOLUNTARY: u64 = 0 "switches.voluntary.count" COUNTER COUNT "switches from tasks that went to sleep";
        with INVOLUNTARY: u64 = 1 "switches.involuntary.count" COUNTER COUNT "switches from tasks that could have run on";
        with MIGRATIONS: u64 = 2 "migrations.count" COUNTER COUNT "moves of tasks to another CPU";
    }
    use super::*;

    const ROW: SeriesRows<onc_row> = SeriesRows::of_one(ROWS);

    pub static SERIES_OF_ONE: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[ROW.part(onc_row::turns)],
        counters: &[
            (VOLUNTARY, ROW.part(onc_row::voluntary)),
            (INVOLUNTARY, ROW.part(onc_row::involuntary)),
            (MIGRATIONS, ROW.part(onc_row::migrations)),
        ],
        ..SeriesDef::NEW
    };
}

mod cgroups {
    use super::*;

    crate::metrics! {
        TIME: u64 = 0 "cgroup.oncpu.time" COUNTER NSEC "time that tasks of the cgroup were on a CPU";
        VOLUNTARY: u64 = 1 "cgroup.switches.voluntary.count" COUNTER COUNT "switches from tasks of the cgroup that went to sleep";
        INVOLUNTARY: u64 = 2 "cgroup.switches.involuntary.count" COUNTER COUNT "switches from tasks of the cgroup that could have run on";
        MIGRATIONS: u64 = 3 "cgroup.migrations.count" COUNTER COUNT "moves of tasks of the cgroup to another CPU";
        BY_OWN: u64 = 4 "cgroup.preempted.self.count" COUNTER COUNT "involuntary switches to a task of the same cgroup";
        BY_OTHER: u64 = 5 "cgroup.preempted.other.count" COUNTER COUNT "involuntary switches to a task of another cgroup";
        NAME: str = 6 "cgroup.oncpu.name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
    }

    pub static BY_CGROUP: ByPlace<onc_group> = ByPlace {
        owners: OWNERS,
        rows: GROUPS,
        marks: MARKS,
        histograms: &[],
        counters: &[
            (TIME, onc_group::ns),
            (VOLUNTARY, onc_group::voluntary),
            (INVOLUNTARY, onc_group::involuntary),
            (MIGRATIONS, onc_group::migrations),
            (BY_OWN, onc_group::preempted_by_own),
            (BY_OTHER, onc_group::preempted_by_other),
        ],
        name: NAME,
        beyond: beyond!("table-full: switches of cgroups", counted, [onc_group::voluntary, onc_group::involuntary]),
    };

    pub static TABLE: TableSpec = TableSpec {
        summary: "each cgroup",
        cluster: 452,
        shape: BY_PATH,
        metrics: METRICS,
        options: &["by_cgroup"],
        ..TableSpec::NEW
    };
}

maps! {
    rows ROWS: onc_row = "onc_rows";
    rows OWNERS: place_owner = "onc_owners", taken id;
    rows GROUPS: onc_group = "onc_groups", taken used, marked in "onc_marks";
    rows MARKS: mark = "onc_marks";
}

options! {
    process;
    /// Count by cgroup of v2, too.
    by_cgroup: bool = false;
    /// Cgroups with counters of their own; the number is rounded up to a power of two. Other cgroups are the series `other`.
    max_cgroups: CgroupCount = CgroupCount(1024);
    histograms;
}

static MIGRATE: Hook = tracepoint!("sched_migrate_task");

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "oncpu",
    summary: "turns of tasks on a CPU: times, voluntary and involuntary switches, migrations",
    overhead: Overhead::medium("40 ns per context switch, less beside runqlat"),
    tables: &[&turns::TABLE, &turns::BY_BUCKET, &cgroups::TABLE, &turns::IN_SECONDS],
    options: OPTIONS,
    hooks: &[&SWITCH, &MIGRATE],
    maps: &joined::<{ MAPS.len() + RUNQ_MAPS.len() }>(&[MAPS, RUNQ_MAPS]),
    make: |setup| Ok(Box::new(Oncpu::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Oncpu {
    options: Options,
    turns: NamedHistograms,
    cgroups: Option<PlacedHistograms<onc_group>>,
}

impl Oncpu {
    fn new(options: Options) -> Oncpu {
        let turns = NamedHistograms::of_one(&turns::SERIES_OF_ONE, options.window.window(), options.buckets);
        let cgroups = options.by_cgroup.then(|| counters_by_cgroup(&cgroups::BY_CGROUP));
        Oncpu { options, turns, cgroups }
    }
}

impl Module for Oncpu {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        if let Some(cgroups) = &self.cgroups {
            let Some(size) = cgroups.plan(self.options.max_cgroups.places(), host, plan) else { return };
            constants.onc_by_cgroup = true;
            constants.onc_mask = size.mask;
            constants.onc_cpu_shift = size.shift;
            constants.onc_shared = size.shift > 0;
            tell(size.shift, "a cgroup", "10 ns more per context switch");
        }
        constants.onc_filter = plan.only(&self.options.process);
        plan_switches(host, plan);
        plan.attach(&MIGRATE);
        plan.entries(ROWS.def.name, host.cpus);
        plan.leave_to(&["runqlat", "cgroup_runq", "offcpu"]);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let (prometheus, by_cgroup) = (self.options.prometheus, self.cgroups.is_some());
        NamedHistograms::add_tables(Running::of(*self), &[&turns::SERIES_OF_ONE], prometheus, |module| {
            Some(&mut module.turns)
        })
        .when(by_cgroup, |running| {
            PlacedHistograms::add_table(running, &cgroups::TABLE, |module| module.cgroups.as_mut())
        })
        .losses(|_, kernel, each| {
            each("untimed: turns whose beginning was not seen", kernel.rows(ROWS).sum(onc_row::unmeasured));
        })
        .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    #[test]
    fn turns_and_switches_are_summed_over_cpus() {
        let fake = Fake::new().with(ROWS, 2);
        for cpu in 0..2 {
            let row = fake.row(ROWS, cpu);
            row.part(onc_row::turns).set(fine_hist::buckets.nth(Fine::bucket(3000)), 5);
            row.set(onc_row::voluntary, 3);
            row.set(onc_row::involuntary, 4);
            row.set(onc_row::migrations, 1);
            row.set(onc_row::unmeasured, 2);
        }
        let running = Box::new(Oncpu::new(Options::default())).start(&fake);
        let table = fake.filled(&turns::TABLE, &running);
        let value = |name: &str| table.number(0, turns::TABLE.column(name));
        let names = ["oncpu.count", "switches.voluntary.count", "switches.involuntary.count", "migrations.count"];
        assert_eq!(names.map(|name| value(&format!("sched.{name}")).unwrap()), [10, 6, 8, 2]);
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [4]);
    }

    #[test]
    fn counts_by_cgroup_are_in_their_columns() {
        let fake = Fake::new().with(ROWS, 1).with(OWNERS, 4).with(GROUPS, 5).with(MARKS, 5);
        let fields = [
            onc_group::ns,
            onc_group::voluntary,
            onc_group::involuntary,
            onc_group::migrations,
            onc_group::preempted_by_own,
            onc_group::preempted_by_other,
        ];
        fields.into_iter().zip(1..).for_each(|(field, value)| fake.set(GROUPS, 0, field, value));
        let running = Box::new(Oncpu::new(Options { by_cgroup: true, ..Options::default() })).start(&fake);
        let table = fake.filled(&cgroups::TABLE, &running);
        assert_eq!(table.names(), ["other"]);
        let cells: Vec<_> = (0..6).map(|column| table.number(0, column)).collect();
        assert_eq!(cells, [1, 2, 3, 4, 5, 6].map(Some));
    }
}
