//! The options that every configuration has: those of `[pmda]`, and in each enabled module's section those that all modules share. A
//! module reads its own options itself.

use super::text::shown;
use super::value::{comment, COMMENTS};
use super::{did_you_mean, Config, ConfigError, Errors, Notes, Section, SettingDef, Value, PMDA};
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// Values of `allow_helpers`: functions by which programs of a site's own change processes.
pub const GUARDED_HELPERS: [&str; 5] = [
    "bpf_probe_write_user",
    "bpf_override_return",
    "bpf_send_signal",
    "bpf_send_signal_thread",
    "bpf_send_signal_task",
];

/// Clusters of the agent's own metrics, and from 310 on of modules that the Python agent does not have.
const OWN_CLUSTERS: std::ops::RangeInclusive<u16> = 300..=349;

/// Name of the option that enables or disables a section's module, whatever the option `modules` lists.
const ENABLED: &str = "enabled";

/// Highest cluster: the field of a metric identifier is 12 bits wide (`__pmID_int` in `libpcp.h`).
const MAX_CLUSTER: u16 = 4095;

/// Settings of the agent as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The enabled modules in loading order, each section once.
    pub modules: Vec<ModuleSettings>,
    /// Interval between searches for processes that `process` options name; `None` for never.
    pub process_refresh: Option<Duration>,
    /// True if a module that cannot be loaded ends the agent.
    pub module_failure_fatal: bool,
    /// Prefix of metric names, for modules that set none.
    pub prefix: String,
    /// True if the kernel counts the runs of BPF programs and their time.
    pub bpf_stats: bool,
    /// True if values and the log may contain the arguments of processes.
    pub show_arguments: bool,
    /// True if privileges that no module needs after loading are dropped.
    pub drop_privileges: bool,
    /// True if modules and programs may be loaded while the agent runs; `None` to allow it if there is a directory of programs.
    pub load_later: Option<bool>,
    /// Users other than root who may start, stop and reload modules.
    pub control_users: Vec<String>,
    /// Groups whose members may start, stop and reload modules.
    pub control_groups: Vec<String>,
    /// Helpers of [`GUARDED_HELPERS`] that programs of a site's own may call.
    pub allow_helpers: Vec<String>,
}

/// Options that every module has.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleSettings {
    /// The section's name, which is also in log lines.
    pub section: String,
    /// The module as configured, with dots for directories.
    pub module: String,
    /// Cluster of the metrics and serial of the instance domain, up to 4095; unique to the module.
    pub cluster: u16,
    /// Prefix of the metrics' names, such as `bcc.`, with a final dot.
    pub prefix: String,
    /// True if instance identifiers outlive the agent.
    pub indom_cache: bool,
    /// True for debug lines in the log.
    pub debug: bool,
    /// Options of the section, if its counts outlive the agent: after a change of them the kept counts may mean something else.
    pub pin: Option<Vec<(String, String)>>,
}

impl ModuleSettings {
    /// Names of these options, which a module need not know.
    pub const KEYS: [&str; 7] = ["module", "cluster", "prefix", "pmda_indom_cache", "debug", "pin", ENABLED];

    /// Returns the module's name without directories: `ext4dist` for `fs.ext4dist`.
    pub fn kind(&self) -> &str {
        self.module.rsplit('.').next().unwrap_or(&self.module)
    }

    /// Checks that its cluster is free: neither one of the agent's own nor that of another module.
    pub fn stands_alone(&self, section: Section<'_>, others: &[ModuleSettings]) -> Result<(), ConfigError> {
        if OWN_CLUSTERS.contains(&self.cluster) {
            let (first, last) = (OWN_CLUSTERS.start(), OWN_CLUSTERS.end());
            let reason = format!("{first} to {last} are clusters of the agent's own metrics; give it another");
            return Err(section.reject("cluster", reason));
        }
        match others.iter().find(|other| other.cluster == self.cluster) {
            Some(other) => {
                let reason = format!("{} is the cluster of [{}] too; give each its own", self.cluster, other.section);
                Err(section.reject("cluster", reason))
            }
            None => Ok(()),
        }
    }

    /// Returns settings with the option `module` only, which are not enough to serve it.
    pub fn named(section: Section<'_>) -> Option<ModuleSettings> {
        Some(ModuleSettings {
            section: section.name().to_owned(),
            module: module(section.get("module").ok()??).ok()?,
            cluster: 0,
            prefix: String::new(),
            indom_cache: true,
            debug: false,
            pin: None,
        })
    }

