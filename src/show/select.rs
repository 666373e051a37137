//! Selection of tables and columns by names: of a metric, of a node above several, or of a module.

use crate::catalog::{EnabledModule, ServedTable};
use crate::kit::{Interval, MetricDef, Shape, SERIES_METRICS};

/// A table with the columns to be shown.
pub struct Selected {
    /// The table.
    pub table: ServedTable,
    /// Indices of the columns, ascending.
    pub columns: Vec<usize>,
    /// The interval that its rows cover, if its module has the option.
    pub interval: Option<Interval>,
}

/// Returns the tables and columns that names mean, each table once, in the order of the names. The second result has the names that
/// mean nothing.
pub fn select<'a>(
    modules: impl IntoIterator<Item = &'a EnabledModule>,
    status: Vec<ServedTable>,
    names: &[String],
) -> (Vec<Selected>, Vec<String>) {
    let of_modules = modules.into_iter().flat_map(|module| module.tables().map(move |table| (Some(module), table)));
    let tables: Vec<(Option<&EnabledModule>, ServedTable)> =
        of_modules.chain(status.into_iter().map(|table| (None, table))).collect();
    let mut wanted: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        let mut found: Vec<(usize, Vec<usize>)> = Vec::new();
        for (at, (module, table)) in tables.iter().enumerate() {
            // What the agent tells of itself is shown to those who ask for it, not below `bcc`.
            if module.is_some() || name_of_agent(table, name) {
                found.push((at, columns(table, name)));
            }
        }
        found.retain(|(_, columns)| !columns.is_empty());
        if found.is_empty() {
            let is = |module: &EnabledModule| module.spec.is_named(name) || module.settings.section == *name;
            let of_module = tables.iter().enumerate().filter(|(_, (module, _))| module.is_some_and(is));
            let of_module =
                of_module.filter(|(_, (module, table))| module.is_some_and(|module| is_shown(module, table)));
            found.extend(of_module.map(|(at, (_, table))| (at, (0..table.spec.metrics.len()).collect())));
        }
        if found.is_empty() {
            unknown.push(name.clone());
        }
        for (at, columns) in found {
            match wanted.iter_mut().find(|(known, _)| *known == at) {
                Some((_, known)) => known.extend(columns),
                None => wanted.push((at, columns)),
            }
        }
    }
    let mut tables: Vec<Option<ServedTable>> = tables.into_iter().map(|(_, table)| Some(table)).collect();
    let selected = wanted.into_iter().filter_map(|(at, mut columns)| {
        columns.sort_unstable();
        columns.dedup();
        Some(Selected { table: tables[at].take()?, columns, interval: None })
    });
    (selected.collect(), unknown)
}

/// True if the module's name means this table. Left out are tables that need an option, and histograms by series: these have names of
/// their own, and would hide the module's other tables. A module with histograms only is shown by their quantiles, and so are histograms
/// with counters beside them, which are in no other table.
fn is_shown(module: &EnabledModule, table: &ServedTable) -> bool {
    let has_others = module.spec.tables.iter().any(|table| table.histograms.is_empty());
    let has_counters = table.spec.shape == Shape::Single
        && table.spec.metrics.len() > table.spec.histograms.len() * SERIES_METRICS.len();
    let is_meant = table.spec.histograms.is_empty()
        || has_counters
        || !has_others && !matches!(table.spec.shape, Shape::Buckets { .. });
    is_meant && table.spec.options.is_empty()
}

/// Returns the columns that a name means, with or without the prefix: that of a metric, or all below a node.
fn columns(table: &ServedTable, name: &str) -> Vec<usize> {
    // What is for Prometheus repeats the other metrics of a node.
    let is_node = |rest: &str| rest.starts_with('.') && !matches!(table.spec.shape, Shape::Seconds { .. });
    let is_meant = |metric: &MetricDef| {
        let full = format!("{}{}", table.prefix, metric.name);
        [full.as_str(), metric.name]
            .iter()
            .any(|known| known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || is_node(rest)))
    };
    table.spec.metrics.iter().enumerate().filter(|(_, metric)| is_meant(metric)).map(|(at, _)| at).collect()
}

/// True if a name is that of one of the agent's own metrics, or of a node above such metrics only.
fn name_of_agent(table: &ServedTable, name: &str) -> bool {
    let own = name.strip_prefix(table.prefix.as_str()).unwrap_or(name);
    own == "agent" || own.starts_with("agent.")
}

/// True if a name means the module or one of its metrics.
pub fn means(module: &EnabledModule, name: &str) -> bool {
    module.tables().any(|table| !columns(&table, name).is_empty())
        || module.spec.is_named(name)
        || module.settings.section == name
}

