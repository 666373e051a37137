//! What was lost, by module and reason.

use super::{AgentStatus, LoadedModules, NAMES};
use crate::kit::{Kernel, Shape, Table, TableSpec};
use crate::metrics;

metrics! {
    EVENTS: u64 = 0 "agent.lost.events" COUNTER COUNT "events that a module saw but could not count, by reason";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each kind of loss",
    cluster: 304,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(modules: &LoadedModules, _status: &AgentStatus, table: &mut Table) {
    let kernel: &dyn Kernel = &*modules.kernel;
    for loaded in modules.iter() {
        let name = &loaded.name;
        // One that is at work is not waited for.
        let Some(working) = loaded.idle() else { continue };
        working.module.losses(kernel, &mut |reason, count| {
            table.named(instance(name, reason).as_bytes()).set(EVENTS, count);
        });
    }
}

/// `MODULE::reason` up to its first comma or the like, without blanks, since libpcp takes what precedes the first for the name.
pub fn instance(module: &str, reason: &str) -> String {
    let short = reason.split([',', ';', ':', '(']).next().unwrap_or(reason).trim();
    format!("{module}::{}", short.replace(' ', "-"))
}
