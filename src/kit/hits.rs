//! Counting how often the targets of a template are hit: what tracepoint_hits and uprobe_hits have in common. Kernel side:
//! bpf/hits.bpf.h.

use super::{Hook, Host, Kernel, Metric, Plan, RefreshError, Rows, Table, Target};
use crate::bpf::types::hit;
use std::mem::offset_of;

/// Counters of one CPU lie in whole cache lines, so that CPUs do not share one.
const LINE: usize = 8;

/// Targets and their counters, a row per CPU and target.
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
            plan.each(self.template, target, self.names.len() as u32);
            self.names.push(name);
        }
    }

    /// Sizes the maps once all targets are added; yields the number of counters per CPU, which the program has to know.
    pub fn size(&self, host: &Host, plan: &mut Plan) -> u32 {
        let stride = self.stride();
        plan.entries(self.rows.def.name, host.cpus * stride);
        stride as u32
    }

    fn stride(&self) -> usize {
        self.names.len().next_multiple_of(LINE).max(LINE)
    }

    /// A row for each target that is attached, never hit or not.
    pub fn refresh(&self, kernel: &dyn Kernel, table: &mut Table, count: Metric<u64>) -> Result<(), RefreshError> {
        let rows = kernel.rows(self.rows);
        for (number, name) in self.names.iter().enumerate() {
            if kernel.reaches(self.template, number as u32) {
                let per_cpu = rows.iter().skip(number).step_by(self.stride());
                table.named(name.as_bytes()).set(count, per_cpu.map(|row| row.word(offset_of!(hit, count))).sum());
            }
        }
        Ok(())
    }
}
