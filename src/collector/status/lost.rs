//! Lost events, by module and kind.

use super::super::guard::held;
use super::{AgentStatus, Sets, NAMES};
use crate::kit::{loss_words, Kernel, SeriesLabel, Shape, Table, TableSpec};
use crate::metrics;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

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

/// Losses of each module, by its name: the sentence of [`loss_words`], and the number.
pub type Losses = BTreeMap<String, Vec<(&'static str, u64)>>;

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let known = known(sets, status);
    for (_, loaded) in sets.modules() {
        for (loss, count) in known.get(&*loaded.name).into_iter().flatten() {
            let (name, reason) = loss_words(loss);
            let labels = [("module", &*loaded.name), ("reason", name)];
            let labels = Arc::new(labels.map(|(label, text)| (label, SeriesLabel::Text(text.to_owned()))).to_vec());
            let row = table.named(instance(&loaded.name, name).as_bytes()).labels(&labels);
            row.set(EVENTS, *count).text(REASON, reason.as_bytes());
        }
    }
}

/// Returns the number of all losses so far, including those of modules that were stopped: a counter does not step back.
pub fn total(sets: &Sets, status: &AgentStatus) -> u64 {
    known(sets, status).values().flatten().map(|(_, count)| count).sum()
}

/// Returns the losses so far. For a module that another thread is using, they are those of the last look.
fn known<'a>(sets: &Sets, status: &'a AgentStatus) -> MutexGuard<'a, Losses> {
    let mut known = held(&status.lost);
    for (set, loaded) in sets.modules() {
        let kernel: &dyn Kernel = &*set.kernel;
        let mut losses = Vec::new();
        let Some(running) = loaded.running_now() else { continue };
        if running.losses(kernel, &mut |loss, count| losses.push((loss, count))) {
            known.insert(loaded.name.to_string(), losses);
        }
    }
    known
}

/// Returns the instance name, `MODULE::NAME`.
pub fn instance(module: &str, name: &str) -> String {
    format!("{module}::{name}")
}
