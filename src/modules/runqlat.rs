//! Run queue latency: how long a task that could run waited for a CPU. Kernel side: bpf/runqlat.bpf.c.

use crate::bpf::features::NO_SCHED_INFO;
use crate::bpf::types::{self, runq_delay, runq_row, runq_wait};
use crate::kit::*;
use crate::{maps, metrics, module_log, options, tracepoint};

metrics! {
    LATENCY: u64 = 0 "runq.latency" COUNTER USEC "tasks by the time they waited to run";
}

maps! {
    rows ROWS: runq_row = "runq_rows";
    private DELAYS: runq_delay = "runq_delays";
    private WAITS: runq_wait = "runq_waits";
}

options! {
    process: "Only threads of these";
}

static SWITCH: Hook = tracepoint!("sched_switch", "a kernel with BTF");
static WAKEUP: Hook = tracepoint!("sched_wakeup", "a kernel with BTF");
static WAKEUP_NEW: Hook = tracepoint!("sched_wakeup_new", "a kernel with BTF");

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
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&SWITCH, &WAKEUP, &WAKEUP_NEW],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Runqlat { process: options.process, by_wakeup: false }))
    },
    ..Spec::NEW
};

/// Arrivals in a second from which on a kernel that knows the time of none is not merely idle.
const ENOUGH: u64 = 100;

struct Runqlat {
    process: ProcessFilter,
    /// The wake-up programs run.
    by_wakeup: bool,
}

impl Runqlat {
    /// A kernel without CONFIG_SCHED_INFO, or before 5.14 with its accounting off, does not say since when a task waits: then
    /// the programs at the wake-ups do, at eight times the cost.
    fn watch_for_times(&mut self, kernel: &dyn Kernel) {
        let rows = kernel.rows(ROWS);
        let unmeasured = rows.sum(runq_row::unmeasured);
        let counted: u64 = rows.iter().flat_map(|row| row.words(runq_row::buckets)).sum();
        if self.by_wakeup || unmeasured < ENOUGH || counted > unmeasured {
            return;
        }
        match kernel.attach(&WAKEUP).and_then(|()| kernel.attach(&WAKEUP_NEW)) {
            Ok(()) => {
                rows.iter().for_each(|row| row.set(runq_row::by_wakeup, 1));
                module_log!(info, "The kernel does not record queueing times: counting from sched_wakeup from now on.");
            }
            Err(error) => module_log!(error, "the kernel does not record queueing times, and sched_wakeup: {error}"),
        }
        self.by_wakeup = true;
    }
}

impl Module for Runqlat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let delays = table_size(host.threads * 4, 4096, 1 << 16);
        constants.runq_delay_mask = delays as u32 - 1;
        constants.runq_filter = plan.only(&self.process);
        plan.attach(&SWITCH);
        plan.attach_if(&WAKEUP, NO_SCHED_INFO);
        plan.attach_if(&WAKEUP_NEW, NO_SCHED_INFO);
        plan.entries(ROWS.def.name, host.cpus);
        plan.entries(DELAYS.name, delays);
        plan.entries(WAITS.name, delays);
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        self.watch_for_times(kernel);
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

    fn module() -> Runqlat {
        Runqlat { process: ProcessFilter::default(), by_wakeup: false }
    }

    #[test]
    fn the_wake_ups_are_watched_where_the_kernel_keeps_no_times() {
        let fake = Fake::new().with(ROWS, 2);
        let mut module = module();
        fake.set(ROWS, 0, runq_row::buckets.nth(0), 5000);
        fake.set(ROWS, 0, runq_row::unmeasured, 200);
        module.tick(&fake);
        assert!(fake.attached().is_empty());
        fake.set(ROWS, 1, runq_row::unmeasured, 5000);
        module.tick(&fake);
        assert_eq!(fake.attached(), ["sched_wakeup", "sched_wakeup_new"]);
        let kernel: &dyn Kernel = &fake;
        assert!(kernel.rows(ROWS).iter().all(|row| row.get(runq_row::by_wakeup) == 1));
    }

    #[test]
    fn cpus_are_added_up_bucket_by_bucket() {
        let fake = Fake::new().with(ROWS, 2);
        fake.set(ROWS, 0, runq_row::buckets.nth(0), 2);
        fake.set(ROWS, 0, runq_row::buckets.nth(3), 5);
        fake.set(ROWS, 1, runq_row::buckets.nth(3), 1);
        fake.set(ROWS, 1, runq_row::unmeasured, 7);
        let mut module = module();
        let table = fake.filled(&TABLE, &mut module);
        assert_eq!(table.len(), 4);
        assert_eq!(table.value(0, 0), Some(Atom::U64(2)));
        assert_eq!(table.value(3, 0), Some(Atom::U64(6)));
        let mut lost = 0;
        module.losses(&fake, &mut |_, count| lost += count);
        assert_eq!(lost, 7);
    }
}
