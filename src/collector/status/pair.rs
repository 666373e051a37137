//! The state of each pair: programs of a site's own.

use super::{program, set_opt, AgentStatus, Sets, NAMES};
use crate::kit::{Shape, State, Table, TableSpec};
use crate::metrics;

metrics! {
    STATE: str = 0 "user.status.state" INSTANT NONE "running, partly attached or failed";
    ERROR: str = 1 "user.status.error" INSTANT NONE "what is wrong with a pair, each with file and place";
    PROGRAMS: u32 = 2 "user.status.programs" INSTANT COUNT "BPF programs of a pair";
    ATTACHED: u32 = 3 "user.status.attached" INSTANT COUNT "BPF programs of a pair that are attached";
    MAPS: u32 = 4 "user.status.maps" INSTANT COUNT "BPF maps of a pair";
    MEMORY: u64 = 5 "user.status.memory" INSTANT BYTE "kernel memory of the maps and programs of a pair";
    LOADING: u64 = 6 "user.status.load_time" DISCRETE USEC "time spent loading a pair";
    LOADED_AT: u64 = 7 "user.status.loaded_at" DISCRETE SEC "when a pair was loaded, since 1970";
    RUNS: u64 = 8 "user.status.runs" COUNTER COUNT "runs of a pair's programs, with program statistics on";
    TIME: u64 = 9 "user.status.time" COUNTER NSEC "CPU time of a pair's programs, with program statistics on";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each pair of YAML and BPF object",
    cluster: 308,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let is_counted = program::is_counted(sets, status);
    for (_, loaded) in sets.modules() {
        let Some(running) = loaded.running_now() else { continue };
        let State::Pair(pair, runs) = &running.state else { continue };
        // One at work has no runs.
        let runs = is_counted.then(runs).flatten();
        let name = loaded.name.strip_prefix("user.").unwrap_or(&loaded.name);
        let row = table
            .named(name.as_bytes())
            .text(STATE, pair.state.as_bytes())
            .text(ERROR, pair.error.as_bytes())
            .set(PROGRAMS, pair.programs.len() as u32)
            .set(ATTACHED, pair.attached())
            .set(MAPS, pair.maps)
            .set(MEMORY, pair.memory)
            .set(LOADING, pair.loading.as_micros() as u64);
        let row = set_opt(row, LOADED_AT, (!pair.loading.is_zero()).then_some(loaded.loaded_at));
        let row = set_opt(row, RUNS, runs.map(|(runs, _)| runs));
        set_opt(row, TIME, runs.map(|(_, time)| time));
    }
}
