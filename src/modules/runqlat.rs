//! Run queue latency: how long a task that could run waited for a CPU. Kernel side: bpf/runqlat.bpf.c.

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

/// The maps that the times are found with.
pub const RUNQ_MAPS: &[MapDef] = MAPS;

options! {
    process;
}

/// Switches of tasks.
pub static SWITCH: Hook = tracepoint!("sched_switch", "a kernel with BTF");
/// Wake-ups, where the kernel does not keep since when a task waits.
pub static WAKEUP: Hook = tracepoint!("sched_wakeup", "a kernel with BTF");
/// The same of new tasks.
pub static WAKEUP_NEW: Hook = tracepoint!("sched_wakeup_new", "a kernel with BTF");

static TABLE: TableSpec = TableSpec {
    cluster: 4,
    shape: Shape::Log2(Log2::MICROSECONDS),
    metrics: METRICS,
    readings: &[&Histogram::new(LATENCY, ROWS, runq_row::buckets)],
    ..TableSpec::NEW
};

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "runqlat",
    summary: "run queue latency",
    overhead: Overhead::medium("32 ns per context switch"),
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&SWITCH, &WAKEUP, &WAKEUP_NEW],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Runqlat { process: options.process, keeps_times: kernel_keeps_times() }))
    },
    ..Spec::NEW
};

/// Whether this kernel records since when a task waits.
pub fn kernel_keeps_times() -> bool {
    keeps_times(std::fs::read_to_string("/proc/self/schedstat").ok().as_deref())
}

/// Whether the kernel records since when a task waits, by the line of a task that has run in its `schedstat` file (proc(5)): it
/// does not where all numbers are zero, as before 5.14 with delay accounting off and without CONFIG_SCHEDSTATS. Without
/// CONFIG_SCHED_INFO there is no such file, and the feature `no_sched_info` says so.
fn keeps_times(schedstat: Option<&str>) -> bool {
    schedstat.map(str::trim) != Some("0 0 0")
}

struct Runqlat {
    process: ProcessFilter,
    /// The kernel records since when a task waits; else the programs at the wake-ups do, at eight times the cost.
    keeps_times: bool,
}

/// Plans what the times are found with; `keeps_times`: the kernel records since when a task waits.
pub fn plan_times(keeps_times: bool, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
    let tasks = table_size(host.threads * 4, 4096, 1 << 16);
    constants.runq_task_mask = tasks as u32 - 1;
    constants.runq_by_wakeup = !keeps_times;
    plan.attach(&SWITCH);
    for hook in [&WAKEUP, &WAKEUP_NEW] {
        if keeps_times {
            plan.attach_if(hook, NO_SCHED_INFO);
        } else {
            plan.attach(hook);
        }
    }
    plan.entries(ROWS.def.name, host.cpus);
    plan.entries(TASKS.name, tasks);
}

impl Module for Runqlat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.runq_filter = plan.only(&self.process);
        plan_times(self.keeps_times, host, plan, constants);
    }

    fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        each(
            "untimed: tasks that came to run after an unknown time in the queue",
            kernel.rows(ROWS).sum(runq_row::unmeasured),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    fn module(schedstat: &str) -> Runqlat {
        Runqlat { process: ProcessFilter::default(), keeps_times: keeps_times(Some(schedstat)) }
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

    #[test]
    fn cpus_are_added_up_bucket_by_bucket() {
        let fake = Fake::new().with(ROWS, 2);
        fake.set(ROWS, 0, runq_row::buckets.nth(0), 2);
        fake.set(ROWS, 0, runq_row::buckets.nth(3), 5);
        fake.set(ROWS, 1, runq_row::buckets.nth(3), 1);
        fake.set(ROWS, 1, runq_row::unmeasured, 7);
        let mut module = module("1 2 3");
        let table = fake.filled(&TABLE, &mut module);
        assert_eq!(table.len(), 4);
        assert_eq!(table.value(0, 0), Some(Atom::U64(2)));
        assert_eq!(table.value(3, 0), Some(Atom::U64(6)));
        let mut lost = 0;
        module.losses(&fake, &mut |_, count| lost += count);
        assert_eq!(lost, 7);
    }
}