    /// Reads the shared options of a section. After an error in one of them the settings are returned too, if the others tell where
    /// the metrics are.
    pub fn read(section: Section<'_>, default_prefix: &str) -> (Option<ModuleSettings>, Result<(), ConfigError>) {
        let mut errors = Errors::default();
        let module = errors.take(section.require("module", section.name()).and_then(module));
        let cluster = errors.take(section.require("cluster", "200").and_then(|value| value.int_in(0..=MAX_CLUSTER)));
        let own = errors.take(section.get("prefix").and_then(|value| value.map(|value| prefix(&value)).transpose()));
        let indom_cache = errors.take(flag(section, "pmda_indom_cache", true)).unwrap_or(true);
        let debug = errors.take(flag(section, "debug", false)).unwrap_or(false);
        let pin = errors.take(flag(section, "pin", false)).unwrap_or(false);
        let of_module = |(key, _): &(String, String)| !ModuleSettings::KEYS.contains(&key.as_str());
        let settings = module.zip(cluster).map(|(module, cluster)| ModuleSettings {
            section: section.name().to_owned(),
            module,
            cluster,
            prefix: own.flatten().unwrap_or_else(|| default_prefix.to_owned()),
            indom_cache,
            debug,
            pin: pin.then(|| section.said().into_iter().filter(of_module).collect()),
        });
        (settings, errors.end())
    }
}

/// The cost of an error in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// No cost: the line has no effect, all others have.
    Nothing,
    /// An option of `[pmda]`, which has its default.
    Option,
    /// A module, by the name under which it is enabled: that of its section if it has one.
    Module(String),
    /// All modules.
    All,
}

/// An error in the configuration.
#[derive(Debug)]
pub struct Fault {
    /// The cost of the error.
    pub cost: Cost,
    /// The error, with its place and advice.
    pub error: ConfigError,
}

impl Fault {
    /// Makes a fault of each of the errors.
    pub fn each(cost: &Cost, error: ConfigError) -> Vec<Fault> {
        error.into_each().into_iter().map(|error| Fault { cost: cost.clone(), error }).collect()
    }
}

impl Default for Settings {
    /// Settings without modules.
    fn default() -> Settings {
        Settings {
            modules: Vec::new(),
            process_refresh: None,
            module_failure_fatal: true,
            prefix: "bcc.".to_owned(),
            bpf_stats: false,
            show_arguments: true,
            drop_privileges: true,
            load_later: None,
            control_users: Vec::new(),
            control_groups: Vec::new(),
            allow_helpers: Vec::new(),
        }
    }
}

impl Settings {
    /// True if modules and programs may be loaded and stopped while the agent runs; `programs` is the directory of pairs.
    pub fn loads_later(&self, programs: &Path) -> bool {
        !self.drop_privileges || self.load_later.unwrap_or_else(|| programs.is_dir())
    }

    /// Reads `[pmda]` and the shared options of the enabled modules, or returns the first error.
    pub fn read(config: &Config) -> Result<Settings, ConfigError> {
        let (settings, faults) = Settings::survey(config);
        let costly = faults.into_iter().find(|fault| fault.cost != Cost::Nothing);
        costly.map_or(Ok(settings), |fault| Err(fault.error))
    }

    /// Reads all settings that can be read, and returns all errors.
    pub fn survey(config: &Config) -> (Settings, Vec<Fault>) {
        let notes = Notes::default();
        let (settings, mut faults) = Settings::make_out(config, &notes);
        faults.extend(notes.take_warnings().into_iter().map(|error| Fault { cost: Cost::Nothing, error }));
        (settings, faults)
    }

