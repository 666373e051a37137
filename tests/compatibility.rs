//! The declarations against the metrics of the Python agent: tests/data/bcc-metrics.tsv, generated from its own tables.

#![allow(clippy::unwrap_used)]

use corebcc::collector::OWN;
use corebcc::kit::{MetricDef, Shape, Spec};
use corebcc::modules::MODULES;
use corebcc::pcp::{Sem, Space, Time, Type, Units};
use std::collections::BTreeSet;

/// One line of the table.
struct Row {
    metric: &'static str,
    module: &'static str,
    config_module: &'static str,
    cluster: u32,
    item: u32,
    ty: Type,
    sem: Sem,
    units: Units,
    instances: &'static str,
}

fn table() -> Vec<Row> {
    let lines = include_str!("data/bcc-metrics.tsv").lines();
    let rows: Vec<Row> = lines.skip(1).map(|line| row(&line.split('\t').collect::<Vec<_>>())).collect();
    assert_eq!(rows.len(), 95);
    rows
}

fn row(fields: &[&'static str]) -> Row {
    Row {
        metric: fields[0],
        module: fields[1],
        config_module: fields[2],
        cluster: fields[3].parse().unwrap(),
        item: fields[4].parse().unwrap(),
        ty: match fields[6] {
            "32" => Type::I32,
            "U32" => Type::U32,
            "U64" => Type::U64,
            "STRING" => Type::STRING,
            other => panic!("type {other}"),
        },
        sem: match fields[7] {
            "counter" => Sem::COUNTER,
            "instant" => Sem::INSTANT,
            other => panic!("semantics {other}"),
        },
        units: match fields[9] {
            "none" => Units::NONE,
            "count" => Units::COUNT,
            "byte" => Units::BYTE,
            "Mbyte" => Units::NONE.space(1, Space::Mbyte),
            "nanosec" => Units::NONE.time(1, Time::Nsec),
            "microsec" => Units::NONE.time(1, Time::Usec),
            other => panic!("units {other}"),
        },
        instances: fields[13],
    }
}

fn declared(row: &Row) -> Option<(&'static Spec, Option<&'static MetricDef>)> {
    let spec = MODULES.iter().find(|spec| spec.name == row.module)?;
    Some((spec, spec.metrics.iter().find(|metric| format!("bcc.{}", metric.name) == row.metric)))
}

/// Metadata that was corrected on purpose; each is explained in docs/compatibility.md.
const CORRECTED: &[&str] = &["bcc.mem.vmstat.buffers", "bcc.mem.vmstat.cached"];

#[test]
fn every_metric_of_a_module_has_the_metadata_it_always_had() {
    for row in table() {
        let Some((spec, metric)) = declared(&row) else { continue };
        let metric = metric.unwrap_or_else(|| panic!("{} is missing", row.metric));
        assert_eq!(
            (spec.path, spec.cluster, metric.item),
            (row.config_module, row.cluster, row.item),
            "{}",
            row.metric
        );
        assert_eq!((metric.ty, metric.units), (row.ty, row.units), "{}", row.metric);
        if !CORRECTED.contains(&row.metric) {
            assert_eq!(metric.sem, row.sem, "{}", row.metric);
        }
    }
}

#[test]
fn instance_domains_have_the_names_they_always_had() {
    for row in table() {
        let Some((spec, _)) = declared(&row) else { continue };
        let fits = match spec.shape {
            Shape::Single => row.instances == "-",
            Shape::Log2(_) => row.instances.starts_with("LOW-HIGH"),
            Shape::Rows { .. } => row.instances.starts_with("ROW"),
            Shape::Pids => row.instances.starts_with("PID "),
            _ => !["-", "LOW-HIGH", "ROW"].iter().any(|other| row.instances.starts_with(other)),
        };
        assert!(fits, "{}: {:?} for `{}`", row.metric, spec.shape, row.instances);
    }
}

#[test]
fn no_module_adds_metrics_among_those_of_the_original() {
    let known: BTreeSet<&str> = table().iter().map(|row| row.metric).collect();
    for spec in MODULES.iter().filter(|spec| spec.cluster < 300) {
        for metric in spec.metrics {
            assert!(known.contains(format!("bcc.{}", metric.name).as_str()), "{}: not in the table", metric.name);
        }
    }
}

/// Where sites have their own modules, and where the Python agent had its, the agent's own metrics are not.
#[test]
fn the_agents_own_metrics_have_clusters_that_no_module_can_have() {
    assert!(OWN.iter().all(|spec| (300..=309).contains(&spec.cluster)));
    assert!(MODULES.iter().all(|spec| !(300..=309).contains(&spec.cluster)));
    assert!(OWN.iter().flat_map(|spec| spec.metrics).all(|metric| metric.name.starts_with("agent.")));
}

#[test]
fn clusters_items_and_names_are_used_once() {
    let mut clusters = BTreeSet::new();
    let mut names = BTreeSet::new();
    for spec in MODULES.iter().chain(OWN) {
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
