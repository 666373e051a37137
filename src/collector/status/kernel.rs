//! What the kernel has, or has not.

use super::{set_opt, AgentStatus, LoadedModules, NAMES};
use crate::kit::{Shape, Table, TableSpec};
use crate::loader::Finding;
use crate::metrics;

metrics! {
    THERE: u32 = 0 "agent.kernel.feature" DISCRETE NONE "1 if the kernel has the feature, 0 if not";
    STATUS: str = 1 "agent.kernel.status" DISCRETE NONE "how a kernel feature was detected, or why it is missing";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each feature",
    cluster: 305,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(modules: &LoadedModules, status: &AgentStatus, table: &mut Table) {
    for Finding { feature, there, said } in modules.findings.iter().chain([&status.counting]) {
        let row = table.named(feature.as_bytes()).text(STATUS, said.as_bytes());
        set_opt(row, THERE, there.map(u32::from));
    }
}
