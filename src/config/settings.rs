//! The typed view of what every configuration has: `[pmda]`, and in each enabled module's section the options that all
//! modules share. A module's own options are the module's business; [`Settings`] only says where they stand.

use super::{Config, ConfigError, Section, Value};
use std::time::Duration;

/// The options of `[pmda]`; anything else there is an error, as ever.
const PMDA: [&str; 6] = ["modules", "prefix", "process_refresh", "module_failure_fatal", "bpf_stats", "show_arguments"];

/// Clusters of the agent's own metrics, and from 310 on of those that modules have beyond the Python agent's.
const OWN_CLUSTERS: std::ops::RangeInclusive<u16> = 300..=319;

/// The width of the cluster field of a metric identifier is 12 bits (`__pmID_int` in `libpcp.h`).
const MAX_CLUSTER: u16 = 4095;

/// What the agent as a whole is told to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The enabled modules in loading order, each section once.
    pub modules: Vec<ModuleSettings>,
    /// How often to look again for the processes that `process` options name; `None`: never.
    pub process_refresh: Option<Duration>,
    /// Whether a module that cannot be loaded ends the agent.
    pub module_failure_fatal: bool,
    /// What the names of metrics begin with where a module says nothing else.
    pub prefix: String,
    /// Whether the kernel is to count the runs of BPF programs and their time.
    pub bpf_stats: bool,
    /// Whether values and the log may have the arguments of processes.
    pub show_arguments: bool,
}

/// What every module can be told.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleSettings {
    /// The section's name, which log lines carry.
    pub section: String,
    /// The module as configured; dots stand for directories.
    pub module: String,
    /// The cluster of the metrics and serial of the instance domain, up to 4095; no two modules share one.
    pub cluster: u16,
    /// What the names of the metrics begin with, such as `bcc.`; ends in a dot.
    pub prefix: String,
    /// Whether instance identifiers are to outlive the agent.
    pub indom_cache: bool,
    /// Whether to log more.
    pub debug: bool,
}

impl ModuleSettings {
    /// The options read here, which a module need not know.
    pub const KEYS: [&str; 5] = ["module", "cluster", "prefix", "pmda_indom_cache", "debug"];

    /// The module's name without directories: `ext4dist` for `fs.ext4dist`.
    pub fn kind(&self) -> &str {
        self.module.rsplit('.').next().unwrap_or(&self.module)
    }

    fn read(section: Section<'_>, default_prefix: &str) -> Result<ModuleSettings, ConfigError> {
        let module = section.require("module", section.name())?;
        if module.text().split('.').any(str::is_empty) {
            return Err(module.error("the name of a module, such as `biolatency` or `fs.ext4dist`"));
        }
        let prefix = section.get("prefix")?.map(|value| prefix(&value)).transpose()?;
        Ok(ModuleSettings {
            section: section.name().to_owned(),
            module: module.text().to_owned(),
            cluster: section.require("cluster", "200")?.int_in(0..=MAX_CLUSTER)?,
            prefix: prefix.unwrap_or_else(|| default_prefix.to_owned()),
            indom_cache: flag(section, "pmda_indom_cache", true)?,
            debug: flag(section, "debug", false)?,
        })
    }
}

