//! The state of each module.

use super::super::guard::held;
use super::module_states::{module_states, ModuleState};
use super::{AgentStatus, Sets, NAMES};
use crate::kit::{SeriesLabel, Shape, Table, TableSpec};
use crate::metrics;
use std::sync::Arc;

metrics! {
    STATE: str = 0 "agent.module.state" INSTANT NONE "failed, no values, running, postponed or off";
    STATUS: str = 1 "agent.module.status" INSTANT NONE "how the module is attached, or why it is not, in a sentence";
    UP: u32 = 2 "agent.module.up" INSTANT NONE "1 if an enabled module is loaded and has values, else 0";
    REFRESHES: u64 = 3 "agent.module.refresh.count" COUNTER COUNT "how often the module's values were read from the kernel";
    TIME: u64 = 4 "agent.module.refresh.time" COUNTER NSEC "time spent reading the module's values from the kernel";
    ATTACHED: u64 = 5 "agent.module.targets.attached" INSTANT COUNT "configured targets that the module is attached to";
    MISSING: u64 = 6 "agent.module.targets.missing" INSTANT COUNT "configured targets that were not found or refused";
    CONTROL: str = 7 "agent.module.control" INSTANT NONE "what became of the last order; pmstore takes start, stop, restart";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each module",
    cluster: 301,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

/// True for the column that takes orders.
pub fn is_control(column: usize) -> bool {
    column == CONTROL.column
}

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let configuration = status.configuration();
    for module in module_states(sets, &configuration) {
        let ModuleState { name, state, sentence, loaded } = &module;
        let labels = Arc::new(vec![("module", SeriesLabel::Text((*name).to_owned()))]);
        let row = table.named(name.as_bytes()).labels(&labels);
        let row = row.text(STATE, state.as_bytes()).text(STATUS, sentence.as_bytes());
        let row = row.text(CONTROL, status.orders.said(name).as_bytes());
        if module.is_off() {
            continue;
        }
        let row = row.set(UP, u32::from(!module.has_failed()));
        let Some((set, loaded)) = loaded else { continue };
        let (count, time) = {
            let record = held(&loaded.refreshes);
            (record.count, record.time)
        };
        let (attached, missing) = set.targets(loaded);
        row.set(REFRESHES, count).set(TIME, time.as_nanos() as u64).set(ATTACHED, attached).set(MISSING, missing);
    }
}
