//! What was lost, by module and kind.

use super::super::guard::held;
use super::{AgentStatus, Sets, NAMES};
use crate::kit::{loss_words, Kernel, Shape, Table, TableSpec};
use crate::metrics;
use std::collections::BTreeMap;

metrics! {
    EVENTS: u64 = 0 "agent.lost.events" COUNTER COUNT "events that a module saw and could not count";
    REASON: str = 1 "agent.lost.reason" DISCRETE NONE "what is counted as lost, and why";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each kind of loss",
    cluster: 304,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(sets: &Sets, _status: &AgentStatus, table: &mut Table) {
    each(sets, &mut |module, loss, count| {
        let (name, reason) = loss_words(loss);
        table.named(instance(module, name).as_bytes()).set(EVENTS, count).text(REASON, reason.as_bytes());
    });
}

/// Whatever was lost so far. A module at work counts with what it had lost before: a counter does not step back.
pub fn total(sets: &Sets, status: &AgentStatus) -> u64 {
    let mut now: BTreeMap<&str, u64> = BTreeMap::new();
    each(sets, &mut |module, _, count| *now.entry(module).or_default() += count);
    let mut known = held(&status.lost);
    for (module, count) in now {
        known.insert(module.to_owned(), count);
    }
    known.values().sum()
}

/// Hands out the losses of each module. One that is at work is not waited for.
fn each<'a>(sets: &'a Sets, out: &mut dyn FnMut(&'a str, &'static str, u64)) {
    for (set, loaded) in sets.modules() {
        let kernel: &dyn Kernel = &*set.kernel;
        let Some(working) = loaded.idle() else { continue };
        working.module.losses(kernel, &mut |loss, count| out(&loaded.name, loss, count));
    }
}

/// `MODULE::NAME`.
pub fn instance(module: &str, name: &str) -> String {
    format!("{module}::{name}")
}
