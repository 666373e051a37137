//! The pairs of a directory as modules: their names, and the clusters of their tables.

use super::config::PairError;
use super::directory::PairFiles;
use super::module::PairModule;
use super::tables::{kept, leak, word, ServedMetric, Tables};
use crate::catalog::{EnabledModule, PAIR_CLUSTERS};
use crate::config::ModuleSettings;
use crate::kit::{Need, Spec, TableSpec};
use crate::loader::PairOptions;
use crate::state::{ClusterFile, Clusters};
use std::collections::{BTreeMap, BTreeSet};

/// Privileges that any pair may need.
pub const PAIR: Spec = Spec {
    name: "user",
    summary: "programs of this site",
    needs_to_load: &[Need::Tracefs, Need::PerfEvents, Need::UserProbes, Need::KernelSymbols],
    needs_to_run: &[Need::KernelSymbols],
    ..Spec::NEW
};

/// Names below `bcc.user` that no pair can have.
const RESERVED: [&str; 1] = ["status"];

/// Returns the section of a pair, by the name of its files.
pub fn section_of(name: &str) -> String {
    format!("user.{}", word(name))
}

/// Returns a pair's second name, that of its file, for a row beside that of the pair that already has its name.
fn own_name(name: &str) -> String {
    format!("{name}.yaml")
}

/// Returns the section that reports on a changed file while the pair still runs as it was before.
pub fn section_beside(name: &str) -> String {
    format!("user.{}", own_name(name))
}

/// True if a pair has no error that can be found without loading it.
pub fn is_right(files: &PairFiles, options: &PairOptions) -> bool {
    let (mut pair, _) = PairModule::new(files.clone(), options.clone());
    pair.check();
    pair.status().state != "failed"
}

/// Makes modules of pairs. Clusters are kept in a file if one is given; those of the other tables are avoided. `taken` has the
/// sections of pairs that run, with the names of their files: another pair whose section would be one of them gets a section named
/// after its file.
pub fn pairs_of(
    files: Vec<PairFiles>,
    options: &PairOptions,
    prefix: &str,
    state: Option<&ClusterFile>,
    others: &[u16],
    taken: &BTreeMap<String, String>,
) -> Vec<(EnabledModule, PairModule)> {
    if files.is_empty() {
        return Vec::new();
    }
    let mut clusters = state.map_or_else(|| Clusters::none(PAIR_CLUSTERS), |file| file.load(PAIR_CLUSTERS));
    let pairs = pairs(files, options, prefix, &mut clusters, others, taken);
    if let Some(file) = state {
        file.save(&clusters);
    }
    pairs
}

/// Makes a pair that is not served: names of metrics are checked, and clusters mean nothing.
pub fn pair_alone(files: PairFiles, options: &PairOptions) -> PairModule {
    let mut pairs = pairs(vec![files], options, "", &mut Clusters::none(PAIR_CLUSTERS), &[], &BTreeMap::new());
    // There is one module for each pair.
    pairs.pop().map(|(_, pair)| pair).expect("a pair of the files")
}

/// Makes modules of pairs, each with its served tables. `prefix` is that of the metrics' names; clusters of others are `reserved`.
pub fn pairs(
    files: Vec<PairFiles>,
    options: &PairOptions,
    prefix: &str,
    clusters: &mut Clusters,
    reserved: &[u16],
    taken: &BTreeMap<String, String>,
) -> Vec<(EnabledModule, PairModule)> {
    let mut names: BTreeSet<String> = taken.keys().cloned().collect();
    names.extend(RESERVED.iter().map(|name| section_of(name)));
    let mut made = Vec::new();
    for files in files {
        let (mut name, file) = (word(&files.name), files.yaml.display().to_string());
        let own = own_name(&files.name);
        let runs_before = taken.get(&section_of(&name)) == Some(&files.name);
        let (mut module, mut metrics) = PairModule::new(files, options.clone());
        if !names.insert(section_of(&name)) {
            let reason = match runs_before {
                true => {
                    module.check();
                    "this change is not served: the pair runs on as it was before".into()
                }
                false => format!("expected a name that is free, got `{name}`, which is taken; rename both files"),
            };
            module.serve(0, Err(PairError { file: file.clone(), place: "file".into(), reason }));
            metrics.clear();
            // No name of another one has a dot.
            name = own;
        }
        made.push((name, file, module, metrics));
    }
    let keys = made.iter().flat_map(|(pair, .., metrics)| metrics.iter().flat_map(|metric| metric.keys(pair)));
    let keys: Vec<String> = keys.collect();
    let assigned = clusters.assign(&keys, reserved);
    let mut assigned = keys.iter().zip(assigned).map(|(key, cluster)| (key.as_str(), cluster));
    let made = made.into_iter().map(|(pair, file, mut module, metrics)| {
        let mut known: BTreeSet<&str> = BTreeSet::new();
        let mut tables: Vec<&'static TableSpec> = Vec::new();
        for (number, metric) in metrics.iter().enumerate() {
            let own = metric.keys(&pair);
            let own: Vec<Option<u16>> =
                own.iter().filter_map(|_| assigned.next()).map(|(_, cluster)| cluster).collect();
            let declared = match known.insert(&metric.name) {
                true => declare(&pair, &file, metric, &own),
                false => Err(wrong(&file, metric, "expected a name that no other metric of the pair has")),
            };
            tables.extend(declared.iter().flat_map(|tables| tables.series.into_iter().chain(tables.buckets)));
            module.serve(number, declared);
        }
        (enabled(&pair, prefix, tables, needs(&module)), module)
    });
    made.collect()
}

fn declare(pair: &str, file: &str, metric: &ServedMetric, clusters: &[Option<u16>]) -> Result<Tables, PairError> {
    let clusters: Option<Vec<u32>> = clusters.iter().map(|cluster| cluster.map(u32::from)).collect();
    let clusters = clusters.ok_or_else(|| wrong(file, metric, "expected fewer metrics: all clusters are taken"))?;
    Ok(metric.declare(pair, &clusters))
}

fn wrong(file: &str, metric: &ServedMetric, reason: &str) -> PairError {
    PairError { file: file.into(), place: format!("metric {}", metric.name), reason: reason.into() }
}

/// Returns the privileges that a pair needs while it runs.
fn needs(pair: &PairModule) -> &'static [Need] {
    match (pair.resolves_symbols(), pair.samples()) {
        (true, true) => &[Need::KernelSymbols, Need::PerfEvents],
        (true, false) => &[Need::KernelSymbols],
        (false, true) => &[Need::PerfEvents],
        (false, false) => &[],
    }
}

/// Describes a pair as a module.
fn enabled(pair: &str, prefix: &str, tables: Vec<&'static TableSpec>, needs_to_run: &'static [Need]) -> EnabledModule {
    let name = leak(format!("user.{pair}"));
    // Equal tables are the same ones.
    let places: Vec<*const TableSpec> = tables.iter().map(|table| &raw const **table).collect();
    let of = format!("{name} {needs_to_run:?} {places:?}");
    let spec = Spec { name, tables: kept(of.clone(), || tables), needs_to_run, ..PAIR };
    EnabledModule {
        settings: ModuleSettings {
            section: name.into(),
            module: name.into(),
            cluster: spec.cluster() as u16,
            prefix: prefix.into(),
            indom_cache: true,
            debug: false,
            pin: None,
        },
        spec: kept(of, || spec),
        rows: 0,
        bpf_names: false,
        off: Vec::new(),
    }
}
