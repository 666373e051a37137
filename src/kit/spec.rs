//! How a module is declared: metrics, maps, options, hooks. Everything else about it (names, descriptors, instance domains,
//! help, default configuration, checks of the BPF object) follows from the [`Spec`].

use super::{Hook, Log2, MapDef, MetricDef, Module, OptionDef, Setup, SetupError};

/// The kind of a module. A section of the configuration makes an instance of it.
pub struct Spec {
    /// The stem of its files and the default name of its section.
    pub name: &'static str,
    /// What the option `module` says: the name, with the directory it had in the Python agent (`fs.ext4dist`).
    pub path: &'static str,
    /// One line: what it shows.
    pub summary: &'static str,
    /// Default PMID cluster, and serial of the instance domain.
    pub cluster: u32,
    /// The instance domain.
    pub shape: Shape,
    /// The metrics, in the order of their items.
    pub metrics: &'static [MetricDef],
    /// What it has beyond the Python agent's metrics: others with a cluster and an instance domain of their own, from 310 on.
    pub addition: Option<&'static Spec>,
    /// The options of its section.
    pub options: &'static [OptionDef],
    /// Where it attaches, for the table of hooks; an instance may want only some of them.
    pub hooks: &'static [&'static Hook],
    /// The maps of the BPF object that it owns or shares. A map is created only if a module that is on names it.
    pub maps: &'static [MapDef],
    /// Reads the section and makes the module.
    pub make: fn(&Setup<'_>) -> Result<Box<dyn Module + Send>, SetupError>,
}

impl Spec {
    /// Metrics that no section of a configuration asks for: they come with a module, or with the agent.
    pub const fn unasked(
        name: &'static str,
        summary: &'static str,
        cluster: u32,
        shape: Shape,
        metrics: &'static [MetricDef],
    ) -> Spec {
        Spec {
            name,
            path: name,
            summary,
            cluster,
            shape,
            metrics,
            addition: None,
            options: &[],
            hooks: &[],
            maps: &[],
            make: |setup| Err(setup.section.reject("module", "expected a module that can be enabled")),
        }
    }

    /// A section for the module with these lines, and with examples of what has to be given and is not in them.
    pub fn section(&self, lines: &str) -> String {
        let mut text = format!("[{}]\nmodule = {}\ncluster = {}\n{lines}\n", self.name, self.path, self.cluster);
        for (name, example) in self.options.iter().filter_map(|option| Some((option.name, option.example?))) {
            if !lines.lines().any(|line| line.split('=').next().is_some_and(|key| key.trim() == name)) {
                text += &format!("{name} = {example}\n");
            }
        }
        text
    }
}

/// An instance domain's shape: it owns naming, identifiers, persistence, trimming and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No instance domain.
    Single,
    /// Powers of two: `0-1`, `2-3`, `4-7`, ... up to the highest that ever counted; the identifier is the slot.
    Log2(Log2),
    /// Rows `0` to n-1, most recent or highest first; the identifier is the row. The option named here says how many.
    Rows {
        /// The option that holds the number of rows.
        count: &'static str,
        /// Which row comes first, for the documents.
        order: &'static str,
    },
    /// Any names, at most `max`: identifiers are handed out once and kept over restarts.
    Named {
        /// Names beyond it are refused, and counted.
        max: usize,
    },
    /// As [`Shape::Named`], but the first word of a name alone gets the identifier and is kept. What follows it may change.
    Words {
        /// Words beyond it are refused, and counted.
        max: usize,
    },
    /// Processes: the identifier is the process id.
    Pids,
    /// Numbers that have names: the identifier is the number.
    Numbered,
}