    fn make_out(config: &Config, notes: &Notes) -> (Settings, Vec<Fault>) {
        let mut settings = Settings::default();
        let mut faults = Vec::new();
        let Some(pmda) = config.section("pmda") else {
            let other = config.sections().find(|section| section.name().eq_ignore_ascii_case("pmda"));
            let error = match other {
                Some(other) => other.error(format!("[{}] has to be written [pmda]", other.name())),
                None => config.missing("no section [pmda]; add one with a line `modules = netproc`".to_owned()),
            };
            return (settings, vec![Fault { cost: Cost::All, error }]);
        };
        let pmda = pmda.noted_in(notes);
        let defaults = config.defaults.entries.iter().map(|entry| entry.key.as_str());
        let unknown = SettingDef::unknown(PMDA, pmda, pmda.keys().chain(defaults));
        faults.extend(unknown.map(|error| Fault { cost: Cost::Option, error }));
        let mut read = |cost, result: Result<(), ConfigError>| {
            faults.extend(result.err().map(|error| Fault { cost, error }));
        };
        read(
            Cost::All,
            pmda.get("prefix").and_then(|value| value.map(|value| prefix(&value)).transpose()).map(|prefix| {
                settings.prefix = prefix.unwrap_or("bcc.".to_owned());
            }),
        );
        let refresh = pmda.get("process_refresh");
        let refresh = refresh.and_then(|value| value.map(|value| value.clamped(0..=u32::MAX)).transpose());
        read(
            Cost::Option,
            refresh.map(|seconds| {
                let seconds = seconds.filter(|&seconds| seconds > 0);
                settings.process_refresh = seconds.map(|seconds| Duration::from_secs(seconds.into()));
            }),
        );
        // Whoever sets it may mean to have all modules or none.
        read(Cost::All, flag(pmda, "module_failure_fatal", true).map(|fatal| settings.module_failure_fatal = fatal));
        read(Cost::Option, flag(pmda, "bpf_stats", false).map(|stats| settings.bpf_stats = stats));
        let arguments = flag(pmda, "show_arguments", true);
        settings.show_arguments = *arguments.as_ref().unwrap_or(&false); // who sets it means to hide them
        read(Cost::Option, arguments.map(drop));
        read(Cost::Option, flag(pmda, "drop_privileges", true).map(|drops| settings.drop_privileges = drops));
        let later = pmda.get("load_later").and_then(|value| value.map(|value| value.bool()).transpose());
        read(Cost::Option, later.map(|later| settings.load_later = later));
        let names = |option| Ok(pmda.get(option)?.map_or_else(Vec::new, |value| words(&value)));
        read(Cost::Option, names("control_users").map(|names| settings.control_users = names));
        read(Cost::Option, names("control_groups").map(|names| settings.control_groups = names));
        read(Cost::Option, allowed(pmda).map(|allowed| settings.allow_helpers = allowed));
        let Switches { on, off, faults: mut unclear } = Switches::read(config);
        faults.append(&mut unclear);
        let list = match pmda.get("modules") {
            // Nothing has to be there if sections are enabled where they stand.
            Ok(None) if !on.is_empty() => Ok(None),
            _ => pmda.require("modules", "netproc").map(Some),
        };
        match list {
            Ok(list) => {
                let mut sections = list.map_or_else(Vec::new, |list| listed(config, &list, &mut faults));
                sections.retain(|section| !off.contains(section.name()));
                sections.extend(on);
                let sections = sections.into_iter().map(|section| section.noted_in(notes)).collect();
                settings.modules = modules(sections, &settings.prefix, &mut faults);
            }
            Err(error) => faults.push(Fault { cost: Cost::All, error }),
        }
        (settings, faults)
    }
}

/// Sections by their option `enabled`.
struct Switches<'a> {
    on: Vec<Section<'a>>,
    off: HashSet<&'a str>,
    faults: Vec<Fault>,
}

impl<'a> Switches<'a> {
    fn read(config: &'a Config) -> Switches<'a> {
        let mut switches = Switches { on: Vec::new(), off: HashSet::new(), faults: Vec::new() };
        for section in config.sections().filter(|section| section.name() != "pmda") {
            match section.is_enabled() {
                Ok(Some(true)) => switches.on.push(section),
                Ok(Some(false)) => drop(switches.off.insert(section.name())),
                Ok(None) => {}
                Err(error) => {
                    let cost = Cost::Module(section.name().to_owned());
                    switches.faults.push(Fault { cost, error });
                }
            }
        }
        switches
    }
}

impl Section<'_> {
    /// Returns the section's option `enabled`, whatever the option `modules` lists.
    pub fn is_enabled(&self) -> Result<Option<bool>, ConfigError> {
        self.get(ENABLED)?.map(|value| value.bool()).transpose()
    }
}

