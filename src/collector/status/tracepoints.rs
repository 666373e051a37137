//! The kernel's tracepoints, for authors of scripts.

use super::{AgentStatus, Sets};
use crate::host::Events;
use crate::kit::{Table, TableSpec};
use crate::metrics;

metrics! {
    TRACEPOINTS: str = 0 "agent.tracepoints" INSTANT NONE "tracepoints that scripts can attach to, with commas between them";
}

pub static TABLE: TableSpec =
    TableSpec { metric_type: "control", ..TableSpec::single("the tracepoints of the kernel", 329, METRICS) };

/// Fills the table, and reads tracefs each time, since tracepoints come and go with kernel modules.
pub fn fill(_sets: &Sets, _status: &AgentStatus, table: &mut Table) {
    let events = Events::read();
    let Ok(events) = events.list() else { return };
    let names: Vec<String> = events.iter().map(|event| format!("tracepoint:{event}")).collect();
    table.single().text(TRACEPOINTS, names.join(",").as_bytes());
}
