//! Pauses that tasks take to make room in memory. Kernel side: bpf/stalls.bpf.c.

use super::shared::cgroups::{counters_by_cgroup, BY_PATH};
use super::shared::places::{ByPlace, PlacedHistograms};
use crate::bpf::types::{self, mark, place_owner, set_numbers, stall_group, stall_row};
use crate::kit::*;
use crate::{beyond, maps, options, tracepoint};
use nix::time::{clock_getres, ClockId};

mod pauses {
    const RECLAIM: &str = "Of any task, kernel threads included.";
    const DIRTY: &str = "The pause is the one that the kernel asks for, in ticks; a signal may end it sooner.";
    crate::histograms! {
        "mem.stall";
        tables "all tasks", "each bucket", 454 455 457, Shape::Single;
        1 "direct" "pauses of tasks to free memory of the machine" "from beginning to end of direct reclaim" RECLAIM;
        2 "memcg" "pauses of tasks to free memory of their cgroup" "from beginning to end of reclaim" RECLAIM;
        3 "compact" "pauses of tasks to make pages adjoin" "from beginning to end of compaction" "Without kernel threads, such as kcompactd.";
        4 "dirty" "pauses of tasks that write more than disks take" "as asked for by the kernel" DIRTY;
    }
    use super::*;

    const ROW: SeriesRows<stall_row> = SeriesRows::of_one(ROWS);

    pub static SERIES_OF_ONE: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[
            ROW.part(stall_row::times.nth(0)),
            ROW.part(stall_row::times.nth(1)),
            ROW.part(stall_row::times.nth(2)),
            ROW.part(stall_row::times.nth(3)),
        ],
        ..SeriesDef::NEW
    };
}

mod cgroups {
    use super::*;

    crate::metrics! {
        DIRECT: u64 = 0 "cgroup.stall.direct.count" COUNTER COUNT "pauses of tasks of the cgroup to free memory of the machine";
        DIRECT_TIME: u64 = 1 "cgroup.stall.direct.time" COUNTER NSEC "time that tasks of the cgroup paused to free memory of the machine";
        MEMCG: u64 = 2 "cgroup.stall.memcg.count" COUNTER COUNT "pauses of tasks of the cgroup to free memory of a cgroup";
        MEMCG_TIME: u64 = 3 "cgroup.stall.memcg.time" COUNTER NSEC "time that tasks of the cgroup paused to free memory of a cgroup";
        COMPACT: u64 = 4 "cgroup.stall.compact.count" COUNTER COUNT "pauses of tasks of the cgroup to make pages adjoin";
        COMPACT_TIME: u64 = 5 "cgroup.stall.compact.time" COUNTER NSEC "time that tasks of the cgroup paused to make pages adjoin";
        DIRTY: u64 = 6 "cgroup.stall.dirty.count" COUNTER COUNT "pauses of tasks of the cgroup that write more than disks take";
        DIRTY_TIME: u64 = 7 "cgroup.stall.dirty.time" COUNTER NSEC "time that tasks of the cgroup paused because they write more than disks take";
        NAME: str = 8 "cgroup.stall.name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
    }

    pub static BY_CGROUP: ByPlace<stall_group> = ByPlace {
        owners: OWNERS,
        rows: GROUPS,
        marks: MARKS,
        histograms: &[],
        counters: &[
            (DIRECT, stall_group::counts.nth(0)),
            (DIRECT_TIME, stall_group::ns.nth(0)),
            (MEMCG, stall_group::counts.nth(1)),
            (MEMCG_TIME, stall_group::ns.nth(1)),
            (COMPACT, stall_group::counts.nth(2)),
            (COMPACT_TIME, stall_group::ns.nth(2)),
            (DIRTY, stall_group::counts.nth(3)),
            (DIRTY_TIME, stall_group::ns.nth(3)),
        ],
        name: NAME,
        beyond: beyond!(
            "table-full: pauses of cgroups",
            counted,
            [
                stall_group::counts.nth(0),
                stall_group::counts.nth(1),
                stall_group::counts.nth(2),
                stall_group::counts.nth(3)
            ]
        ),
    };

    pub static TABLE: TableSpec = TableSpec {
        summary: "each cgroup",
        cluster: 456,
        shape: BY_PATH,
        metrics: METRICS,
        options: &["by_cgroup"],
        ..TableSpec::NEW
    };
}

maps! {
    rows ROWS: stall_row = "stall_rows";
    private STARTS: set_numbers = "stall_starts";
    rows OWNERS: place_owner = "stall_owners", taken id;
    rows GROUPS: stall_group = "stall_groups", taken used, marked in "stall_marks";
    rows MARKS: mark = "stall_marks";
}

options! {
    /// Count by cgroup of v2, too.
    by_cgroup: bool = false;
    /// Cgroups with counters of their own; the number is rounded up to a power of two. Other cgroups are the series `other`.
    max_cgroups: CgroupCount = CgroupCount(1024);
    histograms;
}

const NEEDS_COMPACTION: &str = "a kernel with BTF and CONFIG_COMPACTION";
const NEEDS_MEMCG: &str = "a kernel with BTF and CONFIG_MEMCG";

static DIRECT_BEGIN: Hook = tracepoint!("mm_vmscan_direct_reclaim_begin");
static DIRECT_END: Hook = tracepoint!("mm_vmscan_direct_reclaim_end");
static MEMCG_BEGIN: Hook = tracepoint!("mm_vmscan_memcg_reclaim_begin", NEEDS_MEMCG);
static MEMCG_END: Hook = tracepoint!("mm_vmscan_memcg_reclaim_end", NEEDS_MEMCG);
static COMPACTION_BEGIN: Hook = tracepoint!("mm_compaction_begin", NEEDS_COMPACTION);
static COMPACTION_END: Hook = tracepoint!("mm_compaction_end", NEEDS_COMPACTION);

