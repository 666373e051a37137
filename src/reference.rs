//! The files that follow from the declarations: the default configuration, the man page, the tables of modules and metrics. `UPDATE=1 cargo
//! test --test files` writes them.

mod man;
mod roff;

pub use man::man_page;

use crate::kit::{Shape, Spec, TableSpec};
use std::fmt::Write;

/// Modules that run without a configuration of one's own.
const DEFAULT_MODULES: &[&str] = &["biolatency", "runqlat", "netproc"];

/// `corebcc.conf`: every section and option with its default or an example, in the dialect of the Python agent's `bcc.conf`.
pub fn configuration(specs: &[&Spec]) -> String {
    let mut text = format!(
        "# Configuration of pmdacorebcc, in the format of the Python agent's bcc.conf, which can be used as it is.\n\
         # Lines that begin with # or ; are comments; there are none behind a value. The installed file is never\n\
         # overwritten. After a change: pmdacorebcc --check=FILE, then restart pmcd or run ./Install again.\n\
         \n\
         [pmda]\n\
         # The modules to run, separated by commas. Each has a section below. One whose section has an error fails, and says\n\
         # so in bcc.agent.module.status.\n\
         modules = {}\n\
         # What the names of all metrics begin with.\n\
         prefix = bcc.\n\
         # Seconds between two looks at all processes for those that `process` options mean; 0: only at start. New processes\n\
         # need no look: one whose command name (at most 15 bytes) is an entry, or whose command line (at most 4 KB) an\n\
         # expression matches, counts from its first instruction on. Looks find those that change their names.\n\
         process_refresh = 60\n\
         # False: a module that cannot be loaded fails alone, and its metrics answer with an error. True, the default without\n\
         # this line: it ends the agent, and an error anywhere in this file keeps all modules from running.\n\
         module_failure_fatal = False\n\
         # Whether the kernel counts the runs of BPF programs and their time, for bcc.agent.program.runs and .time. It then\n\
         # does so for all BPF programs of the machine, at 20 to 30 ns a run, for as long as the agent lives.\n\
         bpf_stats = False\n\
         # Whether bcc.proc.exec.args and the log show the arguments of processes. They can contain passwords, and pmcd lets\n\
         # every host fetch every metric unless the [access] section of pmcd.conf forbids it:\n\
         #   disallow \".*\" : all;\n\
         #   disallow \":*\" : all;\n\
         #   allow \"local:*\" : all;\n\
         # See SECURITY in pmdacorebcc(1).\n\
         show_arguments = True\n\
         \n\
         # Every module section takes, besides its own options:\n\
         #   module   the module; one module cannot run twice\n\
         #   cluster  the cluster in its metrics' identifiers, 0 to 4095 (200 to 299 are for a site's own use, 300 to 349 taken)\n\
         #   prefix   instead of the prefix above\n\
         #   debug    log more\n",
        DEFAULT_MODULES.join(",")
    );
    for spec in sorted(specs) {
        let _ = write!(
            text,
            "\n# {}\n[{}]\nmodule = {}\ncluster = {}\n",
            spec.summary,
            spec.name,
            spec.path(),
            spec.cluster()
        );
        for option in spec.options {
            for line in option.doc.lines() {
                let _ = writeln!(text, "#{}", line.trim_end());
            }
            let _ = writeln!(text, "# Expected: {}.", option.expected);
            let _ = writeln!(text, "{}", format!("#{} = {}", option.name, option.sample()).trim_end());
        }
    }
    text
}

/// The table of modules in Markdown.
pub fn module_table(specs: &[&Spec]) -> String {
    let mut text = String::from("| module | metrics below `bcc.` | instances | hooks |\n| --- | --- | --- | --- |\n");
    for spec in sorted(specs) {
        let (mut metrics, mut instances) = (Vec::new(), Vec::new());
        for table in spec.tables {
            metrics.push(common(&table.metrics.iter().map(|metric| metric.name).collect::<Vec<_>>()));
            instances.push(match table.shape {
                Shape::Single => "none".into(),
                Shape::Log2(_) => "power-of-two buckets in microseconds".into(),
                Shape::Rows { order, .. } => format!("rows, {order}"),
                Shape::Named { .. } | Shape::Words { .. } => "names".into(),
                Shape::Pids => "processes".into(),
                Shape::Numbered => "names with fixed identifiers".into(),
            });
        }
        let hooks: Vec<&str> = spec.hooks.iter().map(|hook| hook.name).collect();
        let star = if DEFAULT_MODULES.contains(&spec.name) { " (default)" } else { "" };
        let _ = writeln!(
            text,
            "| {}{star}: {} | {} | {} | {} |",
            spec.name,
            spec.summary,
            metrics.join("; "),
            instances.join("; "),
            hooks.join(", ")
        );
    }
    text
}

/// The agent's own metrics in Markdown.
pub fn status_table<'a>(tables: impl Iterator<Item = &'a TableSpec>) -> String {
    let mut text = String::from("| metric below `bcc.` | by | what it is |\n| --- | --- | --- |\n");
    for table in tables {
        let by = if table.shape == Shape::Single { "" } else { table.summary.trim_start_matches("each ") };
        for metric in table.metrics {
            let _ = writeln!(text, "| `{}` | {by} | {} |", metric.name, metric.oneline);
        }
    }
    text
}

fn sorted<'a>(specs: &[&'a Spec]) -> Vec<&'a Spec> {
    let mut specs = specs.to_vec();
    specs.sort_by_key(|spec| spec.cluster());
    specs
}

/// `a.b.{c,d}`: the names below what they have in common.
fn common(names: &[&str]) -> String {
    let [first, rest @ ..] = names else { return String::new() };
    if rest.is_empty() {
        return format!("`{first}`");
    }
    let shared = (0..first.len())
        .rev()
        .find(|&end| first[..end].ends_with('.') && rest.iter().all(|name| name.starts_with(&first[..end])))
        .unwrap_or(0);
    let tails: Vec<&str> = names.iter().map(|name| &name[shared..]).collect();
    format!("`{}{{{}}}`", &first[..shared], tails.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_rows_are_described_by_the_order_they_have() {
        let table = module_table(crate::modules::MODULES);
        let order = |module: &str| {
            let line = table.lines().find(|line| line.starts_with(&format!("| {module}: "))).unwrap();
            line.split(" | ").nth(2).unwrap().to_owned()
        };
        assert_eq!(order("tcplife"), "rows, latest first");
        assert_eq!(order("execsnoop"), "rows, latest first");
        assert_eq!(order("tcptop"), "rows, most bytes first");
        assert_eq!(order("biotop"), "rows, most bytes first or as `sort` orders them");
    }

    #[test]
    fn names_share_what_they_have_in_common() {
        assert_eq!(common(&["a.b.c", "a.b.d"]), "`a.b.{c,d}`");
        assert_eq!(common(&["a.b.c"]), "`a.b.c`");
        assert_eq!(common(&["x.y", "a.b"]), "`{x.y,a.b}`");
    }
}
