//! Options of `[pmda]`, of `[scripts]` and of every module's section, declared once: for the check for unknown options, the default
//! configuration and the man page.

use super::{did_you_mean, ConfigError, Section};

/// An option that belongs to no module.
pub struct SettingDef {
    /// Name of the option.
    pub name: &'static str,
    /// Line of the default configuration: a value, or after `# ` an example; `None` for options that are described only.
    pub line: Option<Line>,
    /// Sentences for a user.
    pub doc: &'static str,
}

/// A line of the default configuration.
#[derive(Clone, Copy)]
pub enum Line {
    /// An option with this value.
    Set(&'static str),
    /// A comment with this example.
    Example(&'static str),
}

impl SettingDef {
    /// Returns the names of options.
    pub fn names(options: &'static [SettingDef]) -> impl Iterator<Item = &'static str> {
        options.iter().map(|option| option.name)
    }

    /// Returns an error for each key of a section that is none of its options.
    pub fn unknown<'a>(
        options: &'static [SettingDef],
        section: Section<'a>,
        keys: impl Iterator<Item = &'a str> + 'a,
    ) -> impl Iterator<Item = ConfigError> + 'a {
        let unknown = keys.filter(move |key| !SettingDef::names(options).any(|name| name == *key));
        unknown.map(move |key| {
            let place = if section.own.find(key).is_some() { "" } else { " (where [DEFAULT] shows as well)" };
            let known = SettingDef::names(options).collect::<Vec<_>>().join(", ");
            let meant = did_you_mean(key, SettingDef::names(options));
            section.reject(key, format!("no option of [{}]{place}; it has {known}{meant}", section.name()))
        })
    }
}

const fn setting(name: &'static str, line: Line, doc: &'static str) -> SettingDef {
    SettingDef { name, line: Some(line), doc }
}

const fn described(name: &'static str, doc: &'static str) -> SettingDef {
    SettingDef { name, line: None, doc }
}

/// Modules of the default configuration.
pub const DEFAULT_MODULES: &str = "biolatency,runqlat,netproc,oomkill";

/// The options of `[pmda]`; any other one there is an error.
pub const PMDA: &[SettingDef] = &[
    setting(
        "modules",
        Line::Set(DEFAULT_MODULES),
        "Modules to run, separated by commas: names of sections, or of modules that need no section. `enabled = True` or \
         `enabled = False` in a section overrides the list. A module whose section has an error fails alone; bcc.agent.module.status says why.",
    ),
    setting("prefix", Line::Set("bcc."), "Beginning of all metric names."),
    setting(
        "process_refresh",
        Line::Set("60"),
        "How often, in seconds, all processes are rescanned for `process` matches; 0: at start only; default: 60. New processes are matched \
         when they start, by command name (at most 15 bytes) or command line (at most 4 KB), and count from their first instruction; a rescan \
         finds processes that change their name. Longer command lines and expressions with look-around or backreferences are matched \
         milliseconds after the start.",
    ),
    setting(
        "module_failure_fatal",
        Line::Set("False"),
        "True, the default without this line: a module that cannot be loaded ends the agent, and an error in the configuration keeps all \
         modules from running. False, as shipped: it costs one module.",
    ),
    setting(
        "bpf_stats",
        Line::Set("False"),
        "Have the kernel count runs and run time of BPF programs, for bcc.agent.program.runs and .time. This applies to all BPF programs of \
         the machine and costs 20 to 30 ns a run, until the agent ends; default: False.",
    ),
    setting(
        "show_arguments",
        Line::Set("True"),
        "Show the arguments of processes in bcc.proc.exec.args and in the log. They can contain \
         passwords, and pmcd lets every host fetch every metric unless its [access] section forbids it: see SECURITY in \
         pmdacorebcc(1).",
    ),
    setting(
        "drop_privileges",
        Line::Set("True"),
        "Give up, once the modules are loaded, the capabilities and system calls that they do not need any more. The log names \
         the capabilities that remain; docs/agent.md has them by module.",
    ),
    setting(
        "load_later",
        Line::Example("True"),
        "Whether modules and programs can be loaded while the agent runs (pmstore bcc.agent.module.control, bcc.agent.control, SIGHUP, files \
         of programs.d). One thread keeps the capabilities for it, and pmcd is asked who its clients are. Default: True if there is a directory \
         programs.d beside the configuration file when the agent starts.",
    ),
    setting(
        "control_users",
        Line::Example("alice"),
        "Users, separated by commas, who may store in bcc.agent.control and bcc.agent.module.control, over the local socket or after a login; \
         root always may.",
    ),
    setting("control_groups", Line::Example("operators"), "Groups, separated by commas, whose members may."),
    setting(
        "allow_helpers",
        Line::Example("bpf_send_signal"),
        "Functions by which programs in programs.d may change processes: bpf_probe_write_user, bpf_override_return, bpf_send_signal, \
         bpf_send_signal_thread, bpf_send_signal_task; default: none. A program that calls another of them is not loaded.",
    ),
];

/// The options of `[scripts]`.
pub const SCRIPT_OPTIONS: &[SettingDef] = &[
    described("bpftrace", "Path of bpftrace; default: /usr/bin/bpftrace."),
    described("memory", "Megabytes of data that each of its processes may have, 64 to 65536; default: 512."),
    described(
        "expiry",
        "Seconds, 10 to 86400, after which a script is ended whose values nobody fetches; default: never. The next fetch of its values starts \
         it. A script with a line `// name:` is not ended.",
    ),
];

/// Options of every module's section that a user may set. The text of `pin` is followed by the modules that have it.
pub const MODULE_OPTIONS: &[SettingDef] = &[
    described("module", "The module; it cannot run twice. Default: that of the section's name."),
    described("enabled", "True or False: whether it runs, whatever `modules` lists."),
    described(
        "cluster",
        "The cluster in the PMIDs of its metrics, 0 to 4095. 200 to 299 are for a site's own use, 300 to 349 are taken by settings and \
         additions of the agent, and modules that pmdabcc did not have begin at 400. Default: the one that the module has below.",
    ),
    described("prefix", "Instead of the prefix in [pmda]."),
    described("debug", "Log more."),
    described(
        "pin",
        "True: counts outlive the agent, in maps that are pinned below /sys/fs/bpf/corebcc (docs/agent.md); for",
    ),
];
