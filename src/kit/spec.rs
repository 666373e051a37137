//! How a module is declared: metrics, maps, options, hooks. Everything else about it (names, descriptors, instance domains,
//! help, default configuration, checks of the BPF object) follows from the [`Spec`].

use super::{Hook, MapDef, MetricDef, Module, Need, OptionDef, Setup, SetupError, TableSpec};

/// The kind of a module: `Spec { name: "sysfork", tables: &[&TABLE], .., ..Spec::NEW }`. A section of the configuration enables it.
pub struct Spec {
    /// The stem of its files and the default name of its section.
    pub name: &'static str,
    /// The directory it had in the Python agent (`fs.`), with which the option `module` may name it.
    pub directory: &'static str,
    /// One line: what it shows.
    pub summary: &'static str,
    /// What it costs while it runs.
    pub overhead: Overhead,
    /// What the kernel or the machine has to have besides BTF, for the configuration; empty: nothing.
    pub needs: &'static str,
    /// Its metrics, a table for each instance domain. The option `cluster` numbers the first.
    pub tables: &'static [&'static TableSpec],
    /// The options of its section.
    pub options: &'static [OptionDef],
    /// Where it attaches, for the table of hooks; an enabled module may want only some of them.
    pub hooks: &'static [&'static Hook],
    /// The maps of the BPF object that it owns or shares. A map is created only if a module that is on names it.
    pub maps: &'static [MapDef],
    /// The maps of these that have its counts, and that can be read without any other: with the option `pin` they outlive the agent.
    pub counts: &'static [MapDef],
    /// What takes a privilege while it is loaded only.
    pub needs_to_load: &'static [Need],
    /// What takes a privilege as long as it runs. That it looks at processes if it has the option `process` goes without saying.
    pub needs_to_run: &'static [Need],
    /// Reads the section and makes the module.
    pub make: fn(&Setup<'_>) -> Result<Box<dyn Module + Send>, SetupError>,
}

/// What a module costs while it runs, by its class and by its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// How much it is on a busy machine.
    pub class: OverheadClass,
    /// The median run time of its programs by event, net of an empty program: `160 ns per request`. benches/events measures it.
    pub events: &'static str,
}

/// The share of one CPU that a module takes on a busy machine: with 10,000 disk requests, connections or probe hits a second, 1,000 execs,
/// 500,000 context switches, sends and receives, 200,000 file operations, and 2,000,000 system calls and mutexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverheadClass {
    /// Not declared.
    Unknown,
    /// Less than 1 %.
    Low,
    /// 1 to 5 %.
    Medium,
    /// More, or the processes that are traced pay for a breakpoint at every event.
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

    /// More than 5 % of a CPU on a busy machine, or a breakpoint in the processes that are traced.
    pub const fn high(events: &'static str) -> Overhead {
        Overhead { class: OverheadClass::High, events }
    }
}

impl Spec {
    /// What most modules leave as it is.
    pub const NEW: Spec = Spec {
        name: "",
        directory: "",
        summary: "",
        overhead: Overhead { class: OverheadClass::Unknown, events: "" },
        needs: "",
        tables: &[],
        options: &[],
        hooks: &[],
        maps: &[],
        counts: &[],
        needs_to_load: &[],
        needs_to_run: &[],
        make: |setup| Err(setup.section.reject("module", "expected a module that can be enabled")),
    };

    /// What the option `module` says: the name, with the directory it had in the Python agent (`fs.ext4dist`).
    pub fn path(&self) -> String {
        format!("{}{}", self.directory, self.name)
    }

    /// The names of those whose counts can outlive the agent, for a sentence.
    pub fn pinnable(specs: &[&Spec]) -> String {
        let able = specs.iter().filter(|spec| !spec.counts.is_empty());
        able.map(|spec| spec.name).collect::<Vec<_>>().join(", ")
    }

    /// Whether the option `module` or the name of a section means it.
    pub fn is_named(&self, name: &str) -> bool {
        name == self.name || name.strip_prefix(self.directory) == Some(self.name)
    }

    /// The PMID cluster of its first table, if the section says nothing else.
    pub fn cluster(&self) -> u32 {
        self.tables.first().map_or(0, |table| table.cluster)
    }

    /// What takes a privilege as long as it runs.
    pub fn running_needs(&self) -> Vec<Need> {
        let mut needs = self.needs_to_run.to_vec();
        let filters = self.options.iter().any(|option| option.name == "process");
        if filters && !needs.contains(&Need::Processes) {
            needs.insert(0, Need::Processes);
        }
        needs
    }

    /// The metrics of all of its tables.
    pub fn metrics(&self) -> impl Iterator<Item = &'static MetricDef> {
        self.tables.iter().flat_map(|table| table.metrics)
    }

    /// A section for the module with these lines, and with examples of what has to be given and is not in them.
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
