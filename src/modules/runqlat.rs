//! Run queue latency: the time for which a task that could run waited for a CPU. Kernel side: bpf/runqlat.bpf.c.

use crate::bpf::features::NO_SCHED_INFO;
use crate::bpf::types::{self, runq_row, runq_task};
use crate::kit::*;
use crate::{maps, metrics, options, tracepoint};

metrics! {
    LATENCY: u64 = 0 "runq.latency" COUNTER USEC "tasks by the time they waited to run";
}

maps! {
    rows ROWS: runq_row = "runq_rows";
    private TASKS: runq_task = "runq_tasks";
}

/// Maps that the times need.
pub const RUNQ_MAPS: &[MapDef] = MAPS;

options! {
    process;
    histograms;
    /// Fill bcc.runq.cpu, too: an instance for each CPU. It costs the programs nothing.
    per_cpu: bool = false;
}

mod all {
    crate::histograms! {
        "runq";
        tables "all CPUs", "each bucket", 331 340 434, Shape::Single;
        1 "all" "waits of runnable tasks for a CPU" "from becoming runnable to running" "";
    }
    use super::*;
}

mod cpu {
    const OPTION: &str = "By the CPU on which the task came to run; with the option \"per_cpu\" only.";
    crate::histograms! {
        "runq";
        tables "each CPU", "each bucket of each CPU", 332 341 435, Shape::Numbered, if "per_cpu";
        1 "cpu" "arrivals of tasks on the CPU" "from becoming runnable to running" OPTION;
    }
    use super::*;
}

static ALL: SeriesDef =
    SeriesDef { tables: all::TABLES, histograms: &[SeriesRows::of_one(ROWS).part(runq_row::waits)], ..SeriesDef::NEW };
static EACH_CPU: SeriesDef = SeriesDef {
    tables: cpu::TABLES,
    histograms: &[SeriesRows::by_number(ROWS).part(runq_row::waits)],
    ..SeriesDef::NEW
};

/// The hook for switches between tasks.
pub static SWITCH: Hook = tracepoint!("sched_switch");
/// The hook for wake-ups, for kernels that do not record since when a task waits.
pub static WAKEUP: Hook = tracepoint!("sched_wakeup");
/// The hook for the first wake-up of new tasks.
pub static WAKEUP_NEW: Hook = tracepoint!("sched_wakeup_new");

static TABLE: TableSpec =
    TableSpec { cluster: 4, shape: Shape::Log2(Log2::MICROSECONDS), metrics: METRICS, ..TableSpec::NEW };

static WAITS: FineHistogram<runq_row> =
    FineHistogram { metric: LATENCY, rows: ROWS, histogram: runq_row::waits, from_start: true };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "runqlat",
    summary: "run queue latency",
    overhead: Overhead::medium("32 ns per context switch"),
    tables: &[&TABLE, &all::TABLE, &all::BY_BUCKET, &all::IN_SECONDS, &cpu::TABLE, &cpu::BY_BUCKET, &cpu::IN_SECONDS],
    options: OPTIONS,
    hooks: &[&SWITCH, &WAKEUP, &WAKEUP_NEW],
    maps: MAPS,
    counts: &[ROWS.def],
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Runqlat::new(options, kernel_keeps_times())))
    },
    ..Spec::NEW
};

/// True if this kernel records since when a task waits.
pub fn kernel_keeps_times() -> bool {
    keeps_times(std::fs::read_to_string("/proc/self/schedstat").ok().as_deref())
}

/// True if the kernel records since when a task waits, according to the `schedstat` file (proc(5)) of a task that has run: all
/// numbers are zero if it does not, as before 5.14 with delay accounting off and without CONFIG_SCHEDSTATS. Without CONFIG_SCHED_INFO
/// there is no such file, and the feature `no_sched_info` is present.
fn keeps_times(schedstat: Option<&str>) -> bool {
    schedstat.map(str::trim) != Some("0 0 0")
}

