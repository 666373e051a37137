//! `--check`, `--check-syntax` and `--trycompile`: reports the errors of a configuration, and loads and detaches its modules.

use crate::catalog::EnabledModule;
use crate::cli::{
    configuration, print, programs, read_config, scripts, usual_config, CheckOptions, CommonOptions, PrintError,
};
use crate::collector::{
    foreign_pins, prepare, survey, Attempt, Configuration, Engine, Prepared, PreparedModules, CONFIGURATION,
};
use crate::config::{Config, ScriptSettings, Settings};
use crate::kit::{show_arguments, PairStatus};
use crate::logging::Target;
use crate::modules::MODULES;
use crate::pcpconf::PcpConf;
use crate::script;
use crate::user::{pair_alone, pairs_of, read_directory, read_file, PairModule, PairOptions};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};

/// The result of loading the modules.
struct Loaded {
    /// The table with module, hook, kernel feature and result.
    table: String,
    /// True if every module was loaded.
    passed: bool,
    /// Configured targets that loaded modules lack, each with its module.
    missing: Vec<String>,
}

/// Exit status for a single file that was checked but not loaded or run.
const NOT_TRIED: u8 = 2;

/// Checks, prints the result, and returns the exit status.
pub fn run(options: &CheckOptions) -> Result<u8, PrintError> {
    if let Some(announcement) = &options.announcement {
        print(&format!("{announcement}\n"))?;
    }
    let common = &options.common;
    let conf = PcpConf::load();
    if let Some(file) = common.config.as_ref().filter(|file| file.extension().is_some_and(|end| end == "yaml")) {
        // The configuration that the agent would read: beside the directory of pairs, else that of the system.
        let beside = file.parent().map(|directory| directory.join("../corebcc.conf")).filter(|beside| beside.is_file());
        let (config, _) = configuration(&CommonOptions { config: beside, ..common.clone() }, &conf);
        let settings = config.as_ref().map(|config| Settings::survey(config).0).unwrap_or_default();
        let pair_options = PairOptions { btf: common.btf.clone(), allow_helpers: settings.allow_helpers };
        return check_pair(file, &pair_options, options.load, copy_to(file, "programs.d", &conf).as_deref());
    }
    if let Some(file) = common.config.as_ref().filter(|file| file.extension().is_some_and(|end| end == "bt")) {
        // The section says where bpftrace is: beside the directory of scripts, else in the system's configuration.
        let beside = file.parent().map(|directory| directory.join("../corebcc.conf")).filter(|beside| beside.is_file());
        let path = beside.or_else(|| usual_config(&conf).ok());
        let config = path.and_then(|path| read_config(&path).ok());
        let settings = config.and_then(|config| ScriptSettings::read(&config).0).unwrap_or_default();
        return check_script(file, &settings, options.load, copy_to(file, "scripts.d", &conf).as_deref());
    }
    let (config, path) = configuration(common, &conf);
    let Prepared { settings, mut enabled, modules, configuration } =
        prepare(&config, &path, survey(&config, MODULES), MODULES);
    show_arguments(settings.show_arguments);
    configuration.log_errors();
    let state = conf.path("PCP_VAR_DIR", "config/pmda");
    foreign_pins(common.domain, &state).iter().for_each(|foreign| log::warn!("{foreign}"));
    let pair_options = PairOptions { btf: common.btf.clone(), allow_helpers: settings.allow_helpers.clone() };
    let (mut wrong_pairs, mut of_pairs) = (false, Vec::new());
    for (module, mut pair) in
        pairs_of(read_directory(&programs(common, &conf)), &pair_options, &settings.prefix, None, &[], &BTreeMap::new())
    {
        if !options.load || configuration.halted {
            pair.check();
            wrong_pairs |= tell(&pair);
        }
        of_pairs.push(PreparedModules::alone(&module, Box::new(pair)));
        enabled.push(module);
    }
    let mut wrong_scripts = false;
    if let Ok(config) = &config {
        note_without_effect(config, &enabled);
        wrong_scripts = check_scripts(config, &scripts(common, &conf), options.load && !configuration.halted)?;
    }
    let is_right = if options.strict { configuration.errors.is_empty() } else { !configuration.is_costly() };
    if configuration.halted || !options.load {
        print(&format!("{}\n", configuration.summary))?;
        return Ok(u8::from(!is_right || (options.strict && (wrong_pairs || wrong_scripts))));
    }
    // Somebody at a terminal has the reasons in lines of their own, and does not need them in the table again.
    let brief = common.log == Target::Terminal;
    let modules = modules.stoppable(settings.loads_later(&programs(common, &conf)));
    let Loaded { table, passed, missing } =
        load(modules, of_pairs, &enabled, &configuration, common.btf.clone(), brief, options.verbose);
    print(&table)?;
    let is_incomplete = options.strict && !missing.is_empty();
    if is_incomplete && !brief {
        log::error!("not attached to: {}", missing.join(", "));
    }
    let has_failed = (!passed || wrong_scripts) && (options.strict || settings.module_failure_fatal);
    Ok(u8::from(!is_right || is_incomplete || has_failed))
}

