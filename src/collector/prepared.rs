//! From a configuration to modules that can be loaded. No configuration keeps the agent from starting; errors are reported with their
//! costs.

use super::ignored::ignored;
use super::loaded_module::CONFIGURATION;
use super::prepared_module::{make, PreparedModule, PreparedModules};
use crate::catalog::{enabled_module, Enabled, EnabledModule};
use crate::config::{Config, ConfigError, Cost, Fault, ModuleSettings, Notes, Settings};
use crate::kit::{MetricDef, Spec};
use crate::loader::Failure;
use log::Level;
use std::collections::HashSet;

/// A configuration that was read, with its modules.
pub struct Prepared {
    /// The options of `[pmda]`.
    pub settings: Settings,
    /// The modules whose metrics have identifiers; some of them fail.
    pub enabled: Vec<EnabledModule>,
    /// The same modules, ready to be loaded.
    pub modules: PreparedModules,
    /// The agent's report on the configuration.
    pub configuration: Configuration,
}

/// The agent's report on its configuration.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// All errors, a sentence each, in the order of the file; warnings are errors that cost nothing.
    pub errors: Vec<(Level, String)>,
    /// True if errors keep all modules from being loaded.
    pub halted: bool,
    /// The number of errors, in a sentence.
    pub summary: String,
    /// The number of errors and the errors, in a sentence.
    pub status: String,
    /// Entries of `modules` that make no module with metrics, each with the reason.
    pub lost: Vec<(String, String)>,
    /// Modules that were stopped, each with the way to start it.
    pub stopped: Vec<(String, String)>,
    /// Modules that are not enabled, each with the way to enable it.
    pub off: Vec<(String, String)>,
    /// Metrics of the modules in `lost` and `off`.
    pub unserved: Vec<Unserved>,
}

/// A metric that is not served.
#[derive(Clone, Debug)]
pub struct Unserved {
    /// The complete name that it would have if it were served.
    pub name: String,
    /// The state of its module: `failed` or `off`.
    pub state: &'static str,
    /// The error, or the lines to write to have the metric.
    pub why: String,
}

impl Configuration {
    /// True if an error costs a module or an option.
    pub fn is_costly(&self) -> bool {
        self.errors.iter().any(|(level, _)| *level == Level::Error)
    }

    /// Logs the errors.
    pub fn log_errors(&self) {
        self.errors.iter().for_each(|(level, error)| log::log!(*level, "{error}"));
    }
}

/// Returns the modules that a configuration enables: none, if it could not be read.
pub fn survey(config: &Result<Config, ConfigError>, specs: &'static [&'static Spec]) -> Enabled {
    match config {
        Ok(config) => Enabled::survey(config, specs),
        Err(_) => Enabled { settings: Settings::default(), modules: Vec::new(), faults: Vec::new() },
    }
}

