//! New tasks. Kernel side: bpf/sysfork.bpf.c.

use crate::bpf::types::fork_row;
use crate::kit::*;
use crate::{maps, metrics, tracepoint};

metrics! {
    FORKS: u64 = 0 "proc.sysfork" COUNTER COUNT "tasks created: processes, threads and kernel threads";
}

maps! {
    rows ROWS: fork_row = "fork_rows";
}

static NEWTASK: Hook = tracepoint!("task_newtask");

static TABLE: TableSpec = TableSpec { cluster: 2, metrics: METRICS, ..TableSpec::NEW };

static TASKS: Sums<fork_row> =
    Sums { rows: ROWS, cells: &[(FORKS, &[fork_row::processes, fork_row::vforks, fork_row::threads])] };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "sysfork",
    summary: "process and thread creation",
    overhead: Overhead::low("46 ns per new task"),
    tables: &[&TABLE],
    hooks: &[&NEWTASK],
    maps: MAPS,
    counts: &[ROWS.def],
    make: |_| Ok(module()),
    ..Spec::NEW
};

fn module() -> Box<Declared> {
    Declared::new(&SPEC, |running| running.at_once(&TABLE, |kernel, table| TASKS.read(kernel, table)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    #[test]
    fn every_kind_of_task_counts_on_every_cpu() {
        let fake = Fake::new().with(ROWS, 2);
        fake.set(ROWS, 0, fork_row::processes, 1);
        fake.set(ROWS, 1, fork_row::vforks, 10);
        fake.set(ROWS, 1, fork_row::threads, 100);
        let table = fake.filled(&TABLE, &module().start(&fake));
        assert_eq!(table.value(0, 0), Some(Atom::U64(111)));
    }
}