/// Splits a list of names at commas.
fn words(value: &Value<'_>) -> Vec<String> {
    value.list().into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the sections that an option `modules` lists.
fn listed<'a>(config: &'a Config, names: &Value<'_>, faults: &mut Vec<Fault>) -> Vec<Section<'a>> {
    let mut sections = Vec::new();
    for name in names.list() {
        if name.is_empty() {
            let error = names.error("names of sections with commas between them");
            faults.push(Fault { cost: Cost::Option, error });
            continue;
        }
        match meant(config, names, name) {
            Ok(section) => sections.push(section),
            Err(error) => faults.push(Fault { cost: Cost::Module(name.to_owned()), error }),
        }
    }
    sections
}

/// Reads the modules of sections, each section once.
fn modules(sections: Vec<Section<'_>>, prefix: &str, faults: &mut Vec<Fault>) -> Vec<ModuleSettings> {
    let mut modules = Vec::<ModuleSettings>::new();
    let mut seen = HashSet::new();
    for section in sections {
        if !seen.insert(section.name()) {
            continue;
        }
        let cost = Cost::Module(section.name().to_owned());
        let (module, read) = ModuleSettings::read(section, prefix);
        faults.extend(read.err().into_iter().flat_map(|error| Fault::each(&cost, error)));
        let Some(module) = module else { continue };
        match module.stands_alone(section, &modules) {
            Ok(()) => modules.push(module),
            Err(error) => faults.push(Fault { cost, error }),
        }
    }
    modules
}

/// Returns the section of an entry of `modules`: the one of this name, or else the one with this module.
fn meant<'a>(config: &'a Config, names: &Value<'_>, name: &str) -> Result<Section<'a>, ConfigError> {
    if let Some(section) = config.section(name) {
        return Ok(section);
    }
    let configures = |section: &Section<'_>| {
        let module = section.get("module").ok().flatten();
        module.is_some_and(|module| [Some(module.text()), module.text().rsplit('.').next()].contains(&Some(name)))
    };
    let found: Vec<Section<'a>> = config.sections().filter(configures).collect();
    match found[..] {
        [section] => Ok(section),
        [first, second, ..] => {
            let name = shown(name);
            Err(names
                .reject(format!("{name} is the module of [{}] and [{}]; name the section", first.name, second.name)))
        }
        [] => {
            let hint = if comment(name).is_some() {
                COMMENTS.to_owned()
            } else if name.contains(char::is_whitespace) {
                "; names need commas between them".to_owned()
            } else {
                did_you_mean(name, config.sections().map(|section| section.name))
            };
            let name = shown(name);
            Err(names.reject(format!("there is no section or module {name}; remove it from `modules`{hint}")))
        }
    }
}

/// Returns the helpers that `allow_helpers` names.
fn allowed(pmda: Section<'_>) -> Result<Vec<String>, ConfigError> {
    let Some(value) = pmda.get("allow_helpers")? else { return Ok(Vec::new()) };
    let names = value.list();
    match names.iter().find(|name| !GUARDED_HELPERS.contains(name)) {
        Some(wrong) => {
            let known = GUARDED_HELPERS.join(", ");
            let meant = did_you_mean(wrong, GUARDED_HELPERS);
            Err(value.reject(format!("expected helpers of {known}, got {}{meant}", shown(wrong))))
        }
        None => Ok(names.into_iter().map(String::from).collect()),
    }
}

fn flag(section: Section<'_>, key: &str, default: bool) -> Result<bool, ConfigError> {
    section.get(key)?.map_or(Ok(default), |value| value.bool())
}

fn module(value: Value<'_>) -> Result<String, ConfigError> {
    if value.text().split('.').any(str::is_empty) {
        return Err(value.error("the name of a module, such as `biolatency` or `fs.ext4dist`"));
    }
    Ok(value.text().to_owned())
}

