//! Run queue latency: how long a task that could run waited for a CPU. Kernel side: bpf/runqlat.bpf.c.

use crate::bpf::types::{self, runq_delay, runq_row};
use crate::kit::*;
use crate::{maps, metrics, options, tracepoint};
use std::mem::offset_of;

metrics! {
    LATENCY: u64 = 0 "runq.latency" COUNTER USEC "tasks by the time they waited to run";
}

maps! {
    rows ROWS: runq_row = "runq_rows";
    slots DELAYS: runq_delay = "runq_delays";
    set PROCESSES: u32 = "runq_set";
}

options! {
    /// Only threads of these processes (ids, command names, or regular expressions for whole command lines).
    process: ProcessFilter = ProcessFilter::default();
}

const SLOTS: usize = 32;

static SWITCH: Hook =
    tracepoint!("sched_switch", "a kernel with BTF and CONFIG_SCHED_INFO (all distributions have both)");

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "runqlat",
    path: "runqlat",
    summary: "run queue latency",
    cluster: 4,
    shape: Shape::Log2(Log2 { slots: SLOTS as u32 }),
    metrics: METRICS,
    options: OPTIONS,
    hooks: &[&SWITCH],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Runqlat { watch: Watch::new(setup.section.name(), options.process, setup.process_refresh) }))
    },
};

/// Processes that can count at once with a `process` option.
const MOST: usize = 8192;

struct Runqlat {
    watch: Watch,
}

impl Module for Runqlat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let delays = table_size(host.threads * 4, 4096, 1 << 16);
        constants.runq_delay_mask = delays as u32 - 1;
        constants.runq_filtered = self.watch.is_filtering();
        plan.hook(&SWITCH);
        plan.entries(ROWS.def.name, host.cpus);
        plan.entries(DELAYS.name, delays);
        plan.entries(PROCESSES.name, if self.watch.is_filtering() { MOST } else { 1 });
    }

    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        let mut counts = [0u64; SLOTS];
        for row in kernel.rows(ROWS).iter() {
            for (count, word) in counts.iter_mut().zip(row.words(offset_of!(runq_row, slots))) {
                *count += word;
            }
        }
        table.log2(LATENCY, &counts);
        Ok(())
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        self.watch.tick(&mut |pid, member| {
            if let Err(error) = kernel.admit(&PROCESSES, pid, member) {
                log::error!("runqlat: process {pid} is not counted: {error}");
            }
        });
    }

    fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        each("arrivals without a time of queueing", kernel.rows(ROWS).sum(offset_of!(runq_row, unmeasured)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    #[test]
    fn cpus_are_added_up_slot_by_slot() {
        let fake = Fake::new().with(ROWS, 2);
        fake.set(ROWS, 0, offset_of!(runq_row, slots), 2);
        fake.set(ROWS, 0, offset_of!(runq_row, slots) + 8 * 3, 5);
        fake.set(ROWS, 1, offset_of!(runq_row, slots) + 8 * 3, 1);
        fake.set(ROWS, 1, offset_of!(runq_row, unmeasured), 7);
        let mut table = Table::new(1);
        let mut module = Runqlat { watch: Watch::new("runqlat", ProcessFilter::default(), None) };
        module.refresh(&fake, &mut table).expect("nothing can fail");
        assert_eq!(table.len(), 4);
        assert_eq!(table.value(0, 0), Some(Atom::U64(2)));
        assert_eq!(table.value(3, 0), Some(Atom::U64(6)));
        let mut lost = 0;
        module.losses(&fake, &mut |_, count| lost += count);
        assert_eq!(lost, 7);
    }
}
