//! Choice of the modules that `show` loads: those that the names mean, with the options of the configuration and of `--set`.

use super::error::ShowError;
use super::select::{did_you_mean, means, select, Selected};
use super::site::OfSite;
use crate::catalog::{Enabled, EnabledModule, ServedTable};
use crate::cli::{built_in, read_config, Only, ShowOptions};
use crate::collector::status_tables;
use crate::config::{Config, ConfigError, Cost, Settings};
use crate::kit::{excerpt, Interval, OptionType, RowCount, RowOrder, Shape, Spec};
use crate::modules::MODULES;
use std::collections::BTreeSet;

/// The modules and tables to show.
pub struct Chosen {
    /// The configuration, in which those modules are enabled.
    pub config: Config,
    /// The options of `[pmda]`.
    pub settings: Settings,
    /// The modules to load.
    pub modules: Vec<EnabledModule>,
    /// Programs and scripts of this site, which are loaded too.
    pub of_site: OfSite,
    /// The tables to show, with their columns.
    pub selected: Vec<Selected>,
    /// Modules with metrics below a named node that are not shown, since they are not enabled.
    pub left_out: Vec<&'static str>,
    /// Options that `--set` changes.
    pub set: Vec<SetOption>,
}

/// An option that `--set` gave a value.
pub struct SetOption {
    /// The text that followed `--set`.
    pub text: String,
    section: String,
    key: String,
}

impl SetOption {
    /// Returns an error about `--set`, if an error of the configuration is about this option.
    pub fn blame(&self, error: &ConfigError) -> Option<ShowError> {
        let is_own = |error: &&ConfigError| match error {
            ConfigError::Value { section, key, .. } => *section == self.section && *key == self.key,
            _ => false,
        };
        let errors = error.each();
        let ConfigError::Value { reason, .. } = errors.into_iter().find(is_own)? else { return None };
        Some(ShowError::Set { set: self.text.clone(), reason: reason.clone() })
    }
}

/// Chooses modules and metrics for the names. The modules are those that the configuration enables; if none of these has a metric,
/// another module is enabled for it, as its section says if there is one. Without a configuration all modules can be shown.
pub fn choose(options: &ShowOptions) -> Result<Chosen, ShowError> {
    let every = every()?;
    let config = match &options.common.config {
        Some(path) => read_config(path)?,
        // What the agent would tell of itself is about the modules that it would run.
        None if !own(&Settings::default(), &options.names).is_empty() => built_in()?,
        None => every.clone(),
    };
    let (mut settings, mut modules) = enabled_by(&config)?;
    let all = all_of(&every, &settings)?;
    let is_known = |name: &&String| {
        all.iter().chain(&modules).any(|module| means(module, name))
            || !own(&settings, std::slice::from_ref(*name)).is_empty()
    };
    let others: Vec<String> = options.names.iter().filter(|name| !is_known(name)).cloned().collect();
    let of_site = OfSite::find(options, &config, &settings, &others)?;
    let mut names = options.names.clone();
    names.retain(|name| !of_site.has(name));
    let options = &ShowOptions { names, ..options.clone() };
    let mut config = with_all(config, &every, &settings, &modules, &options.names)?;
    (settings, modules) =
        enabled_by(&config).map(|(read, modules)| (Settings { prefix: settings.prefix, ..read }, modules))?;
    let needs_all = !own(&settings, &options.names).is_empty();
    if !needs_all {
        modules.retain(|module| options.names.iter().any(|name| means(module, name)));
    }
    let (_, unknown) = select(&modules, own(&settings, &options.names), &options.names);
    if let Some(name) = unknown.first() {
        return Err(no_metric(name, &settings.prefix));
    }
    let set = set_options(&options.set, &modules)?;
    let is_named = |module: &&EnabledModule| options.names.iter().any(|name| means(module, name));
    for module in modules.iter().filter(is_named) {
        for (key, value) in usual_options(module.spec, options.only != Only::default()) {
            config = config.with_option(&module.settings.section, key, &value);
        }
    }
    for (option, text) in set.iter().zip(&options.set) {
        let value = text.split_once('=').map_or("", |(_, value)| value);
        config = config.with_option(&option.section, &option.key, value);
    }
    let chosen: Vec<String> = modules.iter().map(|module| module.settings.section.clone()).collect();
    modules = enabled_by(&config)?.1;
    modules.retain(|module| chosen.contains(&module.settings.section));
    let (mut selected, _) = select(&modules, own(&settings, &options.names), &options.names);
    selected.extend(of_site.select());
    for Selected { table, interval, .. } in &mut selected {
        let of = modules.iter().find(|module| module.settings.section == table.section);
        *interval = of.filter(|module| has_option(module.spec, INTERVAL)).and_then(|_| interval_of(&config, table));
    }
    let left_out = left_out(&every, &settings, &modules, &options.names)?;
    Ok(Chosen { config, settings, modules, of_site, selected, left_out, set })
}

