//! Declaration of a module: metrics, maps, options, hooks. Everything else about it (names, descriptors, instance
//! domains, help, default configuration, checks of the BPF object) follows from the [`Spec`].

use super::{Hook, MapDef, MetricDef, Module, Need, OptionDef, Setup, SetupError, TableSpec};

/// The kind of a module: `Spec { name: "sysfork", tables: &[&TABLE], .., ..Spec::NEW }`. A section of the configuration enables it.
pub struct Spec {
    /// Stem of its files, and default name of its section.
    pub name: &'static str,
    /// Directory of the module in the Python agent (`fs.`), which the option `module` may include.
    pub directory: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Run-time cost.
    pub overhead: Overhead,
    /// Requirements on kernel or machine besides BTF, for the configuration; empty: none.
    pub needs: &'static str,
    /// Kernel modules with its hooks, where these are not built in: once one is loaded, a module that failed is loaded again.
    pub kernel_modules: &'static [&'static str],
    /// Metrics, a table for each instance domain. The option `cluster` numbers the first.
    pub tables: &'static [&'static TableSpec],
    /// Options of its section.
    pub options: &'static [OptionDef],
    /// Hooks, for the table of hooks; an enabled module may use only some of them.
    pub hooks: &'static [&'static Hook],
    /// Maps of the BPF object that it owns or shares. A map is created only if an enabled module names it.
    pub maps: &'static [MapDef],
    /// Maps with its counts that can be read without any other map: with the option `pin` they outlive the agent.
    pub counts: &'static [MapDef],
    /// Privileges needed only while it is loaded.
    pub needs_to_load: &'static [Need],
    /// Privileges needed as long as it runs; the option `process` implies [`Need::Processes`].
    pub needs_to_run: &'static [Need],
    /// Reads the section and makes the module. All that have a section are made, enabled or not, before the helpers are forked: what
    /// takes time or memory belongs into [`Module::plan`].
    pub make: fn(&Setup<'_>) -> Result<Box<dyn Module + Send>, SetupError>,
}

/// Run-time cost of a module, by class and by event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Cost on a busy machine.
    pub class: OverheadClass,
    /// Median run time of its programs by event, without that of an empty program: `160 ns per request`. Measured by
    /// benches/events.
    pub events: &'static str,
}

/// Share of one CPU on a busy machine: with 10,000 disk requests, connections or probe hits a second, 1,000 execs,
/// 500,000 context switches, sends and receives, 200,000 file operations, and 2,000,000 system calls and mutexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverheadClass {
    /// Not declared.
    Unknown,
    /// Less than 1 %.
    Low,
    /// 1 to 5 %.
    Medium,
    /// More than 5 %, or a breakpoint at every event in the traced processes.
    High,
}

impl Overhead {
    /// Less than 1 % of a CPU on a busy machine.
    pub const fn low(events: &'static str) -> Overhead {
        Overhead { class: OverheadClass::Low, events }
    }

    /// 1 to 5 % of a CPU on a busy machine.
    pub const fn medium(events: &'static str) -> Overhead {
        Overhead { class: OverheadClass::Medium, events }
    }

    /// More than 5 % of a CPU on a busy machine, or a breakpoint at every event in the traced processes.
    pub const fn high(events: &'static str) -> Overhead {
        Overhead { class: OverheadClass::High, events }
    }
}

impl Spec {
    /// Default values.
    pub const NEW: Spec = Spec {
        name: "",
        directory: "",
        summary: "",
        overhead: Overhead { class: OverheadClass::Unknown, events: "" },
        needs: "",
        kernel_modules: &[],
        tables: &[],
        options: &[],
        hooks: &[],
        maps: &[],
        counts: &[],
        needs_to_load: &[],
        needs_to_run: &[],
        make: |setup| Err(setup.section.reject("module", "expected a module that can be enabled")),
    };

    /// Returns the value of the option `module`: the name, with its directory in the Python agent (`fs.ext4dist`).
    pub fn path(&self) -> String {
        format!("{}{}", self.directory, self.name)
    }

    /// Returns the names of the modules whose counts can outlive the agent, for a sentence.
    pub fn pinnable(specs: &[&Spec]) -> String {
        let able = specs.iter().filter(|spec| !spec.counts.is_empty());
        able.map(|spec| spec.name).collect::<Vec<_>>().join(", ")
    }

    /// True if the option `module` or the name of a section refers to this module.
    pub fn is_named(&self, name: &str) -> bool {
        name == self.name || name.strip_prefix(self.directory) == Some(self.name)
    }

    /// Returns the default PMID cluster of its first table.
    pub fn cluster(&self) -> u32 {
        self.tables.first().map_or(0, |table| table.cluster)
    }

    /// Returns the privileges needed as long as it runs.
    pub fn running_needs(&self) -> Vec<Need> {
        let mut needs = self.needs_to_run.to_vec();
        let filters = self.options.iter().any(|option| option.name == "process");
        if filters && !needs.contains(&Need::Processes) {
            needs.insert(0, Need::Processes);
        }
        needs
    }

    /// Iterates over the metrics of all tables.
    pub fn metrics(&self) -> impl Iterator<Item = &'static MetricDef> {
        self.tables.iter().flat_map(|table| table.metrics)
    }

    /// Returns a section for the module with these lines, and examples for missing options without a default.
    pub fn section(&self, lines: &str) -> String {
        let mut text = format!("[{}]\nmodule = {}\ncluster = {}\n{lines}\n", self.name, self.path(), self.cluster());
        for (name, example) in self.options.iter().filter_map(|option| Some((option.name, option.example?))) {
            if !lines.lines().any(|line| line.split('=').next().is_some_and(|key| key.trim() == name)) {
                text += &format!("{name} = {example}\n");
            }
        }
        text
    }
}
