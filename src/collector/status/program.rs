//! What each BPF program costs.

use super::{set_opt, AgentStatus, LoadedModules, NAMES};
use crate::bpf::OBJECT;
use crate::kit::{Shape, Table, TableSpec};
use crate::loader;
use crate::metrics;

metrics! {
    HOOK: str = 0 "agent.program.hook" DISCRETE NONE "where a BPF program is attached";
    KIND: str = 1 "agent.program.kind" DISCRETE NONE "kind of a BPF program: tp_btf, raw_tp, fentry, kprobe, ...";
    MODULES: str = 2 "agent.program.modules" DISCRETE NONE "the modules that a BPF program serves";
    ATTACHED: u32 = 3 "agent.program.attached" INSTANT NONE "1 if a BPF program is attached, else 0";
    RUNS: u64 = 4 "agent.program.runs" COUNTER COUNT "runs of a BPF program";
    TIME: u64 = 5 "agent.program.time" COUNTER NSEC "time that the runs of a BPF program took";
    MISSES: u64 = 6 "agent.program.misses" COUNTER COUNT "runs of a BPF program that the kernel skipped";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each BPF program",
    cluster: 302,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(modules: &LoadedModules, status: &AgentStatus, table: &mut Table) {
    let counting = status.runs.is_some() || loader::counts_runs();
    for program in modules.kernel.programs() {
        let users = OBJECT.users(&program.name).unwrap_or_default();
        let row = table
            .named(program.name.as_bytes())
            .text(KIND, program.kind.as_bytes())
            .text(MODULES, modules.users(|spec| users.contains(&spec.name)).as_bytes())
            .set(ATTACHED, u32::from(program.attached));
        let row = match &program.hook {
            Some(hook) => row.text(HOOK, hook.as_bytes()),
            None => row,
        };
        // A zero would look like a program that never ran.
        let counted = counting || program.runs > 0;
        let row = set_opt(row, RUNS, counted.then_some(program.runs));
        let row = set_opt(row, TIME, counted.then_some(program.time));
        set_opt(row, MISSES, program.misses);
    }
}