impl Settings {
    /// Reads `[pmda]` and the shared options of the modules it enables.
    pub fn read(config: &Config) -> Result<Settings, ConfigError> {
        let Some(pmda) = config.section("pmda") else {
            return Err(config.missing("no section [pmda]; add one with a line `modules = netproc`".to_owned()));
        };
        let defaults = config.defaults.entries.iter().map(|entry| entry.key.as_str());
        if let Some(unknown) = pmda.keys().map(|(key, _)| key).chain(defaults).find(|key| !PMDA.contains(key)) {
            let place = if pmda.own.find(unknown).is_some() { "" } else { " (where [DEFAULT] shows as well)" };
            return Err(pmda.reject(unknown, format!("no option of [pmda]{place}; it has {}", PMDA.join(", "))));
        }

        let prefix = pmda.get("prefix")?.map(|value| prefix(&value)).transpose()?;
        let prefix = prefix.unwrap_or_else(|| "bcc.".to_owned());
        let refresh = pmda.get("process_refresh")?.map(|value| value.clamped(0..=u32::MAX)).transpose()?.unwrap_or(0);
        Ok(Settings {
            modules: modules(config, pmda, &prefix)?,
            process_refresh: (refresh > 0).then(|| Duration::from_secs(refresh.into())),
            module_failure_fatal: flag(pmda, "module_failure_fatal", true)?,
            bpf_stats: flag(pmda, "bpf_stats", false)?,
            show_arguments: flag(pmda, "show_arguments", true)?,
            prefix,
        })
    }
}

fn modules(config: &Config, pmda: Section<'_>, prefix: &str) -> Result<Vec<ModuleSettings>, ConfigError> {
    let value = pmda.require("modules", "netproc")?;
    let mut modules = Vec::<ModuleSettings>::new();
    for name in value.list() {
        if name.is_empty() {
            return Err(value.error("names of sections with commas between them"));
        }
        if modules.iter().any(|module| module.section == name) {
            continue;
        }
        let Some(section) = config.section(name) else {
            let name = super::value::shown(name);
            let reason = format!("no section has the name {name}; add one, or take the name out of the list");
            return Err(value.reject(reason));
        };
        let module = ModuleSettings::read(section, prefix)?;
        if OWN_CLUSTERS.contains(&module.cluster) {
            let (first, last) = (OWN_CLUSTERS.start(), OWN_CLUSTERS.end());
            let reason = format!("{first} to {last} are clusters of the agent's own metrics; give it another");
            return Err(section.reject("cluster", reason));
        }
        if let Some(other) = modules.iter().find(|other| other.cluster == module.cluster) {
            let reason = format!("{} is the cluster of [{}] too; give each its own", module.cluster, other.section);
            return Err(section.reject("cluster", reason));
        }
        modules.push(module);
    }
    Ok(modules)
}

fn flag(section: Section<'_>, key: &str, default: bool) -> Result<bool, ConfigError> {
    section.get(key)?.map_or(Ok(default), |value| value.bool())
}

