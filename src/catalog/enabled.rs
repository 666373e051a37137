//! The modules that a configuration enables, with all that is known about each but the module itself.

use crate::config::{did_you_mean, Config, ConfigError, Cost, Fault, ModuleSettings, Section, Settings};
use crate::kit::{OptionDef, RowCount, Shape, Spec, TableId, TableSpec, BPF_NAMES};
use std::ops::RangeInclusive;

/// Clusters of the tables of pairs. Modules have those below, and above once there is none left.
pub const PAIR_CLUSTERS: RangeInclusive<u16> = 500..=1999;

/// A module as configured.
pub struct EnabledModule {
    /// Its declaration.
    pub spec: &'static Spec,
    /// The shared options of its section.
    pub settings: ModuleSettings,
    /// Number of rows of its tables of shape `Rows`; 0 if it has none.
    pub rows: u32,
    /// True if its metrics are also served under their second names.
    pub bpf_names: bool,
    /// Options that are off and without which a table stays empty.
    pub off: Vec<&'static str>,
}

impl EnabledModule {
    /// Returns its tables as they are served. The cluster of the first one is that of the section.
    pub fn tables(&self) -> impl Iterator<Item = ServedTable> + '_ {
        self.spec.tables.iter().enumerate().map(|(place, spec)| ServedTable {
            id: TableId::new(if place == 0 { self.settings.cluster } else { spec.cluster as u16 }),
            spec,
            section: self.settings.section.clone(),
            prefix: self.settings.prefix.clone(),
            rows: self.rows,
            bpf_names: self.bpf_names,
            off: spec.options.iter().copied().filter(|option| self.off.contains(option)).collect(),
        })
    }
}

/// A table as it is served.
pub struct ServedTable {
    /// Its identifier in the collector.
    pub id: TableId,
    /// Its declaration.
    pub spec: &'static TableSpec,
    /// Section of its module; empty for the agent's own tables.
    pub section: String,
    /// Prefix of its metrics' names.
    pub prefix: String,
    /// Number of rows of a table of shape `Rows`; else 0.
    pub rows: u32,
    /// True if its metrics are also served under their second names.
    pub bpf_names: bool,
    /// Options that are off and without which it stays empty.
    pub off: Vec<&'static str>,
}

impl ServedTable {
    /// Returns the reason why it stays empty, with the lines to set, if it needs options that are off.
    pub fn why_off(&self) -> Option<String> {
        let set: Vec<String> = self.off.iter().map(|option| format!("{option} = True")).collect();
        let (set, section) = (set.join(" and "), &self.section);
        (!set.is_empty()).then(|| format!("off: set {set} in [{section}] of the configuration"))
    }

    /// Returns the name of its pair, if it is a pair's table.
    pub fn pair(&self) -> Option<&str> {
        self.section.strip_prefix("user.").filter(|_| self.is_of_the_site())
    }

    /// True for tables of pairs and scripts, which bring their own help texts.
    pub fn is_of_the_site(&self) -> bool {
        PAIR_CLUSTERS.contains(&(self.spec.cluster as u16))
    }

    /// Returns the complete names of its metrics, each with the column; a metric may have two names.
    pub fn names(&self) -> Vec<(String, usize)> {
        let mut names = Vec::new();
        for (column, metric) in self.spec.metrics.iter().enumerate() {
            names.push((format!("{}{}", self.prefix, metric.name), column));
            let also = metric.also.iter().filter(|_| self.bpf_names);
            names.extend(also.map(|name| (String::from(*name), column)));
        }
        names
    }
}

/// The modules that a configuration enables, as far as it can be read.
pub struct Enabled {
    /// The options of `[pmda]`.
    pub settings: Settings,
    /// The modules whose metrics have identifiers, in the order of the configuration.
    pub modules: Vec<EnabledModule>,
    /// Errors, except those in the modules' own options.
    pub faults: Vec<Fault>,
}