/// Logs the error of a pair. Returns true if it has one.
fn tell(pair: &PairModule) -> bool {
    let status = pair.status();
    if !status.error.is_empty() {
        log::error!("user.{}: {}", pair.name(), status.error);
    }
    !status.error.is_empty()
}

/// Returns the directory to copy a file to before the agent can load it; `None` if it is in a directory of an agent.
fn copy_to(file: &Path, directory: &str, conf: &PcpConf) -> Option<PathBuf> {
    let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let home = path.parent().filter(|home| home.ends_with(directory) && home.with_file_name("corebcc.conf").is_file());
    home.is_none().then(|| conf.path("PCP_SYSCONF_DIR", "corebcc").join(directory))
}

/// Logs why a file was not tried: in a directory of an agent with the remedy, elsewhere with the command that copies `files` there.
fn tell_not_tried(reason: &dyn Display, files: &[&Path], copy_to: Option<&Path>) {
    let Some(directory) = copy_to else {
        log::error!("{reason}; not tried");
        return;
    };
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    log::error!(
        "not tried: only root may be able to change what runs in the kernel. Copy it: install -D -m 644 -t {} {}",
        directory.display(),
        files.join(" ")
    );
}

/// Checks the pair of a YAML file, which may be outside the agent's directory. It is loaded only if nobody but root may change it.
fn check_pair(file: &Path, options: &PairOptions, load: bool, copy_to: Option<&Path>) -> Result<u8, PrintError> {
    let (files, trusted) = read_file(file);
    let object = files.object.clone();
    let pair = &mut pair_alone(files, options);
    let loads = load && trusted.is_ok();
    match loads {
        true => pair.load(),
        false => pair.check(),
    }
    let not_tried = trusted.err().filter(|_| load);
    if let Some(error) = &not_tried {
        tell_not_tried(error, &[file, &object], copy_to);
    }
    let is_wrong = tell(pair);
    if loads {
        let mut rows = vec![["PAIR", "PROGRAM", "AT", "RESULT"].map(String::from)];
        rows.extend(program_rows(pair.name(), pair.status()));
        print(&columns(&rows))?;
    }
    let (name, metrics) = (pair.name(), pair.metrics());
    print(&format!(
        "{}: {}, {metrics} metrics below bcc.user.{name}\n",
        file.display(),
        if is_wrong { "errors" } else { "no errors" }
    ))?;
    Ok(match (is_wrong, not_tried) {
        (true, _) => 1,
        (false, Some(_)) => NOT_TRIED,
        (false, None) => 0,
    })
}

