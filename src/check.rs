//! `--check`, `--check-syntax` and `--trycompile`: what is wrong with a configuration; then its modules are loaded, and detached again.

use crate::catalog::EnabledModule;
use crate::cli::{configuration, print, CheckOptions, PrintError};
use crate::collector::{prepare, survey, Configuration, ModuleSet, Prepared, PreparedModules, CONFIGURATION};
use crate::config::Config;
use crate::logging::Target;
use crate::modules::MODULES;
use crate::pcpconf::PcpConf;
use std::fmt::Write;
use std::path::PathBuf;

/// What became of the modules.
struct Loaded {
    /// The table module, hook, kernel feature, result.
    table: String,
    /// Whether every module was loaded.
    passed: bool,
    /// The targets that loaded modules go without though the configuration names them, each with its module.
    missing: Vec<String>,
}

/// Checks, prints what came of it, and yields the exit status.
pub fn run(options: &CheckOptions) -> Result<u8, PrintError> {
    if let Some(announcement) = &options.announcement {
        print(&format!("{announcement}\n"))?;
    }
    let common = &options.common;
    let (config, path) = configuration(common, &PcpConf::load());
    let Prepared { settings, enabled, modules, configuration } =
        prepare(&config, &path, survey(&config, MODULES), MODULES);
    configuration.log_errors();
    if let Ok(config) = &config {
        note_without_effect(config, &enabled);
    }
    let is_right = if options.strict { configuration.errors.is_empty() } else { !configuration.is_costly() };
    if configuration.halted || !options.load {
        print(&format!("{}\n", configuration.summary))?;
        return Ok(u8::from(!is_right));
    }
    // Somebody at a terminal has the reasons in lines of their own, and does not need them in the table again.
    let brief = common.log == Target::Terminal;
    let Loaded { table, passed, missing } = load(modules, &enabled, &configuration, common.btf.clone(), brief);
    print(&table)?;
    let is_incomplete = options.strict && !missing.is_empty();
    if is_incomplete && !brief {
        log::error!("not attached to: {}", missing.join(", "));
    }
    let has_failed = !passed && (options.strict || settings.module_failure_fatal);
    Ok(u8::from(!is_right || is_incomplete || has_failed))
}

/// Loads modules as far as they are right, and detaches them.
fn load(
    modules: PreparedModules,
    enabled: &[EnabledModule],
    configuration: &Configuration,
    btf: Option<PathBuf>,
    brief: bool,
) -> Loaded {
    let because = |what: &str, reason: &dyn std::fmt::Display| match brief {
        true => what.to_owned(),
        false => format!("{what}: {reason}"),
    };
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
            rows.push([name.clone(), target, "-".into(), because("left out", &reason)]);
        }
        if let Err(failure) = outcome {
            rows.push([name.clone(), failure.hook.into(), "-".into(), because("FAILED", &failure.reason)]);
        }
    }
    for (name, why) in &configuration.lost {
        rows.push([name.clone(), CONFIGURATION.into(), "-".into(), because("FAILED", why)]);
    }
    let passed = configuration.lost.is_empty() && set.outcomes().iter().all(Result::is_ok);
    set.detach();
    Loaded { table: columns(&rows), passed, missing }
}

/// Logs what every module has for compatibility only.
pub fn note_without_effect(config: &Config, modules: &[EnabledModule]) {
    for module in modules {
        let value =
            config.section(&module.settings.section).and_then(|section| section.get("pmda_indom_cache").ok()?);
        if let Some(value) = value {
            log::info!(
                "{}:{}: [{}] pmda_indom_cache has no effect: identifiers are process ids or kept over restarts",
                value.path(),
                value.line(),
                module.settings.section
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