struct Runqlat {
    process: ProcessFilter,
    /// True if the kernel records since when a task waits; else the programs do at wake-ups, at eight times the cost.
    keeps_times: bool,
    prometheus: bool,
    all: NamedHistograms,
    cpus: Option<NamedHistograms>,
}

impl Runqlat {
    fn new(options: Options, keeps_times: bool) -> Runqlat {
        let Options { process, window, buckets, prometheus, per_cpu } = options;
        let all = NamedHistograms::of_one(&ALL, window.window(), buckets);
        let cpus = per_cpu.then(|| NamedHistograms::new(&[&EACH_CPU], window.window(), buckets, cpu_name));
        Runqlat { process, keeps_times, prometheus, all, cpus }
    }
}

/// Plans the hooks and maps for the times. `keeps_times` is true if the kernel records since when a task waits.
pub fn plan_times(keeps_times: bool, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
    let tasks = table_size(host.threads * 4, 4096, 1 << 16);
    constants.runq_task_mask = tasks as u32 - 1;
    constants.runq_by_wakeup = !keeps_times;
    plan_switches(host, plan);
    for hook in [&WAKEUP, &WAKEUP_NEW] {
        if keeps_times {
            plan.attach_if(hook, NO_SCHED_INFO);
        } else {
            plan.attach(hook);
        }
    }
    plan.entries(TASKS.name, tasks);
}

/// Plans the hook and the map for the times of switches alone.
pub fn plan_switches(host: &Host, plan: &mut Plan) {
    plan.attach(&SWITCH);
    plan.entries(ROWS.def.name, host.cpus);
}

impl Module for Runqlat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.runq_filter = plan.only(&self.process);
        plan_times(self.keeps_times, host, plan, constants);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let (per_cpu, prometheus) = (self.cpus.is_some(), self.prometheus);
        let running = Running::of(*self).at_once(&TABLE, |kernel, table| WAITS.read(kernel, table));
        NamedHistograms::add_tables(running, &[&ALL], prometheus, |module| Some(&mut module.all))
            .when(per_cpu, |running| {
                NamedHistograms::add_tables(running, &[&EACH_CPU], prometheus, |module| module.cpus.as_mut())
            })
            .losses(Self::losses)
            .started()
    }
}

impl Runqlat {
    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each(
            "untimed: wake-ups that were not seen, so the wait is unknown",
            kernel.rows(ROWS).sum(runq_row::unmeasured),
        );
    }
}