/// The hook for pauses of writers. Its arguments were more before 6.18: a kernel refuses the program that reads more than it has.
static DIRTY: Hook = Hook {
    name: "balance_dirty_pages",
    tiers: &[
        Tier { kind: "tp_btf", programs: &["tp__balance_dirty_pages___limits"] },
        Tier { kind: "tp_btf", programs: &["tp__balance_dirty_pages"] },
        Tier { kind: "raw_tp", programs: &["raw__balance_dirty_pages___limits"] },
        Tier { kind: "raw_tp", programs: &["raw__balance_dirty_pages"] },
    ],
    needs: NEEDS_BTF,
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "stalls",
    summary: "pauses of tasks for want of memory: reclaim, compaction, dirty pages",
    overhead: Overhead::low("0.3 us per pause"),
    tables: &[&pauses::TABLE, &pauses::BY_BUCKET, &cgroups::TABLE, &pauses::IN_SECONDS],
    options: OPTIONS,
    hooks: &[&DIRECT_BEGIN, &DIRECT_END, &MEMCG_BEGIN, &MEMCG_END, &COMPACTION_BEGIN, &COMPACTION_END, &DIRTY],
    maps: MAPS,
    make: |setup| Ok(Box::new(Stalls::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Stalls {
    options: Options,
    pauses: NamedHistograms,
    cgroups: Option<PlacedHistograms<stall_group>>,
}

impl Stalls {
    fn new(options: Options) -> Stalls {
        let pauses = NamedHistograms::of_one(&pauses::SERIES_OF_ONE, options.window.window(), options.buckets);
        let cgroups = options.by_cgroup.then(|| counters_by_cgroup(&cgroups::BY_CGROUP));
        Stalls { options, pauses, cgroups }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let rows = kernel.rows(ROWS);
        let (unseen, displaced) = (rows.sum(stall_row::unseen), rows.sum(stall_row::displaced));
        each("start-unseen: pauses whose beginning was not seen", unseen.saturating_sub(displaced));
        each("untimed: pauses whose time is not known because too many threads were in one", displaced);
    }
}

/// Returns the length of a jiffy in nanoseconds, which is the resolution of the coarse clocks.
fn tick() -> u32 {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).ok();
    tick.and_then(|tick| tick.tv_nsec().try_into().ok()).unwrap_or(4_000_000)
}

impl Module for Stalls {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        if let Some(cgroups) = &self.cgroups {
            // Pauses are rare enough for all CPUs to share the rows.
            let one = Host { cpus: 1, ..*host };
            let Some(size) = cgroups.plan(self.options.max_cgroups.places(), &one, plan) else { return };
            constants.stall_by_cgroup = true;
            constants.stall_mask = size.mask;
        }
        constants.stall_tick = tick();
        constants.stall_starts_mask = plan_set_table(plan, STARTS.name, by_thread(host));
        plan.entries(ROWS.def.name, host.cpus);
        SPEC.hooks.iter().for_each(|hook| plan.attach(hook));
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let (prometheus, by_cgroup) = (self.options.prometheus, self.cgroups.is_some());
        NamedHistograms::add_tables(Running::of(*self), &[&pauses::SERIES_OF_ONE], prometheus, |module| {
            Some(&mut module.pauses)
        })
        .when(by_cgroup, |running| {
            PlacedHistograms::add_table(running, &cgroups::TABLE, |module| module.cgroups.as_mut())
        })
        .losses(Self::losses)
        .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    #[test]
    fn pauses_are_summed_over_cpus_by_cause() {
        let fake = Fake::new().with(ROWS, 2);
        for cpu in 0..2 {
            for cause in 0..4 {
                let times = fake.row(ROWS, cpu).part(stall_row::times.nth(cause));
                times.set(fine_hist::buckets.nth(Fine::bucket(3000)), cause as u64 + 1);
                times.set(fine_hist::sum, 3000 * (cause as u64 + 1));
            }
            fake.set(ROWS, cpu, stall_row::unseen, 3);
            fake.set(ROWS, cpu, stall_row::displaced, 1);
        }
        let running = Box::new(Stalls::new(Options::default())).start(&fake);
        let table = fake.filled(&pauses::TABLE, &running);
        let value = |name: &str| table.number(0, pauses::TABLE.column(name));
        let counts = ["direct", "memcg", "compact", "dirty"].map(|cause| value(&format!("mem.stall.{cause}.count")));
        assert_eq!(counts, [2, 4, 6, 8].map(Some));
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [4, 2]);
    }

    #[test]
    fn pauses_of_a_cgroup_are_in_their_columns() {
        let fake = Fake::new().with(ROWS, 1).with(OWNERS, 4).with(GROUPS, 5).with(MARKS, 5);
        for cause in 0..4 {
            fake.set(GROUPS, 0, stall_group::counts.nth(cause), 2 * cause as u64);
            fake.set(GROUPS, 0, stall_group::ns.nth(cause), 2 * cause as u64 + 1);
        }
        let running = Box::new(Stalls::new(Options { by_cgroup: true, ..Options::default() })).start(&fake);
        let table = fake.filled(&cgroups::TABLE, &running);
        assert_eq!(table.names(), ["other"]);
        assert_eq!(
            (0..8).map(|column| table.number(0, column).unwrap()).collect::<Vec<_>>(),
            (0..8).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_tick_is_a_thousandth_to_a_hundredth_of_a_second() {
        assert!((1_000_000..=10_000_000).contains(&tick()), "{}", tick());
    }
}
