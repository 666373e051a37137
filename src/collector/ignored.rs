//! Parts of a configuration without effect: unknown options, sections of no module, and errors in sections of modules that are off.
//! They cost nothing, but whoever wrote them may have meant something else.

use super::prepared_module::make;
use crate::catalog::{spec_of, EnabledModule};
use crate::config::{
    did_you_mean, Config, ConfigError, ModuleSettings, Notes, ScriptSettings, Section, Settings, SCRIPTS,
};
use crate::kit::{unknown, Spec};
use std::collections::HashSet;

/// Sections that a misspelt name is compared with.
const COMPARED: usize = 1000;

/// Returns the parts of a configuration that have no effect if these modules are enabled. `failed` names the sections that are to be
/// enabled and cannot be; their errors are known already and only found again.
pub fn ignored(
    config: &Config,
    enabled: &[EnabledModule],
    failed: &HashSet<String>,
    specs: &[&'static Spec],
) -> Vec<ConfigError> {
    let mut ignored = Vec::new();
    ignored.extend(ScriptSettings::read(config).1);
    for section in config.sections().filter(|section| !["pmda", SCRIPTS].contains(&section.name())) {
        if let Some(module) = enabled.iter().find(|module| module.settings.section == section.name()) {
            ignored.extend(unknown_options(section, module.spec));
        } else if section.get("module").is_ok_and(|module| module.is_some()) {
            ignored.extend(of_module_that_is_off(config, section, specs));
        } else if !failed.contains(section.name()) {
            ignored.push(of_no_module(config, section, specs));
        }
    }
    ignored
}

fn of_no_module(config: &Config, section: Section<'_>, specs: &[&'static Spec]) -> ConfigError {
    let names = specs.iter().map(|spec| spec.name).chain(["pmda"]);
    let others = config.sections().take(COMPARED).map(|section| section.name());
    let meant = did_you_mean(section.name(), names.chain(others.filter(|name| *name != section.name())));
    section.error(format!("[{}] has no effect: it has no option `module`, and is not enabled{meant}", section.name()))
}

fn unknown_options(section: Section<'_>, spec: &Spec) -> Vec<ConfigError> {
    let names = || spec.options.iter().map(|option| option.name);
    let known: Vec<&str> = names().collect();
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    let error = |key: &str| {
        let meant = did_you_mean(key, names().chain(ModuleSettings::KEYS));
        let path = spec.path();
        section.reject(key, format!("no such option, it has no effect (module {path} has {known}){meant}"))
    };
    unknown(&section, spec.options).into_iter().map(error).collect()
}

/// Returns the errors in the section of a module that is off. An option that has to be added before the module can be enabled is no
/// error: samples lack it.
fn of_module_that_is_off(config: &Config, section: Section<'_>, specs: &[&'static Spec]) -> Vec<ConfigError> {
    let (settings, read) = ModuleSettings::read(section, "bcc.");
    let mut errors: Vec<ConfigError> = read.err().into_iter().collect();
    // Its options can be told also where its cluster is wrong.
    let settings = settings.or_else(|| ModuleSettings::named(section));
    match settings.map(|settings| spec_of(section, &settings, specs).map(|spec| (spec, settings))) {
        None => {}
        Some(Err(error)) => errors.push(error),
        Some(Ok((spec, settings))) => {
            errors.extend(unknown_options(section, spec));
            let module = EnabledModule { spec, settings, rows: 0, bpf_names: false, off: Vec::new() };
            let notes = Notes::default();
            let made = make(config, &module, &Settings::default(), &notes);
            errors.extend(made.err().into_iter().chain(notes.take_warnings()));
        }
    }
    let each = errors.into_iter().flat_map(ConfigError::into_each);
    each.filter(|error| !matches!(error, ConfigError::Required { .. })).collect()
}