impl Enabled {
    /// Reads all settings and modules that can be read, and returns all errors.
    pub fn survey(config: &Config, specs: &[&'static Spec]) -> Enabled {
        let (settings, mut faults) = Settings::survey(config);
        let mut modules = Vec::new();
        for module in &settings.modules {
            match enabled_module(config, module, specs, &modules) {
                Ok(module) => modules.push(module),
                Err(error) => faults.push(Fault { cost: Cost::Module(module.section.clone()), error }),
            }
        }
        Enabled { settings, modules, faults }
    }
}

/// Returns the settings and modules of a configuration, or the first error that costs something.
pub fn enabled_modules(
    config: &Config,
    specs: &[&'static Spec],
) -> Result<(Settings, Vec<EnabledModule>), ConfigError> {
    let Enabled { settings, modules, faults } = Enabled::survey(config, specs);
    let costly = faults.into_iter().find(|fault| fault.cost != Cost::Nothing);
    costly.map_or(Ok((settings, modules)), |fault| Err(fault.error))
}

/// Returns a module with the options of its section. Fails if it conflicts with those enabled before it.
pub fn enabled_module(
    config: &Config,
    module: &ModuleSettings,
    specs: &[&'static Spec],
    others: &[EnabledModule],
) -> Result<EnabledModule, ConfigError> {
    let section = config.section(&module.section).ok_or_else(|| ConfigError::Missing {
        path: config.path().into(),
        reason: format!("module `{0}` is enabled but has no section; add [{0}]", module.section),
    })?;
    let spec = spec_of(section, module, specs)?;
    if let Some(twin) = others.iter().find(|other| other.spec.name == spec.name) {
        let reason =
            format!("module `{}` runs already as [{}]; remove one of them", spec.path(), twin.settings.section);
        return Err(section.reject("module", reason));
    }
    if module.pin.is_some() && spec.counts.is_empty() {
        let reason = format!(
            "expected False: what the maps of {} mean is known to the agent that made their rows only; the counts of {} can outlive it",
            spec.name,
            Spec::pinnable(specs)
        );
        return Err(section.reject("pin", reason));
    }
    let own = clusters_of(spec, module);
    for (cluster, table) in own.iter().copied() {
        let of = |other: &&EnabledModule| {
            clusters_of(other.spec, &other.settings).iter().any(|(taken, _)| *taken == cluster)
        };
        if let Some(other) = others.iter().find(of) {
            let (name, taker) = (table.metrics.first().map_or("", |metric| metric.name), &other.settings.section);
            let reason = format!(
                "{cluster}, the cluster of {}{name}, is a cluster of [{taker}] too; docs/new-module.md lists those that are taken",
                module.prefix
            );
            return Err(section.reject("cluster", reason));
        }
    }
    // Of a value that is none the module tells as it is made, and then has no instances.
    let count = spec.tables.iter().find_map(|table| match table.shape {
        Shape::Rows { count, .. } => Some(count),
        _ => None,
    });
    let rows = count.map_or(0, |count| match section.get(count) {
        Ok(Some(value)) => RowCount::nearest(&value).unwrap_or(0),
        _ => default_of(spec.options, count),
    });
    let has_bpf_names = spec.options.iter().any(|option| option.name == BPF_NAMES);
    let bpf_names = section.get(BPF_NAMES).ok().flatten().filter(|_| has_bpf_names);
    let bpf_names = bpf_names.is_some_and(|value| value.bool().unwrap_or(false));
    let is_off = |option: &&str| {
        let value = section.get(option).ok().flatten();
        value.is_none_or(|value| value.bool().is_ok_and(|is_on| !is_on))
    };
    let off = spec.tables.iter().flat_map(|table| table.options).copied().filter(is_off);
    Ok(EnabledModule { spec, settings: module.clone(), rows, bpf_names, off: off.collect() })
}

/// Returns the clusters of all tables. That of the first is the cluster of the section.
fn clusters_of(spec: &'static Spec, settings: &ModuleSettings) -> Vec<(u32, &'static TableSpec)> {
    let number = |(place, table): (usize, &&'static TableSpec)| match place {
        0 => (u32::from(settings.cluster), *table),
        _ => (table.cluster, *table),
    };
    spec.tables.iter().enumerate().map(number).collect()
}

/// Returns the declaration of a module by its option `module`.
pub fn spec_of(
    section: Section<'_>,
    module: &ModuleSettings,
    specs: &[&'static Spec],
) -> Result<&'static Spec, ConfigError> {
    specs.iter().copied().find(|spec| spec.is_named(&module.module)).ok_or_else(|| {
        let known: Vec<String> = specs.iter().map(|spec| spec.path()).collect();
        let meant = did_you_mean(module.kind(), specs.iter().map(|spec| spec.name));
        section
            .reject("module", format!("there is no module `{}`; there are {}{meant}", module.module, known.join(", ")))
    })
}

fn default_of(options: &[OptionDef], name: &str) -> u32 {
    options.iter().find(|option| option.name == name).and_then(|option| (option.default)().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::MODULES;

    #[test]
    fn no_two_tables_of_two_sections_have_one_cluster() {
        let runqlat = MODULES.iter().find(|spec| spec.name == "runqlat").unwrap();
        let second = runqlat.tables.iter().map(|table| table.cluster).find(|cluster| *cluster >= 400).unwrap();
        let text = |modules: &str| {
            format!(
                "[pmda]\nmodules = {modules}\n[sysfork]\nmodule = sysfork\ncluster = {second}\n\
                 [runqlat]\nmodule = runqlat\ncluster = {}\n",
                runqlat.cluster()
            )
        };
        for modules in ["sysfork, runqlat", "runqlat, sysfork"] {
            let config = Config::parse("f.conf", text(modules).as_bytes()).unwrap();
            let faults = Enabled::survey(&config, MODULES).faults;
            let other = modules.split(", ").next().unwrap();
            let said = faults.iter().map(|fault| fault.error.to_string()).collect::<Vec<_>>().join("\n");
            assert!(said.contains(&format!("is a cluster of [{other}] too")) && said.contains("f.conf:"), "{said}");
            assert!(matches!(faults[0].cost, Cost::Module(_)));
        }
    }
    #[test]
    fn an_option_that_is_off_is_named_once() {
        let text = "[pmda]\nmodules = runqlat\n[runqlat]\nmodule = runqlat\ncluster = 4\n";
        let config = Config::parse("f.conf", text.as_bytes()).unwrap();
        let modules = Enabled::survey(&config, MODULES).modules;
        let why: Vec<String> = modules[0].tables().filter_map(|table| table.why_off()).collect();
        assert!(
            why.iter().any(|why| why.starts_with("off: set per_cpu = True and prometheus = True in [runqlat]")),
            "{why:?}"
        );
        assert!(why.iter().any(|why| why.starts_with("off: set per_cpu = True in [runqlat]")), "{why:?}");
    }
}
