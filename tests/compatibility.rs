//! The declarations compared with the metrics of the Python agent: tests/data/bcc-metrics.tsv, generated from its own
//! tables.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // the tests of the binary use the rest
#[path = "support/rows.rs"]
mod rows;

use corebcc::collector::STATUS;
use corebcc::kit::{MetricDef, Shape, Spec, TableSpec};
use corebcc::modules::{find, MODULES};
use rows::{original, Row, CORRECTED};
use std::collections::BTreeSet;

fn table() -> Vec<Row> {
    let rows: Vec<Row> = original().collect();
    assert_eq!(rows.len(), 95);
    rows
}

/// Returns the declaration of a row's metric.
fn declared(row: &Row) -> (&'static Spec, &'static TableSpec, &'static MetricDef) {
    let spec = find(row.module).unwrap_or_else(|| panic!("no module {}", row.module));
    let of = |table: &&'static TableSpec| {
        let metric = table.metrics.iter().find(|metric| format!("bcc.{}", metric.name) == row.name)?;
        Some((spec, *table, metric))
    };
    spec.tables.iter().find_map(of).unwrap_or_else(|| panic!("{} is missing", row.name))
}

#[test]
fn every_metric_has_the_metadata_it_always_had() {
    for row in table() {
        let (spec, table, metric) = declared(&row);
        assert_eq!(
            (spec.path().as_str(), table.cluster, metric.item),
            (row.path, row.cluster, row.item),
            "{}",
            row.name
        );
        assert_eq!((metric.ty, metric.units), (row.ty, row.units()), "{}", row.name);
        if !CORRECTED.contains(&row.name) {
            assert_eq!(metric.sem, row.sem, "{}", row.name);
        }
    }
}

#[test]
fn instance_domains_have_the_names_they_always_had() {
    for row in table() {
        let (_, table, _) = declared(&row);
        let fits = match table.shape {
            Shape::Single => row.form == "-",
            Shape::Log2(_) => row.form.starts_with("LOW-HIGH"),
            Shape::Rows { .. } => row.form.starts_with("ROW"),
            Shape::Pids => row.form.starts_with("PID "),
            _ => !["-", "LOW-HIGH", "ROW"].iter().any(|other| row.form.starts_with(other)),
        };
        assert!(fits, "{}: {:?} for `{}`", row.name, table.shape, row.form);
    }
}

/// New metrics of a module are in tables of their own, in clusters that neither sites nor the Python agent's modules
/// use. Clusters of new modules begin at 400.
#[test]
fn what_the_agent_adds_has_clusters_that_no_module_can_have() {
    let known: BTreeSet<&str> = table().iter().map(|row| row.name).collect();
    let is_known = |metric: &MetricDef| known.contains(format!("bcc.{}", metric.name).as_str());
    for table in MODULES.iter().flat_map(|spec| spec.tables) {
        let added = table.metrics.iter().filter(|metric| !is_known(metric)).count();
        match table.cluster {
            0..=199 => assert_eq!(added, 0, "cluster {}: a new metric belongs into a table of its own", table.cluster),
            cluster => {
                assert!(matches!(cluster, 310..=349 | 400..=499 | 2000..) && added == table.metrics.len(), "{cluster}")
            }
        }
    }
    assert!(STATUS.iter().all(|table| matches!(table.spec.cluster, 300..=309 | 319 | 329)));
    let is_own = |metric: &MetricDef| ["agent.", "user.status."].iter().any(|node| metric.name.starts_with(node));
    assert!(STATUS.iter().flat_map(|table| table.spec.metrics).all(is_own));
}

#[test]
fn clusters_items_and_names_are_used_once() {
    let mut clusters = BTreeSet::new();
    let mut names = BTreeSet::new();
    let of_modules = MODULES.iter().flat_map(|spec| spec.tables.iter().copied());
    for table in of_modules.chain(STATUS.iter().map(|table| table.spec)) {
        assert!(clusters.insert(table.cluster) && table.cluster <= 4095, "cluster {}", table.cluster);
        assert_ne!(table.cluster, 120, "the retired usdt_jvm_alloc had it");
        let items: BTreeSet<u32> = table.metrics.iter().map(|metric| metric.item).collect();
        assert_eq!(items.len(), table.metrics.len(), "cluster {}: an item twice", table.cluster);
        for metric in table.metrics {
            assert!(names.insert(metric.name), "{} twice", metric.name);
            assert_ne!(metric.name, "proc.net.total.bytes", "pmrep derives a metric of this name");
        }
    }
}

/// tests/data/bcc-options.tsv has section, option, default and the test of the option's effect. A required process has
/// the default of the shipped file; an option without default is unset.
#[test]
fn every_option_there_was_is_there_with_its_default() {
    let lines = include_str!("data/bcc-options.tsv").lines().skip(1);
    let options: Vec<Vec<&str>> = lines.map(|line| line.split('\t').collect()).collect();
    let of_modules = |option: &&Vec<&str>| !["*", "[pmda]"].contains(&option[0]);
    assert_eq!(options.iter().filter(of_modules).count(), 70);
    for option in options.iter().filter(of_modules) {
        let [module, name, default, test] = option[..] else { panic!("{option:?}") };
        let spec = find(module).unwrap_or_else(|| panic!("no module {module}"));
        let declared = spec.options.iter().find(|declared| declared.name == name);
        let declared = declared.unwrap_or_else(|| panic!("[{module}] {name} is missing"));
        if name != "compile_test" {
            let now = (declared.default)();
            assert_eq!(if now.is_empty() { "-" } else { &now }, default, "[{module}] {name}");
        }
        assert_ne!(test, "-", "[{module}] {name} has no test");
    }
}
