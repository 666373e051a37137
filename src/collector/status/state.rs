//! The time since which each module counts, and whether its counts outlive the agent.

use super::{set_opt, AgentStatus, Sets, NAMES};
use crate::kit::{Shape, Table, TableSpec};
use crate::loader::pin_state;
use crate::metrics;

metrics! {
    SINCE: u64 = 0 "agent.state.since" DISCRETE SEC "since when a module counts, since 1970";
    PINNED: u32 = 1 "agent.state.pinned" INSTANT NONE "1 if a module's counts outlive the agent, else 0";
    DISCARDED: u64 = 2 "agent.state.discarded" COUNTER COUNT "pinned counts of a module that could not be continued";
    STATUS: str = 3 "agent.state.status" INSTANT NONE "whether a module's counts are pinned, or why not, in a sentence";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each loaded module",
    cluster: 309,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(sets: &Sets, _status: &AgentStatus, table: &mut Table) {
    for (_, loaded) in sets.modules().filter(|(_, loaded)| !loaded.tables.is_empty() && !loaded.is_stopped()) {
        let pin = pin_state(loaded.spec.name).unwrap_or_default();
        let since = if pin.is_pinned { pin.since } else { loaded.loaded_at };
        let status = if pin.status.is_empty() { "not pinned" } else { &pin.status };
        let row = table.named(loaded.name.as_bytes()).text(STATUS, status.as_bytes());
        let row = row.set(PINNED, u32::from(pin.is_pinned)).set(DISCARDED, pin.discarded);
        set_opt(row, SINCE, loaded.running.is_ok().then_some(since));
    }
}
