//! All scripts with their texts, in one document.

use super::{AgentStatus, Sets};
use crate::kit::{State, Table, TableSpec};
use crate::metrics;

/// Bytes of all texts together. A value in a fetch has at most 16 MB; each script has its own text as a metric besides.
const MOST: usize = 1 << 20;

metrics! {
    SCRIPTS: str = 0 "agent.scripts" INSTANT NONE "all scripts of scripts.d with their texts, in JSON";
}

pub static TABLE: TableSpec = TableSpec { metric_type: "control", ..TableSpec::single("the scripts", 319, METRICS) };

pub fn fill(sets: &Sets, _status: &AgentStatus, table: &mut Table) {
    let mut scripts = String::from("[");
    for (_, loaded) in sets.modules() {
        let Some(running) = loaded.running_now() else { continue };
        let State::Script(script) = &running.state else { continue };
        scripts += if scripts.len() > 1 { "," } else { "" };
        scripts += &script.json(MOST.saturating_sub(scripts.len()));
    }
    table.single().text(SCRIPTS, (scripts + "]").as_bytes());
}