/// Names are made by putting the prefix in front, so it has to be whole components of a name, PMNS(5), each with a dot.
fn prefix(value: &Value<'_>) -> Result<String, ConfigError> {
    let component = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    match value.text().strip_suffix('.') {
        Some(parts) if parts.split('.').all(component) => Ok(value.text().to_owned()),
        _ => Err(value.error("the beginning of a metric name, ending in a dot, such as `bcc.`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let config = Config::parse("f.conf", text.as_bytes()).unwrap();
        Settings::read(&config).map_err(|error| error.to_string())
    }

    const TWO: &str = "\n[a]\nmodule = sysfork\ncluster = 2\n[b]\nmodule = fs.ext4dist\ncluster = 5\ndebug = on\n";

    #[test]
    fn defaults_are_those_of_the_original() {
        let settings = read(&format!("[pmda]\nmodules = a{TWO}")).unwrap();
        assert_eq!(settings.process_refresh, None);
        assert!(settings.module_failure_fatal && settings.show_arguments);
        let a = ModuleSettings {
            section: "a".into(),
            module: "sysfork".into(),
            cluster: 2,
            prefix: "bcc.".into(),
            indom_cache: true,
            debug: false,
        };
        assert_eq!(settings.modules, [a]);
    }

    #[test]
    fn modules_keep_their_order_and_count_once() {
        let pmda = "[pmda]\nmodules = b, a,b\nprefix = x.y_1.\nprocess_refresh = 60\nmodule_failure_fatal = False";
        let settings = read(&format!("{pmda}{TWO}pmda_indom_cache = no\nprefix = z.\n")).unwrap();
        assert_eq!(settings.modules.iter().map(|m| m.section.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(settings.modules[0].kind(), "ext4dist");
        assert_eq!(settings.modules[0].prefix, "z.");
        assert_eq!(settings.modules[1].prefix, "x.y_1.");
        assert!(settings.modules[0].debug && !settings.modules[0].indom_cache);
        assert_eq!(settings.process_refresh, Some(Duration::from_secs(60)));
        assert!(!settings.module_failure_fatal);
    }

    #[test]
    fn refreshes_out_of_range_are_the_nearest_possible() {
        let refresh = |value: &str| read(&format!("[pmda]\nmodules = a\nprocess_refresh = {value}{TWO}")).unwrap();
        assert_eq!(refresh("-1").process_refresh, None);
        assert_eq!(refresh("99999999999").process_refresh, Some(Duration::from_secs(u32::MAX.into())));
    }

    #[test]
    fn a_list_may_go_on_in_the_next_line() {
        assert_eq!(read(&format!("[pmda]\nmodules = a,\n  b{TWO}")).unwrap().modules.len(), 2);
    }

    #[test]
    fn faults_say_where_and_what_to_do() {
        let pmda = |options: &str| read(&format!("[pmda]\n{options}{TWO}")).unwrap_err();
        assert_eq!(read("[PMDA]\n").unwrap_err(), "f.conf: no section [pmda]; add one with a line `modules = netproc`");
        assert_eq!(pmda(""), "f.conf: section [pmda] has no option `modules`; add a line `modules = netproc`");
        assert_eq!(pmda("modules ="), "f.conf:2: [pmda] modules: there is no value; write `modules = netproc`");
        for empty in ["modules = a,", "modules = ,a"] {
            assert!(pmda(empty).starts_with("f.conf:2: [pmda] modules: expected names of sections"), "{empty}");
        }
        assert!(pmda("modules = a # no").contains("no section has the name `a # no`"));
        assert!(
            pmda("modules = a\nfrob = 1").starts_with("f.conf:3: [pmda] frob: no option of [pmda]; it has modules,")
        );
        assert!(pmda("modules = a\nprocess_refresh = often").contains("from 0 to 4294967295, got `often`"));
        assert!(pmda("modules = a\nmodule_failure_fatal = maybe").starts_with("f.conf:3: [pmda] module_failure_fatal:"));
        for bad in ["bcc", ".", "1x.", "a..", "a b.", "bc\u{e9}."] {
            let message = pmda(&format!("modules = a\nprefix = {bad}"));
            assert!(
                message.starts_with("f.conf:3: [pmda] prefix: expected the beginning of a metric name"),
                "{message}"
            );
        }
        let message = read(&format!("[DEFAULT]\ndebug = 1\n[pmda]\nmodules = a{TWO}")).unwrap_err();
        assert!(
            message.starts_with("f.conf:2: [DEFAULT] debug: no option of [pmda] (where [DEFAULT] shows"),
            "{message}"
        );
    }

    #[test]
    fn faults_of_module_sections_are_found() {
        let section = |options: &str| read(&format!("[pmda]\nmodules = a, c{TWO}[c]\n{options}")).unwrap_err();
        assert!(section("cluster = 1").contains("[c] has no option `module`; add a line `module = c`"));
        assert!(section("module = x").contains("[c] has no option `cluster`"));
        assert!(section("module = x\ncluster = 2").starts_with("f.conf:12: [c] cluster: 2 is the cluster of [a] too"));
        for bad in ["4096", "-1", "1e3", "99999999999999999999"] {
            let message = section(&format!("module = x\ncluster = {bad}"));
            assert!(message.ends_with(&format!("expected a whole number from 0 to 4095, got `{bad}`")), "{message}");
        }
        assert!(section("module = .x\ncluster = 9").contains("[c] module: expected the name of a module"));
        assert!(section("module = \ncluster = 9").contains("[c] module: there is no value; write `module = c`"));
    }
}
