//! What became of each module.

use super::super::guard::held;
use super::{AgentStatus, LoadedModules, NAMES};
use crate::kit::{Shape, Table, TableSpec};
use crate::metrics;

metrics! {
    STATE: str = 0 "agent.module.state" INSTANT NONE "running, postponed, no values, failed or off";
    STATUS: str = 1 "agent.module.status" INSTANT NONE "a sentence: how the module is attached, or why it is not";
    UP: u32 = 2 "agent.module.up" INSTANT NONE "1 if an enabled module is loaded and has values, else 0";
    REFRESHES: u64 = 3 "agent.module.refresh.count" COUNTER COUNT "refreshes of the module's values";
    TIME: u64 = 4 "agent.module.refresh.time" COUNTER NSEC "time that refreshes of the module's values took";
    ATTACHED: u64 = 5 "agent.module.targets.attached" INSTANT COUNT "configured targets that the module is attached to";
    MISSING: u64 = 6 "agent.module.targets.missing" INSTANT COUNT "configured targets that the module works without";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each module",
    cluster: 301,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(modules: &LoadedModules, status: &AgentStatus, table: &mut Table) {
    for loaded in modules.iter() {
        let (state, sentence) = modules.state(loaded);
        let (count, time) = {
            let record = held(&loaded.refreshes);
            (record.count, record.time)
        };
        let (attached, missing) = modules.targets(loaded);
        table
            .named(loaded.name.as_bytes())
            .text(STATE, state.as_bytes())
            .text(STATUS, sentence.as_bytes())
            .set(UP, u32::from(!matches!(state, "failed" | "no values")))
            .set(REFRESHES, count)
            .set(TIME, time.as_nanos() as u64)
            .set(ATTACHED, attached)
            .set(MISSING, missing);
    }
    for (name, why) in &status.configuration.lost {
        table.named(name.as_bytes()).text(STATE, b"failed").text(STATUS, why.as_bytes()).set(UP, 0);
    }
    for (name, how) in &status.configuration.off {
        table.named(name.as_bytes()).text(STATE, b"off").text(STATUS, how.as_bytes());
    }
}