/// Makes the modules that a configuration enables. `path` is the file's name in sentences.
pub fn prepare(
    config: &Result<Config, ConfigError>,
    path: &str,
    enabled: Enabled,
    specs: &'static [&'static Spec],
) -> Prepared {
    let Enabled { settings, modules: enabled, mut faults } = enabled;
    let mut modules = Vec::new();
    if let Ok(config) = config {
        for module in &enabled {
            let cost = Cost::Module(module.settings.section.clone());
            let notes = Notes::default();
            let made = make(config, module, &settings, &notes);
            faults.extend(notes.take_warnings().into_iter().map(|error| Fault { cost: Cost::Nothing, error }));
            let module = made.map_err(|error| faults.extend(Fault::each(&cost, error))).ok();
            modules.push((cost, module, notes));
        }
        let failed = faults.iter().filter_map(|fault| match &fault.cost {
            Cost::Module(name) => Some(name.clone()),
            _ => None,
        });
        let failed: HashSet<String> = failed.collect();
        let ignored = ignored(config, &enabled, &failed, specs);
        faults.extend(ignored.into_iter().map(|error| Fault { cost: Cost::Nothing, error }));
        let mut told = HashSet::new();
        faults.retain(|fault| told.insert(fault.error.to_string()));
        faults.sort_by_cached_key(|fault| config.position(&fault.error));
    }

    let level = |fault: &Fault| if fault.cost == Cost::Nothing { Level::Warn } else { Level::Error };
    let mut errors: Vec<(Level, String)> = faults.iter().map(|fault| (level(fault), fault.error.to_string())).collect();
    if let Err(error) = config {
        errors = error.each().iter().map(|error| (Level::Error, error.to_string())).collect();
    }
    let sentences: Vec<&str> = errors.iter().map(|(_, error)| error.as_str()).collect();
    let sentences = sentences.join("; ");
    let halt = halt(config, &settings, &faults);
    let why = |cost: &Cost| halt.clone().or_else(|| sentence(&faults, cost));
    let lost = lost(&faults, &enabled, halt.as_deref());
    let off = specs.iter().filter(|spec| !enabled.iter().any(|module| module.spec.name == spec.name));
    let meant = |name: &str| meant(config, name, specs);
    let is_lost = |spec: &Spec| lost.iter().any(|(name, _)| meant(name).is_some_and(|known| known.name == spec.name));
    let off = off.filter(|spec| !is_lost(spec)).map(|spec| {
        let how = match (config, &halt) {
            (Ok(config), None) => how_to_enable(config, spec, &settings, &enabled),
            _ => format!("not enabled; first put right what is wrong in {path}: {sentences}"),
        };
        (*spec, how)
    });
    let summary = summary(path, errors.len(), halt.is_some(), enabled.len());
    let off: Vec<(&'static Spec, String)> = off.collect();
    let unserved = |state, spec: &'static Spec, why: &str| {
        let name = |metric: &MetricDef| format!("{}{}", settings.prefix, metric.name);
        spec.metrics().map(|metric| Unserved { name: name(metric), state, why: why.to_owned() }).collect::<Vec<_>>()
    };
    let failed = lost.iter().filter_map(|(name, why)| Some(unserved("failed", meant(name)?, why)));
    let unserved = failed.chain(off.iter().map(|(spec, how)| unserved("off", spec, how))).flatten().collect();
    let configuration = Configuration {
        status: if errors.is_empty() { summary.clone() } else { format!("{summary}: {sentences}") },
        summary,
        halted: halt.is_some(),
        stopped: Vec::new(),
        off: off.into_iter().map(|(spec, how)| (spec.name.to_owned(), how)).collect(),
        unserved,
        lost,
        errors,
    };
    let modules = enabled.iter().zip(modules).map(|(enabled, (cost, module, notes))| {
        let module = match (why(&cost), module) {
            (None, Some(module)) => Ok(module),
            (why, _) => Err(Failure { hook: CONFIGURATION, reason: why.unwrap_or_default(), ..Failure::default() }),
        };
        PreparedModule::new(enabled, module, notes)
    });
    let (modules, process_refresh) = (modules.collect(), settings.process_refresh);
    let modules = PreparedModules { modules, process_refresh, stoppable: false, of_the_site: false };
    Prepared { settings, enabled, modules, configuration }
}

/// Returns the reason why no module may be loaded, if there is one.
fn halt(config: &Result<Config, ConfigError>, settings: &Settings, faults: &[Fault]) -> Option<String> {
    let first = match config {
        Err(error) => return Some(format!("not loaded: {error}")),
        Ok(_) => faults.iter().find(|fault| fault.cost != Cost::Nothing)?,
    };
    if let Some(fault) = faults.iter().find(|fault| fault.cost == Cost::All) {
        return Some(format!("not loaded: {}", fault.error));
    }
    settings.module_failure_fatal.then(|| {
        format!(
            "not loaded: with `module_failure_fatal = True` (the default) in [pmda] an error in the configuration costs every \
             module: {}",
            first.error
        )
    })
}

