//! The declarations against the metrics of the Python agent: tests/data/bcc-metrics.tsv, generated from its own tables.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // the tests of the binary use the rest
#[path = "support/rows.rs"]
mod rows;

use corebcc::collector::OWN;
use corebcc::kit::{MetricDef, Shape, Spec, BPF_NAMES};
use corebcc::modules::{additions, MODULES};
use rows::{original, Row, CORRECTED};
use std::collections::BTreeSet;

fn table() -> Vec<Row> {
    let rows: Vec<Row> = original().collect();
    assert_eq!(rows.len(), 95);
    rows
}

fn declared(row: &Row) -> Option<(&'static Spec, Option<&'static MetricDef>)> {
    let spec = MODULES.iter().find(|spec| spec.name == row.module)?;
    Some((spec, spec.metrics.iter().find(|metric| format!("bcc.{}", metric.name) == row.name)))
}

#[test]
fn every_metric_of_a_module_has_the_metadata_it_always_had() {
    for row in table() {
        let Some((spec, metric)) = declared(&row) else { continue };
        let metric = metric.unwrap_or_else(|| panic!("{} is missing", row.name));
        assert_eq!((spec.path, spec.cluster, metric.item), (row.path, row.cluster, row.item), "{}", row.name);
        assert_eq!((metric.ty, metric.units), (row.ty, row.units()), "{}", row.name);
        if !CORRECTED.contains(&row.name) {
            assert_eq!(metric.sem, row.sem, "{}", row.name);
        }
    }
}

#[test]
fn instance_domains_have_the_names_they_always_had() {
    for row in table() {
        let Some((spec, _)) = declared(&row) else { continue };
        let fits = match spec.shape {
            Shape::Single => row.form == "-",
            Shape::Log2(_) => row.form.starts_with("LOW-HIGH"),
            Shape::Rows { .. } => row.form.starts_with("ROW"),
            Shape::Pids => row.form.starts_with("PID "),
            _ => !["-", "LOW-HIGH", "ROW"].iter().any(|other| row.form.starts_with(other)),
        };
        assert!(fits, "{}: {:?} for `{}`", row.name, spec.shape, row.form);
    }
}

#[test]
fn no_module_adds_metrics_among_those_of_the_original() {
    let known: BTreeSet<&str> = table().iter().map(|row| row.name).collect();
    for spec in MODULES {
        for metric in spec.metrics {
            assert!(known.contains(format!("bcc.{}", metric.name).as_str()), "{}: not in the table", metric.name);
        }
    }
}

/// Where sites have their own modules, and where the Python agent had its, there are neither the agent's own metrics nor what
/// modules add.
#[test]
fn what_the_agent_adds_has_clusters_that_no_module_can_have() {
    assert!(OWN.iter().all(|spec| (300..=309).contains(&spec.cluster)));
    assert!(additions().all(|spec| (310..=319).contains(&spec.cluster) && spec.addition.is_none()));
    assert!(MODULES.iter().all(|spec| spec.cluster < 200));
    assert!(OWN.iter().flat_map(|spec| spec.metrics).all(|metric| metric.name.starts_with("agent.")));
}

#[test]
fn clusters_items_and_names_are_used_once() {
    let mut clusters = BTreeSet::new();
    let mut names = BTreeSet::new();
    for spec in MODULES.iter().copied().chain(additions()).chain(OWN.iter().copied()) {
        assert!(clusters.insert(spec.cluster) && spec.cluster <= 4095, "{}: cluster {}", spec.name, spec.cluster);
        assert_ne!(spec.cluster, 120, "the retired usdt_jvm_alloc had it");
        let items: BTreeSet<u32> = spec.metrics.iter().map(|metric| metric.item).collect();
        assert_eq!(items.len(), spec.metrics.len(), "{}: an item twice", spec.name);
        for metric in spec.metrics {
            assert!(names.insert(metric.name), "{} twice", metric.name);
            assert_ne!(metric.name, "proc.net.total.bytes", "pmrep derives a metric of this name");
        }
    }
}

/// tests/data/bcc-options.tsv: section, option, default and the test that shows what it does. A process that had to be given
/// has the one of the shipped file; what was an error unless asked otherwise is none.
#[test]
fn every_option_there_was_is_there_with_its_default() {
    const ADDED: &[(&str, &str)] = &[("netproc", BPF_NAMES)];
    let lines = include_str!("data/bcc-options.tsv").lines().skip(1);
    let options: Vec<Vec<&str>> = lines.map(|line| line.split('\t').collect()).collect();
    let of_modules = |option: &&Vec<&str>| !["*", "[pmda]"].contains(&option[0]);
    assert_eq!(options.iter().filter(of_modules).count(), 70);
    for option in options.iter().filter(of_modules) {
        let [module, name, default, test] = option[..] else { panic!("{option:?}") };
        let Some(spec) = MODULES.iter().find(|spec| spec.name == module) else { continue };
        let declared = spec.options.iter().find(|declared| declared.name == name);
        let declared = declared.unwrap_or_else(|| panic!("[{module}] {name} is missing"));
        if name != "compile_test" {
            let now = (declared.default)();
            assert_eq!(if now.is_empty() { "-" } else { &now }, default, "[{module}] {name}");
        }
        assert_ne!(test, "-", "[{module}] {name} has no test");
    }
    for spec in MODULES {
        for option in spec.options {
            let known = options.iter().any(|row| row[0] == spec.name && row[1] == option.name);
            let added = ADDED.contains(&(spec.name, option.name));
            assert!(known != added, "[{}] {} is not in the table, or added to it", spec.name, option.name);
        }
    }
}
