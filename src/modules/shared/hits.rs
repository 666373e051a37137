//! Counting how often the targets of a template are hit: what the modules that count hits have in common. Kernel side:
//! bpf/shared/hits.bpf.h.

use crate::bpf::types::hit;
use crate::kit::{Hook, Host, Kernel, Metric, Plan, RefreshError, Rows, Table, Target};

/// Counters of one CPU lie in whole cache lines, so that CPUs do not share one.
const LINE: usize = 8;

/// Counters by number, a row per CPU and number.
#[derive(Clone, Copy)]
pub struct Counters {
    rows: Rows<hit>,
    stride: usize,
}

impl Counters {
    /// So many counters.
    pub fn new(rows: Rows<hit>, count: usize) -> Counters {
        Counters { rows, stride: count.next_multiple_of(LINE).max(LINE) }
    }

    /// Sizes the map; yields the number of counters per CPU, which the program has to know.
    pub fn size(self, host: &Host, plan: &mut Plan) -> u32 {
        plan.entries(self.rows.def.name, host.cpus * self.stride);
        self.stride as u32
    }

    /// What was counted under a number, on all CPUs.
    pub fn sum(self, kernel: &dyn Kernel, number: usize) -> u64 {
        let per_cpu = kernel.rows(self.rows).iter().skip(number).step_by(self.stride);
        per_cpu.map(|row| row.get(hit::count)).sum()
    }
}

/// Targets and their counters.
pub struct Hits {
    /// The names of the targets' instances; the place is the target's number.
    names: Vec<String>,
    template: &'static Hook,
    rows: Rows<hit>,
}

impl Hits {
    /// Nothing to count yet.
    pub fn new(template: &'static Hook, rows: Rows<hit>) -> Hits {
        Hits { names: Vec::new(), template, rows }
    }

    /// One more target, whose instance has this name; one that is there already is passed over.
    pub fn add(&mut self, plan: &mut Plan, target: Target, name: String) {
        if !self.names.contains(&name) {
            plan.attach_template(self.template, target, self.names.len() as u32);
            self.names.push(name);
        }
    }

    /// Sizes the maps once all targets are added; yields the number of counters per CPU, which the program has to know.
    pub fn size(&self, host: &Host, plan: &mut Plan) -> u32 {
        self.counters().size(host, plan)
    }

    fn counters(&self) -> Counters {
        Counters::new(self.rows, self.names.len())
    }

    /// A row for each target that is attached, never hit or not.
    pub fn refresh(&self, kernel: &dyn Kernel, table: &mut Table, count: Metric<u64>) -> Result<(), RefreshError> {
        let counters = self.counters();
        for (number, name) in self.names.iter().enumerate() {
            if kernel.reaches(self.template, number as u32) {
                table.named(name.as_bytes()).set(count, counters.sum(kernel, number));
            }
        }
        Ok(())
    }
}
