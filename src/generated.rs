//! The files that follow from the declarations: the default configuration, the README's module table. `UPDATE=1 cargo test
//! --test files` writes them.

use crate::kit::{Shape, Spec};
use std::fmt::Write;

/// Modules that run without a configuration of one's own.
const DEFAULT_MODULES: &[&str] = &["biolatency", "runqlat", "netproc"];

/// `corebcc.conf`: every section and option with its default, in the dialect of the Python agent's `bcc.conf`.
pub fn configuration(specs: &[&Spec]) -> String {
    let mut text = format!(
        "# Configuration of pmdacorebcc, in the format of the Python agent's bcc.conf, which can be used as it is.\n\
         # Lines that begin with # or ; are comments; there are none behind a value. The installed file is never\n\
         # overwritten. After a change: pmdacorebcc --check=FILE, then restart pmcd or run ./Install again.\n\
         \n\
         [pmda]\n\
         # The modules to run, separated by commas. Each has a section below.\n\
         modules = {}\n\
         # What the names of all metrics begin with.\n\
         prefix = bcc.\n\
         # Seconds between two looks for new processes that `process` options mean; 0: only at start.\n\
         process_refresh = 60\n\
         # Whether a module that cannot be loaded ends the agent. Otherwise its metrics answer with an error.\n\
         module_failure_fatal = False\n\
         \n\
         # Every module section takes, besides its own options:\n\
         #   module   the module; one module cannot run twice\n\
         #   cluster  the cluster in its metrics' identifiers, 0 to 4095 (200 to 299 are for a site's own use)\n\
         #   prefix   instead of the prefix above\n\
         #   debug    log more\n",
        DEFAULT_MODULES.join(",")
    );
    for spec in sorted(specs) {
        let _ =
            write!(text, "\n# {}\n[{}]\nmodule = {}\ncluster = {}\n", spec.summary, spec.name, spec.path, spec.cluster);
        for option in spec.options {
            for line in option.doc.lines() {
                let _ = writeln!(text, "#{}", line.trim_end());
            }
            let _ = writeln!(text, "# Expected: {}.", option.expected);
            let _ = writeln!(text, "{}", format!("#{} = {}", option.name, (option.default)()).trim_end());
        }
    }
    text
}

/// The table of modules in Markdown.
pub fn module_table(specs: &[&Spec]) -> String {
    let mut text = String::from("| module | metrics below `bcc.` | instances | hooks |\n| --- | --- | --- | --- |\n");
    for spec in sorted(specs) {
        let names: Vec<&str> = spec.metrics.iter().map(|metric| metric.name).collect();
        let instances = match spec.shape {
            Shape::Single => "none",
            Shape::Log2(_) => "powers of two, in microseconds",
            Shape::Rows { .. } => "rows, the latest first",
            Shape::Named { .. } => "names",
            Shape::Pids => "processes",
            Shape::Numbered => "names of fixed numbers",
        };
        let hooks: Vec<&str> = spec.hooks.iter().map(|hook| hook.name).collect();
        let star = if DEFAULT_MODULES.contains(&spec.name) { " (default)" } else { "" };
        let _ = writeln!(
            text,
            "| {}{star}: {} | {} | {instances} | {} |",
            spec.name,
            spec.summary,
            common(&names),
            hooks.join(", ")
        );
    }
    text
}

fn sorted<'a>(specs: &[&'a Spec]) -> Vec<&'a Spec> {
    let mut specs = specs.to_vec();
    specs.sort_by_key(|spec| spec.cluster);
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
    fn names_share_what_they_have_in_common() {
        assert_eq!(common(&["a.b.c", "a.b.d"]), "`a.b.{c,d}`");
        assert_eq!(common(&["a.b.c"]), "`a.b.c`");
        assert_eq!(common(&["x.y", "a.b"]), "`{x.y,a.b}`");
    }
}
