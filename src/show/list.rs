//! `--list`: all modules and their metrics, and the reasons why this kernel cannot load some.

use super::choose::{enabled_by, every};
use super::error::ShowError;
use super::reading::unit;
use super::select::{did_you_mean, means};
use crate::catalog::EnabledModule;
use crate::cli::{built_in, read_config, ShowOptions};
use crate::collector::{prepared_modules, Engine};
use crate::config::Settings;
use crate::kit::{excerpt, Shape, SERIES_METRICS};
use caps::{has_cap, CapSet, Capability};
use log::LevelFilter;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// The modules that were tried; those that cannot be loaded with the reason.
pub type Trial = BTreeMap<&'static str, Option<String>>;

/// Loads modules with the options of their examples, and detaches them.
pub fn try_to_load(modules: &[EnabledModule], btf: Option<PathBuf>) -> Result<Trial, ShowError> {
    // The list has the reasons; the log at a level for debugging has the attempts.
    let level = log::max_level();
    log::set_max_level(if level < LevelFilter::Debug { LevelFilter::Off } else { level });
    let set = Engine::load(prepared_modules(&every()?, modules, &Settings::default())?, btf);
    let outcomes = set.outcomes().into_iter().map(|outcome| outcome.err().map(|failure| failure.reason));
    let trial = modules.iter().map(|module| module.spec.name).zip(outcomes).collect();
    set.detach();
    log::set_max_level(level);
    Ok(trial)
}

/// Returns the reason why no module can be loaded: a missing privilege, or something that every module needs. For a single module the
/// reason is its own, unless the process lacks the privilege (`may_load` is false).
fn common_reason(trial: &Trial, may_load: bool) -> Option<&str> {
    let reasons: Vec<&String> = trial.values().map(Option::as_ref).collect::<Option<_>>()?;
    // A module without its files does not get as far as the others.
    let least = if may_load { reasons.len().max(2) / 2 } else { reasons.len() / 2 };
    let is_common = |reason: &&&String| reasons.iter().filter(|other| other == reason).count() > least;
    reasons.iter().find(is_common).map(|reason| reason.as_str())
}

/// True if this process has a capability to load programs.
fn may_load() -> bool {
    [Capability::CAP_BPF, Capability::CAP_SYS_ADMIN]
        .into_iter()
        .any(|capability| has_cap(None, CapSet::Effective, capability).unwrap_or(true))
}

/// Returns the list of all modules, or of those that the names mean; `load` tries to load them.
pub fn list(
    options: &ShowOptions,
    width: Option<usize>,
    load: impl FnOnce(&[EnabledModule]) -> Result<Trial, ShowError>,
) -> Result<String, ShowError> {
    let every = every()?;
    let config = options.common.config.as_deref().map_or_else(built_in, read_config)?;
    let (settings, enabled) = enabled_by(&config)?;
    let prefix = settings.prefix;
    let (_, mut all) = enabled_by(&every)?;
    let is_listed =
        |module: &EnabledModule| options.names.is_empty() || options.names.iter().any(|name| means(module, name));
    all.iter_mut().for_each(|module| module.settings.prefix.clone_from(&prefix));
    all.sort_by_key(|module| module.spec.name);
    for name in &options.names {
        if !all.iter().any(|module| means(module, name)) {
            let near = did_you_mean(name, all.iter().map(|module| module.spec.name));
            return Err(ShowError::NoMetric { name: excerpt(name), near });
        }
    }
    all.retain(is_listed);
    let trial = load(&all)?;
    let reason = common_reason(&trial, may_load());
    let mut out = String::new();
    for module in &all {
        let section = enabled.iter().find(|other| other.spec.name == module.spec.name);
        let outcome = trial.get(module.spec.name).filter(|_| reason.is_none());
        out += &entry(section.unwrap_or(module), section.is_some(), outcome, width.unwrap_or(usize::MAX));
    }
    let _ = writeln!(out, "\nenabled: in {}", config.path());
    let _ = match reason {
        None => writeln!(
            out,
            "loads, fails: as tried with default options just now; `{} --check` tries enabled modules as configured",
            options.common.program
        ),
        Some(reason) => writeln!(out, "what this kernel can load is not known: {reason}"),
    };
    Ok(out)
}

/// Formats a module: a line for it, one for each metric, and the complete reason if it cannot be loaded.
fn entry(module: &EnabledModule, is_enabled: bool, outcome: Option<&Option<String>>, width: usize) -> String {
    let state = if is_enabled { "enabled" } else { "-" };
    let mark = outcome.map_or("", |outcome| if outcome.is_none() { "loads    " } else { "fails    " });
    let mut out = String::new();
    let mut line = |text: String, unit: &str| {
        let _ = writeln!(out, "{}", fitted(&text, unit, width));
    };
    line(format!("{:<16}  {state:<7}  {mark}{}", module.spec.name, module.spec.summary), "");
    for table in module.tables() {
        if matches!(table.spec.shape, Shape::Buckets { .. } | Shape::Seconds { .. }) {
            continue; // named with the others of its histograms
        }
        for histogram in table.spec.histograms {
            let what = format!("{}, {}", histogram.events, histogram.time);
            line(format!("    {:<36}  {what}", format!("{}{}.*", table.prefix, histogram.name)), "");
        }
        for metric in table.spec.metrics.iter().skip(SERIES_METRICS.len() * table.spec.histograms.len()) {
            let unit = unit(metric.units, None);
            let unit = if unit.is_empty() { String::new() } else { format!(" [{unit}]") };
            line(format!("    {:<36}  {}", format!("{}{}", table.prefix, metric.name), metric.oneline), &unit);
        }
    }
    if let Some(Some(reason)) = outcome {
        let _ = writeln!(out, "    fails: {reason}");
    }
    out
}

/// Fits a text and its unit into a width. The text is cut, the unit never.
fn fitted(text: &str, unit: &str, width: usize) -> String {
    const CUT: &str = "...";
    if text.chars().count() + unit.len() <= width {
        return format!("{text}{unit}");
    }
    let kept: String = text.chars().take(width.saturating_sub(unit.len() + CUT.len())).collect();
    format!("{}{CUT}{unit}", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_most_modules_is_told_once() {
        let trial = |reasons: &[Option<&str>]| -> Trial {
            ["a", "b", "c"].into_iter().zip(reasons.iter().map(|reason| reason.map(str::to_owned))).collect()
        };
        let common = |reasons: &[Option<&str>]| common_reason(&trial(reasons), true).map(str::to_owned);
        assert_eq!(common(&[Some("file"), Some("root"), Some("root")]).as_deref(), Some("root"));
        assert_eq!(common(&[None, Some("root"), Some("root")]), None);
        assert_eq!(common(&[Some("ext4"), Some("xfs"), Some("zfs")]), None);
        assert_eq!(common(&[Some("ext4")]), None);
        assert_eq!(common(&[]), None);
        let alone = trial(&[Some("root")]);
        assert_eq!((common_reason(&alone, false), common_reason(&alone, true)), (Some("root"), None));
    }

    #[test]
    fn a_unit_is_never_cut_off() {
        assert_eq!(fitted("bytes received", " [B]", 18), "bytes received [B]");
        assert_eq!(fitted("bytes received", " [B]", 17), "bytes rece... [B]");
        assert_eq!(fitted("bytes received", "", 8), "bytes...");
    }
}
