//! Which modules a configuration enables, and everything about each but the module itself.

use crate::config::{Config, ConfigError, Cost, Fault, ModuleSettings, Settings};
use crate::kit::{OptionDef, RowCount, Shape, Spec, BPF_NAMES};

/// A module as configured; with an empty section, metrics about the agent itself.
pub struct Instance {
    /// Its kind.
    pub spec: &'static Spec,
    /// Its section.
    pub settings: ModuleSettings,
    /// Rows of a row table; else 0.
    pub rows: u32,
    /// Whether its metrics have their second names.
    pub bpf_names: bool,
}

/// What a configuration enables, as far as it can be made out.
pub struct Enabled {
    /// The options of `[pmda]`.
    pub settings: Settings,
    /// The modules whose metrics have identifiers, in the order of the configuration.
    pub instances: Vec<Instance>,
    /// What is wrong, but for the modules' own options.
    pub faults: Vec<Fault>,
}

impl Enabled {
    /// Reads as much as can be made out, and tells everything that is wrong.
    pub fn survey(config: &Config, specs: &[&'static Spec]) -> Enabled {
        let (settings, mut faults) = Settings::survey(config);
        let mut instances = Vec::new();
        for module in &settings.modules {
            match instance(config, module, specs, &instances) {
                Ok(instance) => instances.push(instance),
                Err(error) => faults.push(Fault { cost: Cost::Module(module.section.clone()), error }),
            }
        }
        Enabled { settings, instances, faults }
    }
}

/// What a configuration enables; the first error is the result.
pub fn instances(config: &Config, specs: &[&'static Spec]) -> Result<(Settings, Vec<Instance>), ConfigError> {
    let Enabled { settings, instances, faults } = Enabled::survey(config, specs);
    faults.into_iter().next().map_or(Ok((settings, instances)), |fault| Err(fault.error))
}

/// A module as its section configures it, besides those that are enabled before it.
pub fn instance(
    config: &Config,
    module: &ModuleSettings,
    specs: &[&'static Spec],
    others: &[Instance],
) -> Result<Instance, ConfigError> {
    let section = config.section(&module.section).ok_or_else(|| ConfigError::Missing {
        path: config.path().into(),
        reason: format!("module `{0}` is enabled but has no section; add [{0}]", module.section),
    })?;
    let Some(spec) = specs.iter().find(|spec| spec.path == module.module || spec.name == module.module) else {
        let known: Vec<&str> = specs.iter().map(|spec| spec.path).collect();
        let reason = format!("there is no module `{}`; there are {}", module.module, known.join(", "));
        return Err(section.reject("module", reason));
    };
    if let Some(twin) = others.iter().find(|other| other.spec.name == spec.name) {
        let reason = format!("module `{}` runs already as [{}]; remove one of them", spec.path, twin.settings.section);
        return Err(section.reject("module", reason));
    }
    // Of a value that is none the module tells as it is made, and then has no instances.
    let rows = match spec.shape {
        Shape::Rows { count, .. } => match section.get(count) {
            Ok(Some(value)) => RowCount::nearest(&value).unwrap_or(0),
            _ => default_of(spec.options, count),
        },
        _ => 0,
    };
    let has_bpf_names = spec.options.iter().any(|option| option.name == BPF_NAMES);
    let bpf_names = section.get(BPF_NAMES).ok().flatten().filter(|_| has_bpf_names);
    let bpf_names = bpf_names.is_some_and(|value| value.bool().unwrap_or(false));
    Ok(Instance { spec, settings: module.clone(), rows, bpf_names })
}

/// What these modules add to their metrics, for the registry and whoever else knows tables by their numbers: to be put behind
/// the modules.
pub fn additions(instances: &[Instance]) -> Vec<Instance> {
    let addition = |instance: &Instance| {
        let spec = instance.spec.addition?;
        let settings = ModuleSettings { cluster: spec.cluster as u16, ..instance.settings.clone() };
        Some(Instance { spec, settings, rows: 0, bpf_names: false })
    };
    instances.iter().filter_map(addition).collect()
}

fn default_of(options: &[OptionDef], name: &str) -> u32 {
    options.iter().find(|option| option.name == name).and_then(|option| (option.default)().parse().ok()).unwrap_or(0)
}