/// Name of the option that sets a table's interval.
const INTERVAL: &str = "interval";

/// Returns the options that `show` sets unless `--set` does. Nobody else reads these tables: an interval lasts from one reading to
/// the next, and as many events are kept until then as a module can keep. With `all` the same holds for other rows, from which some
/// are chosen later.
fn usual_options(spec: &Spec, all: bool) -> Vec<(&'static str, String)> {
    let kept = spec.tables.iter().filter_map(|table| match table.shape {
        Shape::Rows { count, order } if all || order == RowOrder::Latest => Some((count, RowCount::MOST.to_string())),
        _ => None,
    });
    kept.chain(has_option(spec, INTERVAL).then(|| (INTERVAL, Interval::AtFetch.show()))).collect()
}

fn has_option(spec: &Spec, name: &str) -> bool {
    spec.options.iter().any(|option| option.name == name)
}

fn interval_of(config: &Config, table: &ServedTable) -> Option<Interval> {
    let value = config.section(&table.section)?.get(INTERVAL).ok()??;
    Interval::read(&value).ok()
}

/// Returns the agent's own tables, if a name means one of them; else none.
fn own(settings: &Settings, names: &[String]) -> Vec<ServedTable> {
    let (selected, _) = select(&[], status_tables(&settings.prefix).collect(), names);
    match selected.is_empty() {
        true => Vec::new(),
        false => status_tables(&settings.prefix).collect(),
    }
}

/// Returns modules that have metrics that a name means, and that are not enabled.
fn left_out(
    every: &Config,
    settings: &Settings,
    modules: &[EnabledModule],
    names: &[String],
) -> Result<Vec<&'static str>, ShowError> {
    let mut all = all_of(every, settings)?;
    all.retain(|module| names.iter().any(|name| means(module, name)));
    let mut names: Vec<&str> = all.iter().map(|module| module.spec.name).collect();
    names.retain(|name| modules.iter().all(|module| module.spec.name != *name));
    names.sort_unstable();
    Ok(names)
}

/// Returns all existing modules, with the prefix of the configuration.
fn all_of(every: &Config, settings: &Settings) -> Result<Vec<EnabledModule>, ShowError> {
    let (_, mut all) = enabled_by(every)?;
    all.iter_mut().for_each(|module| module.settings.prefix.clone_from(&settings.prefix));
    Ok(all)
}

/// Returns the configuration with a module enabled for each name that none of the enabled modules has.
fn with_all(
    config: Config,
    every: &Config,
    settings: &Settings,
    modules: &[EnabledModule],
    names: &[String],
) -> Result<Config, ShowError> {
    let own = own(settings, names);
    let (_, missing) = select(modules, own, names);
    if missing.is_empty() {
        return Ok(config);
    }
    let all = all_of(every, settings)?;
    let mut wanted: Vec<&str> = modules.iter().map(|module| module.settings.section.as_str()).collect();
    let more = all.iter().filter(|module| missing.iter().any(|name| means(module, name)));
    let more: Vec<&str> = more.map(|module| module.spec.name).collect();
    if more.is_empty() {
        return Ok(config);
    }
    wanted.extend(more);
    Ok(config.enabling(&wanted, every))
}

/// Returns the modules of a configuration. An error in one of them is logged, and costs no other.
pub fn enabled_by(config: &Config) -> Result<(Settings, Vec<EnabledModule>), ConfigError> {
    let Enabled { settings, modules, faults } = Enabled::survey(config, MODULES);
    for fault in faults {
        match fault.cost {
            Cost::All => return Err(fault.error),
            _ => log::warn!("{}", fault.error),
        }
    }
    Ok((settings, modules))
}

/// Returns the names that `show` takes: modules, metrics and the nodes above metrics, with and without the prefix.
pub fn names() -> BTreeSet<String> {
    let mut names: BTreeSet<String> = MODULES.iter().map(|spec| spec.name.to_owned()).collect();
    for metric in MODULES.iter().flat_map(|spec| spec.metrics()) {
        let ends = metric.name.match_indices('.').map(|(dot, _)| dot).chain([metric.name.len()]);
        for node in ends.map(|end| &metric.name[..end]) {
            names.extend([node.to_owned(), format!("bcc.{node}")]);
        }
    }
    names
}