/// Checks a bpftrace script, which may be outside the agent's directory. It is run only if nobody but root may change it. Returns 1
/// for an error, 2 if it was not tried or is attached to no hook.
fn check_script(file: &Path, settings: &ScriptSettings, run: bool, copy_to: Option<&Path>) -> Result<u8, PrintError> {
    let checked = match script::check(file, settings, run) {
        Ok(checked) => checked,
        Err(error) => {
            log::error!("{}: {error}", file.display());
            return Ok(1);
        }
    };
    let not_tried = checked.refusal.as_ref().filter(|_| run);
    if let Some(refusal) = not_tried {
        tell_not_tried(refusal, &[file], copy_to);
    }
    let result = match &checked.probes {
        None => "not run".into(),
        Some(Ok(probes)) => format!("attached {probes} probes"),
        Some(Err(error)) => {
            log::error!("{error}");
            "errors".into()
        }
    };
    if let Some(failure) = &checked.failure {
        log::error!("{}: {failure}", file.display());
    }
    print(&checked.metrics.iter().map(|metric| format!("bcc.{metric}\n")).collect::<String>())?;
    print(&format!("{}: {result}, {} metrics\n", file.display(), checked.metrics.len()))?;
    Ok(match (&checked.probes, &checked.failure, not_tried) {
        (Some(Err(_)), _, _) => 1,
        (_, Some(_), _) => 2,
        (_, _, Some(_)) => NOT_TRIED,
        _ => 0,
    })
}

/// Checks the scripts beside a configuration, if it has a section for them. Returns true if one has an error.
fn check_scripts(config: &Config, directory: &Path, run: bool) -> Result<bool, PrintError> {
    let Some(settings) = ScriptSettings::read(config).0 else { return Ok(false) };
    let mut wrong = false;
    for file in script::files(directory) {
        wrong |= check_script(&file, &settings, run, None)? != 0;
    }
    Ok(wrong)
}

/// Returns a row for each program of a pair.
fn program_rows(name: &str, status: &PairStatus) -> Vec<[String; 4]> {
    let row = |(program, section, refusal): &(String, String, Option<String>)| {
        let result = refusal.as_ref().map_or_else(|| "ok".into(), |refusal| format!("refused: {refusal}"));
        [name.to_owned(), program.clone(), section.clone(), result]
    };
    status.programs.iter().map(row).collect()
}

/// Returns a row for each attempt at a hook. `how` is the kind by which it is attached, if it is.
fn each_way(attempts: &[&Attempt], how: Option<&str>) -> Vec<[String; 2]> {
    let row = |attempt: &&Attempt| [attempt.kind.to_owned(), result(attempt, how)];
    attempts.iter().map(row).collect()
}

/// Returns a single row for a hook: the kind by which it is attached, and those that this kernel does not have.
fn one_way(attempts: &[&Attempt], how: Option<&str>) -> Option<[String; 2]> {
    let is_taken = |attempt: &&&Attempt| attempt.result.is_ok() && how.is_none_or(|how| how == attempt.kind);
    let Some(taken) = attempts.iter().find(is_taken) else {
        return attempts.last().map(|last| [last.kind.to_owned(), result(last, how)]);
    };
    let mut others: Vec<&str> = attempts.iter().filter(|other| other.result.is_err()).map(|other| other.kind).collect();
    others.retain(|other| *other != taken.kind);
    others.dedup();
    let others =
        if others.is_empty() { String::new() } else { format!("  ({}: not on this kernel)", others.join(", ")) };
    Some([taken.kind.to_owned(), result(taken, how) + &others])
}

fn result(attempt: &Attempt, how: Option<&str>) -> String {
    match &attempt.result {
        Err(refusal) => format!("refused: {}", refusal.last_words()),
        Ok(()) if how == Some(attempt.kind) => "ok".into(),
        Ok(()) => "loaded, attached when needed".into(),
    }
}