/// Joins the errors of a cost (a module, or all) to a sentence.
fn sentence(faults: &[Fault], cost: &Cost) -> Option<String> {
    let own: Vec<String> =
        faults.iter().filter(|fault| fault.cost == *cost).map(|fault| fault.error.to_string()).collect();
    (!own.is_empty()).then(|| own.join("; "))
}

/// Returns the entries of `modules` that make no module with metrics, each with the reason.
fn lost(faults: &[Fault], modules: &[EnabledModule], halt: Option<&str>) -> Vec<(String, String)> {
    let mut lost: Vec<(String, String)> = Vec::new();
    for fault in faults {
        let Cost::Module(name) = &fault.cost else { continue };
        let is_served = modules.iter().any(|module| module.settings.section == *name);
        if !is_served && !lost.iter().any(|(other, _)| other == name) {
            let own = sentence(faults, &fault.cost).unwrap_or_default();
            lost.push((name.clone(), halt.map_or(own.clone(), |halt| format!("{own}; {halt}"))));
        }
    }
    lost
}

/// Returns the kind of module that an entry of `modules` names.
fn meant(config: &Result<Config, ConfigError>, entry: &str, specs: &[&'static Spec]) -> Option<&'static Spec> {
    let section = config.as_ref().ok().and_then(|config| config.section(entry));
    let module = section.and_then(|section| section.get("module").ok().flatten());
    let module = module.map_or(entry.to_owned(), |module| module.text().to_owned());
    specs.iter().find(|spec| spec.is_named(&module)).copied()
}

fn summary(path: &str, errors: usize, halted: bool, enabled: usize) -> String {
    let number = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    match errors {
        0 => format!("{path}: no errors, {} enabled", number(enabled, "module")),
        _ => number(errors, "error") + if halted { ", no module runs" } else { "" },
    }
}

/// Describes what to write to enable a module, fitting this configuration file.
fn how_to_enable(config: &Config, spec: &'static Spec, settings: &Settings, modules: &[EnabledModule]) -> String {
    let path = config.path();
    let means = |module: &str| spec.is_named(module);
    let section = config.sections().find(|section| match section.get("module") {
        Ok(Some(module)) => means(module.text()),
        _ => means(section.name()),
    });
    let Some(section) = section else {
        let taken = |cluster: u32| modules.iter().any(|other| u32::from(other.settings.cluster) == cluster);
        let cluster = std::iter::once(spec.cluster()).chain(200..).find(|&cluster| !taken(cluster));
        let mut lines = format!("`module = {}`, `cluster = {}`", spec.path(), cluster.unwrap_or(spec.cluster()));
        for (name, example) in spec.options.iter().filter_map(|option| Some((option.name, option.example?))) {
            lines += &format!(", `{name} = {example}`");
        }
        return format!(
            "not enabled; to have it, add {0} to `modules` in [pmda] of {path} and a section [{0}] with the lines {lines}",
            spec.name
        );
    };
    let how = match section.get("enabled") {
        Ok(Some(switch)) => {
            format!("not enabled; to have it, write `enabled = True` in line {} of {}", switch.line(), switch.path())
        }
        _ => format!("not enabled; to have it, add {} to `modules` in [pmda] of {path}", section.name()),
    };
    let (module, read) = ModuleSettings::read(section, &settings.prefix);
    let mut errors: Vec<ConfigError> = read.err().into_iter().collect();
    if let Some(module) = module {
        let alone = module.stands_alone(section, &settings.modules);
        let made = alone.and_then(|()| enabled_module(config, &module, &[spec], modules));
        errors.extend(made.and_then(|module| make(config, &module, settings, &Notes::default()).map(drop)).err());
    }
    match errors.is_empty() {
        true => how,
        false => {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            format!("{how}, and put this right in it: {}", errors.join("; "))
        }
    }
}