fn no_metric(name: &str, prefix: &str) -> ShowError {
    let own = status_tables("").flat_map(|table| table.spec.metrics);
    let metrics: Vec<&str> =
        MODULES.iter().flat_map(|spec| spec.metrics()).chain(own).map(|metric| metric.name).collect();
    let known: Vec<String> = match name.starts_with(prefix) {
        true => metrics.iter().map(|metric| format!("{prefix}{metric}")).collect(),
        false => metrics.iter().copied().chain(MODULES.iter().map(|spec| spec.name)).map(str::to_owned).collect(),
    };
    if known.iter().any(|known| known == name) {
        let near = "; its module cannot be enabled: see the warning before this line".to_owned();
        return ShowError::NoMetric { name: name.into(), near };
    }
    ShowError::NoMetric { name: excerpt(name), near: did_you_mean(name, known.iter().map(String::as_str)) }
}

/// Finds the option and the module that each `OPTION=VALUE` or `MODULE.OPTION=VALUE` means.
fn set_options(given: &[String], modules: &[EnabledModule]) -> Result<Vec<SetOption>, ShowError> {
    given.iter().map(|text| set_option(text, modules)).collect()
}

fn set_option(text: &str, modules: &[EnabledModule]) -> Result<SetOption, ShowError> {
    let fail = |reason: String| ShowError::Set { set: text.into(), reason };
    let (name, _) =
        text.split_once('=').ok_or_else(|| fail("expected OPTION=VALUE or MODULE.OPTION=VALUE".to_owned()))?;
    let (wanted, key) = name.trim().rsplit_once('.').map_or((None, name.trim()), |(module, key)| (Some(module), key));
    let key = key.to_lowercase();
    let is_wanted = |module: &&EnabledModule| {
        wanted.is_none_or(|wanted| module.spec.is_named(wanted) || module.settings.section == wanted)
    };
    let candidates: Vec<&EnabledModule> = modules.iter().filter(is_wanted).collect();
    let named = |modules: &[&EnabledModule]| {
        modules.iter().map(|module| module.settings.section.as_str()).collect::<Vec<_>>().join(", ")
    };
    if candidates.is_empty() {
        let shown = named(&modules.iter().collect::<Vec<_>>());
        return Err(fail(format!("expected the option of a module that is shown: {shown}")));
    }
    let owners: Vec<&EnabledModule> =
        candidates.iter().copied().filter(|module| has_option(module.spec, &key)).collect();
    match owners[..] {
        [owner] => Ok(SetOption { text: text.into(), section: owner.settings.section.clone(), key }),
        [] => {
            let known: Vec<&str> =
                candidates.iter().flat_map(|module| module.spec.options).map(|option| option.name).collect();
            let near = did_you_mean(&key, known.iter().copied());
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Err(fail(format!("no such option of {}{near} (options: {known})", named(&candidates))))
        }
        [first, ..] => {
            Err(fail(format!("{} have this option; write --set {}.{text}", named(&owners), first.settings.section)))
        }
    }
}