/// Returns the name and labels of the CPU with the row of this number, from 1 on.
fn cpu_name(number: u64) -> Option<NamedSeries> {
    let cpu = number - 1;
    Some((format!("cpu{cpu}").into_bytes(), vec![("cpu", SeriesLabel::Number(cpu as i64))]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;
    use crate::pcp::Atom;

    fn module(schedstat: &str) -> Runqlat {
        Runqlat::new(Options::default(), keeps_times(Some(schedstat)))
    }

    fn start(module: Runqlat) -> Running {
        Box::new(module).start(&Fake::new())
    }

    #[test]
    fn the_wake_ups_are_watched_where_the_kernel_keeps_no_times() {
        assert!(keeps_times(None), "the feature tells");
        for (schedstat, by_wakeup) in [("902064 7645842 28\n", false), ("0 0 0\n", true)] {
            let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
            module(schedstat).plan(&Host::SMALL, &mut plan, &mut constants);
            assert_eq!(constants.runq_by_wakeup, by_wakeup);
            let wake_ups: Vec<When> = plan.hooks[1..].iter().map(|(_, when)| *when).collect();
            assert_eq!(wake_ups, [if by_wakeup { When::Needed } else { When::If(NO_SCHED_INFO) }; 2]);
        }
    }

    /// Counts arrivals on a CPU after a wait in microseconds.
    fn arrive(fake: &Fake, cpu: usize, us: u64, arrivals: u64) {
        let waits = fake.row(ROWS, cpu).part(runq_row::waits);
        let bucket = fine_hist::buckets.nth(Fine::bucket(us * 1000));
        waits.set(bucket, waits.get(bucket) + arrivals);
        waits.set(fine_hist::sum, waits.get(fine_hist::sum) + arrivals * us * 1000);
    }

    #[test]
    fn cpus_are_added_up_bucket_by_bucket() {
        let fake = Fake::new().with(ROWS, 2);
        arrive(&fake, 0, 0, 2);
        arrive(&fake, 0, 8, 5);
        arrive(&fake, 1, 15, 1);
        fake.set(ROWS, 1, runq_row::unmeasured, 7);
        let module = start(module("1 2 3"));
        let table = fake.filled(&TABLE, &module);
        assert_eq!(table.len(), 4);
        assert_eq!(table.value(0, 0), Some(Atom::U64(2)));
        assert_eq!(table.value(3, 0), Some(Atom::U64(6)));
        let mut lost = 0;
        module.losses(&fake, &mut |_, count| lost += count);
        assert_eq!(lost, 7);
    }

    /// Returns the number in the column whose name ends with this component.
    fn cell(table: &Table, row: usize, last: &str) -> Option<u64> {
        table.number(row, SERIES_METRICS.iter().position(|metric| *metric == last).unwrap())
    }

    #[test]
    fn all_cpus_have_counts_and_quantiles_and_two_modes() {
        let fake = Fake::new().with(ROWS, 2);
        let module = start(module("1 2 3"));
        arrive(&fake, 0, 20, 60);
        arrive(&fake, 1, 20, 30);
        arrive(&fake, 1, 4000, 10);
        let table = fake.filled(&all::TABLE, &module);
        assert_eq!((cell(&table, 0, "count"), cell(&table, 0, "p50")), (Some(100), None), "no second has passed");
        module.tick(&fake);
        let table = fake.filled(&all::TABLE, &module);
        assert_eq!((table.len(), cell(&table, 0, "sum")), (1, Some(90 * 20_000 + 10 * 4_000_000)));
        let near = |last: &str, exact: f64| {
            let found = cell(&table, 0, last).unwrap() as f64;
            assert!((found - exact).abs() <= exact * Fine::ERROR + 0.5, "{last}: {found}, not {exact}");
        };
        near("p50", 20.0);
        near("p90", 20.0);
        near("p99", 4000.0);
        near("max", 4000.0);
        let table = fake.filled(&all::BY_BUCKET, &module);
        assert_eq!((table.len(), table.name(4)), (26, "16-31".into()));
        let counted: Vec<_> = (0..26).filter_map(|row| table.number(row, 0).filter(|&n| n > 0)).collect();
        assert_eq!(counted, [90, 10]);
    }

    #[test]
    fn each_cpu_has_a_series_where_it_is_asked_for() {
        let fake = Fake::new().with(ROWS, 2);
        arrive(&fake, 0, 20, 3);
        arrive(&fake, 1, 4000, 1);
        let without = start(module("1 2 3"));
        assert!(![&cpu::TABLE, &cpu::BY_BUCKET, &cpu::IN_SECONDS].iter().any(|table| without.yields(table)));
        let options = Options { per_cpu: true, buckets: Buckets::Fine, ..Options::default() };
        let module = start(Runqlat::new(options, true));
        module.tick(&fake);
        let table = fake.filled(&cpu::TABLE, &module);
        assert_eq!(table.names(), ["cpu0", "cpu1"]);
        assert_eq!([0, 1].map(|cpu| cell(&table, cpu, "count")), [Some(3), Some(1)]);
        assert!(cell(&table, 0, "max") < Some(30) && cell(&table, 1, "p50") > Some(3000), "each its own");
        assert_eq!(table.labels(1), Some(&vec![("cpu", SeriesLabel::Number(1))]));
        let table = fake.filled(&cpu::BY_BUCKET, &module);
        assert_eq!((table.len(), table.name(0)), (2 * 417, "0-0::cpu0".into()));
        assert_eq!((0..table.len()).filter_map(|row| table.number(row, 0)).sum::<u64>(), 4);
    }
}
