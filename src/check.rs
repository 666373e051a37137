//! `--check` and `--trycompile`: loads everything a configuration asks for, says what became of it, detaches.

use crate::catalog::EnabledModule;
use crate::cli::{configuration, print, CheckOptions, PrintError};
use crate::collector::{prepare, survey, ModuleSet, Prepared, CONFIGURATION};
use crate::config::{Config, ConfigError};
use crate::kit::unknown;
use crate::modules::MODULES;
use crate::pcpconf::PcpConf;
use std::fmt::Write;
use std::path::PathBuf;

/// What a check found.
pub struct Report {
    /// The table module, hook, kernel feature, result.
    pub table: String,
    /// Whether the configuration has no errors.
    pub is_right: bool,
    /// Whether, besides, every module was loaded.
    pub passed: bool,
    /// The targets that loaded modules go without though the configuration names them, each with its module.
    pub missing: Vec<String>,
    /// `module_failure_fatal`.
    pub fatal: bool,
}

/// Checks, prints the table, and yields the exit status.
pub fn run(options: &CheckOptions) -> Result<u8, PrintError> {
    if let Some(announcement) = &options.announcement {
        print(&format!("{announcement}\n"))?;
    }
    let (config, path) = configuration(&options.common, &PcpConf::load());
    let report = check(&config, &path, options.common.btf.clone());
    print(&report.table)?;
    let incomplete = options.strict && !report.missing.is_empty();
    if incomplete {
        log::error!("not attached to: {}", report.missing.join(", "));
    }
    Ok(u8::from(!report.is_right || incomplete || !report.passed && (options.strict || report.fatal)))
}

/// Logs the errors in a configuration, loads its modules as far as they are right, and detaches them.
pub fn check(config: &Result<Config, ConfigError>, path: &str, btf: Option<PathBuf>) -> Report {
    let Prepared { settings, enabled, modules, configuration } =
        prepare(config, path, survey(config, MODULES), MODULES);
    configuration.errors.iter().for_each(|error| log::error!("{error}"));
    if let Ok(config) = config {
        warn_of_unknown(config, &enabled);
    }
    let (is_right, fatal) = (configuration.errors.is_empty(), settings.module_failure_fatal);
    if configuration.halted {
        return Report { table: String::new(), is_right, passed: false, missing: Vec::new(), fatal };
    }
    let set = ModuleSet::load(modules, btf);
    set.log_outcomes();
    let mut rows = vec![["MODULE", "HOOK", "BY", "RESULT"].map(String::from)];
    let attached = set.attached();
    let mut missing = Vec::new();
    for ((instance, outcome), targets) in enabled.iter().zip(set.outcomes()).zip(set.missing_targets()) {
        let name = &instance.settings.section;
        for hook in instance.spec.hooks {
            let how = attached.iter().find(|(attached, _)| *attached == hook.name).map(|(_, kind)| *kind);
            for attempt in set.attempts.iter().filter(|attempt| attempt.hook == hook.name) {
                let result = match &attempt.result {
                    Err(refusal) => format!("refused: {}", refusal.last_words()),
                    Ok(()) if how == Some(attempt.kind) => "ok".into(),
                    Ok(()) => "loaded, attached when needed".into(),
                };
                rows.push([name.clone(), hook.name.into(), attempt.kind.into(), result]);
            }
        }
        for reach in set.reaches().iter().filter(|reach| reach.module == instance.spec.name) {
            let Ok(tier) = &reach.result else { continue };
            rows.push([name.clone(), reach.target.to_string(), tier.kind.into(), "ok".into()]);
        }
        for (target, reason) in targets {
            if outcome.is_ok() {
                missing.push(format!("{name}: {target}"));
            }
            rows.push([name.clone(), target, "-".into(), format!("left out: {reason}")]);
        }
        if let Err(failure) = outcome {
            rows.push([name.clone(), failure.hook.into(), "-".into(), format!("FAILED: {}", failure.reason)]);
        }
    }
    for (name, why) in &configuration.lost {
        rows.push([name.clone(), CONFIGURATION.into(), "-".into(), format!("FAILED: {why}")]);
    }
    let passed = is_right && set.outcomes().iter().all(Result::is_ok);
    set.detach();
    Report { table: columns(&rows), is_right, passed, missing, fatal }
}

/// Options that no module has are passed over, as ever, but not in silence.
pub fn warn_of_unknown(config: &Config, modules: &[EnabledModule]) {
    for instance in modules {
        let Some(section) = config.section(&instance.settings.section) else { continue };
        if let Some((_, line)) = section.keys().find(|(key, _)| *key == "pmda_indom_cache") {
            log::info!(
                "{}:{line}: [{}] pmda_indom_cache has no effect: identifiers are process ids or kept over restarts",
                config.path(),
                section.name()
            );
        }
        for (key, line) in unknown(&section, instance.spec.options) {
            let known: Vec<&str> = instance.spec.options.iter().map(|option| option.name).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            log::warn!(
                "{}:{line}: [{}] {key}: no such option, it has no effect (module {} has {known})",
                config.path(),
                section.name(),
                instance.spec.path()
            );
        }
    }
}

fn columns(rows: &[[String; 4]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut table = String::new();
    for [module, hook, by, result] in rows {
        let _ = writeln!(table, "{module:0$}  {hook:1$}  {by:2$}  {result}", widths[0], widths[1], widths[2]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 4]| cells.map(String::from);
        let table = columns(&[row(["A", "HOOK", "BY", "R"]), row(["module", "h", "tp_btf", "ok"])]);
        assert_eq!(table, "A       HOOK  BY      R\nmodule  h     tp_btf  ok\n");
    }
}
