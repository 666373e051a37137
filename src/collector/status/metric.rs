//! Metrics without values, with the reasons.

use super::super::guard::held;
use super::module_states::{module_states, rank};
use super::{AgentStatus, Sets, NAMES};
use crate::kit::{Shape, Table, TableSpec};
use crate::metrics;
use std::collections::BTreeSet;

metrics! {
    STATUS: str = 0 "agent.metric.status" INSTANT NONE "running, or why a metric has no values";
}

pub static TABLE: TableSpec = TableSpec {
    summary: "each metric of a module",
    cluster: 307,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    ..TableSpec::NEW
};

pub fn fill(sets: &Sets, status: &AgentStatus, table: &mut Table) {
    let configuration = status.configuration();
    let mut rows: Vec<(&str, &str, String)> = Vec::new();
    for module in module_states(sets, &configuration) {
        let Some((_, loaded)) = module.loaded else { continue };
        let record = held(&loaded.refreshes);
        for metric in &loaded.metrics {
            let error = record.errors.get(&metric.cluster);
            let (state, text) = match (module.state, error) {
                ("running" | "no values", _) if metric.off.is_some() => ("off", metric.off.clone().unwrap_or_default()),
                ("no values", Some(error)) => ("no values", format!("no values: {error}")),
                // Another table of the module has none.
                ("no values", None) => ("running", "running".into()),
                ("running", _) if record.is_empty(metric) => {
                    ("running", format!("no value at the last fetch: {}", module.sentence))
                }
                ("running", _) => ("running", "running".into()),
                (state, _) => (state, format!("{state}: {}", module.sentence)),
            };
            rows.push((&metric.name, state, text));
        }
    }
    let unserved = configuration.unserved.iter();
    rows.extend(unserved.map(|metric| (&*metric.name, metric.state, format!("{}: {}", metric.state, metric.why))));
    // A section that enables a module once more has failed, but the metrics are there: the first row of a name is the module's.
    let mut known = BTreeSet::new();
    rows.retain(|(name, ..)| known.insert(*name));
    rows.sort_by_key(|(_, state, _)| rank(state));
    for (name, _, text) in rows {
        table.named(name.as_bytes()).text(STATUS, text.as_bytes());
    }
}