/// Returns `; did you mean A or B?` with the known names that are most similar to an unknown one; empty if none is similar.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 4;
    const NEAR: f64 = 0.6;
    let mut near: Vec<(f64, &str)> = known
        .filter(|known| *known != name)
        .map(|known| match known.split('.').any(|part| part == name) {
            true => (1.0, known),
            false => (strsim::normalized_damerau_levenshtein(name, known), known),
        })
        .filter(|(likeness, _)| *likeness >= NEAR)
        .collect();
    near.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.cmp(y)));
    near.dedup();
    let best = near.first().map_or(0.0, |(likeness, _)| *likeness);
    let near: Vec<&str> =
        near.into_iter().filter(|(likeness, _)| best - likeness < 0.05).take(MOST).map(|(_, known)| known).collect();
    match near.is_empty() {
        true => String::new(),
        false => format!("; did you mean {}?", near.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::enabled_modules;
    use crate::collector::status_tables;
    use crate::config::Config;
    use crate::modules::MODULES;

    /// The tables of biolatency's histograms: clusters and numbers of columns.
    const DISKS: &[(u32, usize)] = &[
        (320, 60),
        (321, 8),
        (324, 28),
        (323, 4),
        (325, 14),
        (326, 2),
        (337, 10),
        (311, 11),
        (2007, 1),
        (330, 29),
        (347, 4),
    ];

    fn meant(names: &[&str]) -> (Vec<(u32, usize)>, Vec<String>) {
        meant_of(
            "[pmda]\nmodules = disks,netproc\n[disks]\nmodule = biolatency\ncluster = 0\n\
            [netproc]\nmodule = netproc\ncluster = 40\n",
            names,
        )
    }

    fn meant_of(text: &str, names: &[&str]) -> (Vec<(u32, usize)>, Vec<String>) {
        let config = Config::parse("test.conf", text.as_bytes()).unwrap();
        let modules = enabled_modules(&config, MODULES).unwrap().1;
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let (selected, unknown) = select(&modules, status_tables("bcc.").collect(), &names);
        (selected.iter().map(|selected| (selected.table.id.cluster(), selected.columns.len())).collect(), unknown)
    }

    #[test]
    fn names_have_the_prefix_or_not_and_may_be_nodes() {
        assert_eq!(meant(&["disk.all.latency"]).0, [(0, 1)]);
        assert_eq!(meant(&["bcc.disk.all.latency"]).0, [(0, 1)]);
        assert_eq!(meant(&["bcc.proc.net"]).0, [(40, 8)]);
        assert_eq!(meant(&["proc.net.tcp"]).0, [(40, 4)]);
        assert_eq!(meant(&["proc.ne"]), (vec![], vec!["proc.ne".to_owned()]));
        let all = [&[(0, 1)][..], DISKS, &[(40, 8)]].concat();
        assert_eq!(meant(&["bcc"]).0, all, "the agent's own are not below bcc");
    }

    #[test]
    fn modules_and_sections_are_names_too() {
        assert_eq!(meant(&["biolatency"]).0, [(0, 1)]);
        assert_eq!(meant(&["disks"]).0, [(0, 1)]);
        assert_eq!(meant(&["disk.all.read"]).0, [(324, 7), (323, 1)], "histograms have names of their own");
        assert_eq!(meant(&["netproc"]).0, [(40, 8)]);
        let cgroups = "[pmda]\nmodules = cgroup_disk\n[cgroup_disk]\nmodule = cgroup_disk\ncluster = 400\n";
        assert_eq!(meant_of(cgroups, &["cgroup_disk"]).0, [(400, 31)], "a module of nothing else");
    }

    #[test]
    fn several_names_are_one_selection_without_repetition() {
        let (selected, unknown) =
            meant(&["proc.net.tcp.send.bytes", "nosuch", "disks", "bcc.proc.net.tcp.send", "bcc.disk"]);
        assert_eq!((selected, unknown), ([&[(40, 2), (0, 1)][..], DISKS].concat(), vec!["nosuch".to_owned()]));
    }

    #[test]
    fn the_agents_own_metrics_are_there_for_those_who_name_them() {
        assert!(meant(&["bcc.agent"]).0.len() >= 6);
        assert!(meant(&["agent.module"]).0.iter().all(|(cluster, _)| (300..310).contains(cluster)));
    }

    #[test]
    fn a_misspelt_name_is_answered_by_the_nearest() {
        let known = ["bcc.disk.all.latency", "disk.all.latency", "runq.latency", "biolatency", "biotop"];
        let near = |name| did_you_mean(name, known.into_iter());
        assert_eq!(near("bcc.disk.all.latncy"), "; did you mean bcc.disk.all.latency?");
        assert_eq!(near("biolatncy"), "; did you mean biolatency?");
        assert_eq!(near("latency"), "; did you mean bcc.disk.all.latency or disk.all.latency or runq.latency?");
        assert_eq!(near("zzz"), "");
        assert_eq!(near("biotop"), "", "nobody means the same name");
    }
}