/// Loads modules without errors, and detaches them. `brief` leaves out the reasons, which the log has; `verbose` lists each attempt
/// to attach.
fn load(
    modules: PreparedModules,
    pairs: Vec<PreparedModules>,
    enabled: &[EnabledModule],
    configuration: &Configuration,
    btf: Option<PathBuf>,
    brief: bool,
    verbose: bool,
) -> Loaded {
    let because = |what: &str, reason: &dyn Display| match brief {
        true => what.to_owned(),
        false => format!("{what}: {reason}"),
    };
    let mut loaded_set = Engine::load(modules, btf);
    pairs.into_iter().for_each(|pair| loaded_set.add(pair));
    let sets = loaded_set.sets();
    sets.iter().for_each(|set| set.log_outcomes());
    let mut rows = vec![["MODULE", "HOOK", "BY", "RESULT"].map(String::from)];
    let mut missing = Vec::new();
    let mut passed = configuration.lost.is_empty() && sets.modules().all(|(_, loaded)| loaded.running.is_ok());
    for name in enabled.iter().map(|module| &module.settings.section) {
        let Some((set, loaded)) = sets.named(name) else { continue };
        let (spec, attached) = (loaded.spec, set.kernel.attached());
        if let Some(pair) = loaded.pair() {
            rows.extend(program_rows(name, &pair));
            passed &= pair.error.is_empty();
            if pair.state == "failed" {
                rows.push([name.clone(), "-".into(), "-".into(), because("FAILED", &pair.error)]);
            }
        }
        for hook in spec.hooks {
            let how = attached.iter().find(|(attached, _)| *attached == hook.name).map(|(_, kind)| *kind);
            let attempts: Vec<&Attempt> = set.attempts.iter().filter(|attempt| attempt.hook == hook.name).collect();
            let ways = if verbose { each_way(&attempts, how) } else { Vec::from_iter(one_way(&attempts, how)) };
            rows.extend(ways.into_iter().map(|[by, result]| [name.clone(), hook.name.into(), by, result]));
        }
        let of_module = set.kernel.targets().iter().filter(|reach| reach.module == spec.name);
        let mut reached: Vec<(String, &str)> =
            of_module.filter_map(|reach| Some((reach.target.to_string(), reach.result.as_ref().ok()?.kind))).collect();
        reached.sort_unstable();
        rows.extend(reached.into_iter().map(|(target, kind)| [name.clone(), target, kind.into(), "ok".into()]));
        for (target, reason) in set.missing(loaded) {
            if loaded.running.is_ok() {
                missing.push(format!("{name}: {target}"));
            }
            rows.push([name.clone(), target, "-".into(), because("left out", &reason)]);
        }
        if let Err(failure) = &loaded.running {
            rows.push([name.clone(), failure.hook.into(), "-".into(), because("FAILED", &failure.reason)]);
        }
    }
    for (name, why) in &configuration.lost {
        rows.push([name.clone(), CONFIGURATION.into(), "-".into(), because("FAILED", why)]);
    }
    drop(sets);
    loaded_set.detach();
    Loaded { table: columns(&rows), passed, missing }
}

/// Logs options that have no effect and exist for compatibility only.
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
    use crate::loader::Refusal;

    #[test]
    fn a_hook_has_one_row_with_the_way_that_was_taken() {
        let attempt = |kind, result| Attempt { hook: "h", kind, programs: Vec::new(), result };
        let refused = || Err(Refusal::new(1, "kernel; refused by it"));
        let (fexit, kprobe, again) =
            (attempt("fexit", refused()), attempt("kprobe", refused()), attempt("kprobe", refused()));
        let taken = attempt("tp_btf", Ok(()));
        let row = |attempts: &[&Attempt], how| one_way(attempts, how).unwrap().join(" ");
        let all = [&fexit, &kprobe, &again, &taken];
        assert_eq!(row(&all, Some("tp_btf")), "tp_btf ok  (fexit, kprobe: not on this kernel)");
        assert_eq!(row(&all, None), "tp_btf loaded, attached when needed  (fexit, kprobe: not on this kernel)");
        assert_eq!(row(&all[..2], None), "kprobe refused: refused by it");
        assert_eq!(row(&all[3..], Some("tp_btf")), "tp_btf ok");
        assert_eq!((one_way(&[], None), each_way(&all, Some("tp_btf")).len()), (None, 4));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 4]| cells.map(String::from);
        let table = columns(&[row(["A", "HOOK", "BY", "R"]), row(["module", "h", "tp_btf", "ok"])]);
        assert_eq!(table, "A       HOOK  BY      R\nmodule  h     tp_btf  ok\n");
    }
}
