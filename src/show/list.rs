//! `--list`: the modules and their metrics, without loading anything.

use super::choose::{enabled_by, every};
use super::error::ShowError;
use super::reading::unit;
use super::select::{did_you_mean, means};
use crate::catalog::EnabledModule;
use crate::cli::{built_in, ShowOptions};
use crate::config::Config;
use crate::kit::{Shape, SERIES_METRICS};
use std::fmt::Write;

/// The list of all modules, or of those that names mean.
pub fn list(options: &ShowOptions, width: Option<usize>) -> Result<String, ShowError> {
    let every = every()?;
    let config = options.common.config.as_deref().map_or_else(built_in, Config::read)?;
    let (settings, enabled) = enabled_by(&config)?;
    let prefix = settings.prefix;
    let (_, mut all) = enabled_by(&every)?;
    all.iter_mut().for_each(|module| module.settings.prefix.clone_from(&prefix));
    all.sort_by_key(|module| module.spec.name);
    for name in &options.names {
        if !all.iter().any(|module| means(module, name)) {
            let near = did_you_mean(name, all.iter().map(|module| module.spec.name));
            return Err(ShowError::NoMetric { name: name.clone(), near });
        }
    }
    all.retain(|module| options.names.is_empty() || options.names.iter().any(|name| means(module, name)));
    let mut out = String::new();
    for module in &all {
        let section = enabled.iter().find(|other| other.spec.name == module.spec.name);
        out += &entry(section.unwrap_or(module), section.is_some(), width.unwrap_or(usize::MAX));
    }
    let _ = writeln!(
        out,
        "\nenabled: in {path}.\nWhether this kernel can run a module is known once it is loaded: `{program} show MODULE 1 1` (as root) says \
         what the kernel refuses,\n`{program} --check` tries all that are enabled.",
        path = config.path(),
        program = options.common.program
    );
    Ok(out)
}

/// A line for a module and one for each metric.
fn entry(module: &EnabledModule, is_enabled: bool, width: usize) -> String {
    let state = if is_enabled { "enabled" } else { "-" };
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{}", text.chars().take(width).collect::<String>().trim_end());
    };
    line(format!("{:<16}  {state:<7}  {}", module.spec.name, module.spec.summary));
    for table in module.tables() {
        if matches!(table.spec.shape, Shape::Buckets { .. }) {
            continue; // named with the others of its histograms
        }
        for histogram in table.spec.histograms {
            let what = format!("{}, {}", histogram.events, histogram.time);
            line(format!("    {:<36}  {what}", format!("{}{}.*", table.prefix, histogram.name)));
        }
        for metric in table.spec.metrics.iter().skip(SERIES_METRICS.len() * table.spec.histograms.len()) {
            let unit = unit(metric.units, None);
            let unit = if unit.is_empty() { String::new() } else { format!(" [{unit}]") };
            line(format!("    {:<36}  {}{unit}", format!("{}{}", table.prefix, metric.name), metric.oneline));
        }
    }
    out
}