/// Returns a configuration with all existing modules, with examples for options without a default.
pub fn every() -> Result<Config, ConfigError> {
    let names: Vec<&str> = MODULES.iter().map(|spec| spec.name).collect();
    let mut text = format!("[pmda]\nmodules = {}\n", names.join(","));
    for spec in MODULES {
        text += &spec.section("");
    }
    Config::parse("the configuration of show", text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{parse, Command};

    fn options(line: &str) -> ShowOptions {
        let words = ["pmdacorebcc", "show"].into_iter().chain(line.split(' '));
        match parse(words.map(Into::into)) {
            Ok(Command::Show(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn sections(chosen: &Chosen) -> Vec<&str> {
        chosen.modules.iter().map(|module| module.settings.section.as_str()).collect()
    }

    #[test]
    fn a_name_that_there_is_is_not_proposed_for_itself() {
        for name in ["bcc.disk.all.latency", "disk.all.latency", "biolatency", "agent.version"] {
            let said = no_metric(name, "bcc.").to_string();
            assert!(said.contains("its module cannot be enabled") && !said.contains("did you mean"), "{said}");
        }
        let said = no_metric("disk.all", "bcc.").to_string();
        assert!(!said.contains("mean disk.all?"), "{said}");
    }

    /// The section of a module that is not enabled counts, and an example is added for an option that it lacks.
    #[test]
    fn a_module_that_is_not_enabled_is_as_its_section_says() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[pmda]\nmodules = sysfork\nprefix = x.\n[sysfork]\nmodule = sysfork\ncluster = 2\n\
            [biotop]\nmodule = biotop\ncluster = 210\nprocess_count = 3\n[kprobe_hits]\nmodule = kprobe_hits\nkprobes =\ncluster = 7\n";
        std::fs::write(file.path(), text).unwrap();
        let of = |names: &str| choose(&options(&format!("-c {} {names}", file.path().display())));
        assert_eq!(sections(&of("x").unwrap()), ["sysfork"]);
        let left_out = of("x.proc").unwrap().left_out;
        assert!(left_out.is_sorted() && left_out.contains(&"biotop") && !left_out.contains(&"sysfork"), "{left_out:?}");
        let left_out = of("x.proc biotop").unwrap().left_out;
        assert!(left_out.contains(&"exectop") && !left_out.contains(&"biotop"), "it is named: {left_out:?}");
        assert!(of("x.proc.io").unwrap().left_out.is_empty(), "none of them is enabled, so all are shown");
        let chosen = of("x.proc.io.perdev").unwrap();
        assert_eq!((sections(&chosen), chosen.modules[0].rows), (vec!["biotop"], 3));
        assert_eq!(chosen.modules[0].settings.cluster, 210);
        let chosen = of("kprobe.hits.count").unwrap();
        assert_eq!((sections(&chosen), chosen.modules[0].settings.cluster), (vec!["kprobe_hits"], 7));
        assert!(chosen.config.section("kprobe_hits").unwrap().get("kprobes").unwrap().is_some());
        assert_eq!(sections(&of("x.proc.net").unwrap()), ["netproc"]);
        assert_eq!(sections(&of("sysfork biotop netproc").unwrap()), ["sysfork", "biotop", "netproc"]);
        assert!(of("bcc.proc.net").is_err() && of("x.no").is_err());
    }

    #[test]
    fn events_are_kept_and_intervals_last_from_reading_to_reading() {
        let text = |chosen: &Chosen, section: &str, option: &str| {
            chosen.config.section(section).unwrap().get(option).unwrap().map(|value| value.text().to_owned())
        };
        let chosen = choose(&options("execsnoop tcplife biotop tcptop")).unwrap();
        for (name, rows, interval) in [
            ("execsnoop", 10_000, None),
            ("tcplife", 10_000, None),
            ("biotop", 20, Some(Interval::AtFetch)),
            ("tcptop", 20, Some(Interval::AtFetch)),
        ] {
            let module = chosen.modules.iter().find(|module| module.spec.name == name).unwrap();
            let selected = chosen.selected.iter().find(|selected| selected.table.section == name).unwrap();
            assert_eq!((module.rows, selected.interval), (rows, interval), "{name}");
        }
        assert_eq!(text(&chosen, "execsnoop", INTERVAL), None);
        assert_eq!(
            choose(&options("biotop -p 1")).unwrap().modules[0].rows,
            10_000,
            "the process may not be at the top"
        );
        let set = "execsnoop tcptop --set execsnoop.process_count=3 --set interval=5";
        let chosen = choose(&options(set)).unwrap();
        let module = chosen.modules.iter().find(|module| module.spec.name == "execsnoop").unwrap();
        let top = chosen.selected.iter().find(|selected| selected.table.section == "tcptop").unwrap();
        assert_eq!((module.rows, top.interval), (3, Some(Interval::Seconds(5))));
        let chosen = choose(&options("bcc.agent")).unwrap();
        assert!(chosen.modules.iter().all(|module| text(&chosen, &module.settings.section, "interval").is_none()));
    }

    #[test]
    fn the_agent_without_a_file_is_as_it_is_installed() {
        let chosen = choose(&options("bcc.agent")).unwrap();
        let usual = crate::catalog::enabled_modules(&built_in().unwrap(), MODULES).unwrap().1;
        let usual: Vec<&str> = usual.iter().map(|module| module.settings.section.as_str()).collect();
        assert_eq!(sections(&chosen), usual);
        let chosen = choose(&options("bcc.agent sysfork")).unwrap();
        assert_eq!(sections(&chosen).len(), usual.len() + 1);
    }

    #[test]
    fn an_option_is_set_in_the_section_of_its_module() {
        let chosen = choose(&options("biolatency runqlat --set queued=true")).unwrap();
        let queued = chosen.config.section("biolatency").unwrap().get("queued").unwrap().unwrap();
        assert!(queued.bool().unwrap());
        let chosen = choose(&options("execsnoop --set execsnoop.process_count=7")).unwrap();
        assert_eq!(chosen.modules[0].rows, 7);
        let error = |line: &str| choose(&options(line)).err().unwrap().to_string();
        assert!(
            error("biolatency --set queud=true")
                .starts_with("--set queud=true: no such option of biolatency; did you mean queued? (options: "),
            "{}",
            error("biolatency --set queud=true")
        );
        assert_eq!(error("biolatency --set queued"), "--set queued: expected OPTION=VALUE or MODULE.OPTION=VALUE");
        let of_several = error("execsnoop biotop --set process_count=7");
        assert!(of_several.ends_with("have this option; write --set biotop.process_count=7"), "{of_several}");
    }
}
