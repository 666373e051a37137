//! Runs and run time of each BPF program.

use super::{set_opt, AgentStatus, Sets, NAMES};
use crate::bpf::OBJECT;
use crate::kit::{Shape, Table, TableSpec};
use crate::loader::LoadedObject;
use crate::metrics;

metrics! {
    HOOK: str = 0 "agent.program.hook" DISCRETE NONE "tracepoint or kernel function that a BPF program is attached to";
    KIND: str = 1 "agent.program.kind" DISCRETE NONE "kind of a BPF program: tp_btf, raw_tp, fentry, kprobe, ...";
    MODULES: str = 2 "agent.program.modules" DISCRETE NONE "modules that a BPF program counts for";
    ATTACHED: u32 = 3 "agent.program.attached" INSTANT NONE "1 if a BPF program is attached, else 0";
    RUNS: u64 = 4 "agent.program.runs" COUNTER COUNT "runs of a BPF program, with program statistics on";
    TIME: u64 = 5 "agent.program.time" COUNTER NSEC "CPU time of a BPF program, with program statistics on";
    MISSES: u64 = 6 "agent.program.misses" COUNTER COUNT "runs of a BPF program that the kernel skipped";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each BPF program",
    cluster: 302,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let is_counted = is_counted(sets, status);
    let programs = sets.iter().flat_map(|set| set.kernel.programs().into_iter().map(move |program| (set, program)));
    for (set, program) in programs {
        let users = OBJECT.users(&program.name).unwrap_or_default();
        let row = table
            .named(sets.name(set, &program.name).as_bytes())
            .text(KIND, program.kind.as_bytes())
            .text(MODULES, set.users(|spec| users.contains(&spec.name)).as_bytes())
            .set(ATTACHED, u32::from(program.attached));
        let row = match &program.hook {
            Some(hook) => row.text(HOOK, hook.as_bytes()),
            None => row,
        };
        // Numbers that stand still would look like a program that does not run.
        let row = set_opt(row, RUNS, is_counted.then_some(program.runs));
        let row = set_opt(row, TIME, is_counted.then_some(program.time));
        set_opt(row, MISSES, program.misses);
    }
}

/// Returns the run time of all programs in nanoseconds, as far as statistics were on; `None` while they are off.
pub fn time(sets: &Sets, status: &AgentStatus) -> Option<u64> {
    is_counted(sets, status).then(|| sets.kernels().flat_map(LoadedObject::programs).map(|program| program.time).sum())
}

pub fn is_counted(sets: &Sets, status: &AgentStatus) -> bool {
    status.statistics.are_on() || sets.kernels().any(LoadedObject::counts_runs)
}