/// Reads a prefix. It has to consist of whole components of a name, PMNS(5), each with a dot, since it is put in front of names.
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
    use super::super::{Line, MODULE_OPTIONS};
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let config = Config::parse("f.conf", text.as_bytes()).unwrap();
        Settings::read(&config).map_err(|error| error.to_string())
    }

    const TWO: &str = "\n[a]\nmodule = sysfork\ncluster = 2\n[b]\nmodule = fs.ext4dist\ncluster = 5\ndebug = on\n";

    #[test]
    fn options_that_are_described_are_read() {
        for option in SettingDef::names(MODULE_OPTIONS) {
            assert!(ModuleSettings::KEYS.contains(&option), "{option}");
        }
        for option in PMDA {
            let Some(Line::Set(value) | Line::Example(value)) = option.line else { continue };
            let list = if option.name == "modules" { "" } else { "modules = a\n" };
            let value = if option.name == "modules" { "a" } else { value };
            let read = read(&format!("[pmda]\n{list}{} = {value}\n{TWO}", option.name));
            assert!(read.is_ok(), "{}: {read:?}", option.name);
        }
    }

    #[test]
    fn defaults_are_those_of_the_original() {
        let settings = read(&format!("[pmda]\nmodules = a{TWO}")).unwrap();
        assert_eq!(settings.process_refresh, None);
        assert!(settings.module_failure_fatal);
        let a = ModuleSettings {
            section: "a".into(),
            module: "sysfork".into(),
            cluster: 2,
            prefix: "bcc.".into(),
            indom_cache: true,
            debug: false,
            pin: None,
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

    /// Regression test: users write the value of `module =` into the list `modules`.
    #[test]
    fn a_module_is_enabled_by_its_section_or_its_own_name() {
        let names = |list: &str| -> Vec<String> {
            let settings = read(&format!("[pmda]\nmodules = {list}{TWO}")).unwrap();
            settings.modules.into_iter().map(|module| module.section).collect()
        };
        assert_eq!(names("fs.ext4dist, sysfork"), ["b", "a"]);
        assert_eq!(names("ext4dist, b, fs.ext4dist"), ["b"], "each section once");
        let twice = read(&format!("[pmda]\nmodules = sysfork{TWO}[c]\nmodule = sysfork\n")).unwrap_err();
        assert!(twice.ends_with("`sysfork` is the module of [a] and [c]; name the section"), "{twice}");
    }

    #[test]
    fn sections_are_enabled_and_disabled_where_they_stand() {
        let names = |pmda: &str, a: &str, b: &str| {
            let two = TWO.replace("cluster = 2\n", &format!("cluster = 2\n{a}\n")) + b;
            read(&format!("[pmda]\n{pmda}{two}\n"))
                .map(|settings| settings.modules.into_iter().map(|module| module.section).collect::<Vec<_>>())
        };
        assert_eq!(names("modules = a", "", "enabled = true"), Ok(vec!["a".into(), "b".into()]));
        assert_eq!(names("modules = b", "enabled = on", ""), Ok(vec!["b".into(), "a".into()]));
        assert_eq!(names("modules = b, a", "enabled = yes", "enabled = no"), Ok(vec!["a".into()]));
        assert_eq!(names("modules =", "enabled = 1", ""), Ok(vec!["a".into()]));
        assert_eq!(names("", "", "enabled = 1"), Ok(vec!["b".into()]));
        assert!(names("", "", "enabled = 0").unwrap_err().contains("[pmda] has no option `modules`"));
        assert!(names("modules = b", "enabled = maybe", "").unwrap_err().contains("[a] enabled: expected a boolean"));
    }

    #[test]
    fn each_fault_says_what_it_costs_and_the_rest_is_read() {
        let pmda = "[pmda]\nmodules = a,,nope,b,c\nprefix = 1\nfrob = 1\nbpf_stats = x\nmodule_failure_fatal = no\n";
        let text = format!("{pmda}{}[c]\ncluster = x\n", TWO.replace("debug = on", "debug = x"));
        let config = Config::parse("f.conf", text.as_bytes()).unwrap();
        let (settings, faults) = Settings::survey(&config);
        let told: Vec<(Cost, usize)> = faults.into_iter().map(|fault| (fault.cost, fault.error.line())).collect();
        let module = |name: &str| Cost::Module(name.into());
        let option = Cost::Option;
        let wanted = [(option.clone(), 4), (Cost::All, 3), (option.clone(), 5), (option, 2), (module("nope"), 2)];
        assert_eq!(told[..5], wanted);
        assert_eq!(told[5..], [(module("b"), 14), (module("c"), 15), (module("c"), 16)]);
        assert_eq!(settings.modules.iter().map(|m| m.section.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(!settings.module_failure_fatal && !settings.modules[1].debug);
    }

    #[test]
    fn faults_say_where_and_what_to_do() {
        let pmda = |options: &str| read(&format!("[pmda]\n{options}{TWO}")).unwrap_err();
        assert_eq!(read("[x]\n").unwrap_err(), "f.conf: no section [pmda]; add one with a line `modules = netproc`");
        assert_eq!(read("\n[PMDA]\n").unwrap_err(), "f.conf:2: [PMDA] has to be written [pmda]");
        assert_eq!(pmda(""), "f.conf:1: [pmda] has no option `modules`; add a line `modules = netproc`");
        assert_eq!(pmda("modules ="), "f.conf:2: [pmda] modules: there is no value; write `modules = netproc`");
        for empty in ["modules = a,", "modules = ,a"] {
            assert!(pmda(empty).starts_with("f.conf:2: [pmda] modules: expected names of sections"), "{empty}");
        }
        assert!(pmda("modules = a # no").contains("there is no section or module `a # no`"));
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
