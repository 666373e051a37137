//! The files that follow from the declarations: the default configuration, the man page, the README's module table. `UPDATE=1 cargo test
//! --test files` writes them.

use crate::kit::{Need, Shape, Spec, TableSpec};
use crate::privilege::capabilities;
use std::collections::BTreeSet;
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
         # Whether the agent gives up, once its modules are loaded, the capabilities and system calls that they do not need any\n\
         # more. The log names the capabilities that it keeps; docs/agent.md has them by module.\n\
         drop_privileges = True\n\
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
                Shape::Log2(_) => "powers of two, in microseconds".into(),
                Shape::Rows { order, .. } => format!("rows, {order}"),
                Shape::Named { .. } | Shape::Words { .. } => "names".into(),
                Shape::Pids => "processes".into(),
                Shape::Numbered => "names of fixed numbers".into(),
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

/// The capabilities of modules in Markdown: beyond CAP_BPF and CAP_PERFMON to be loaded, and beyond CAP_BPF afterwards.
pub fn capability_table(specs: &[&Spec]) -> String {
    let mut rows: Vec<([String; 2], Vec<&str>)> = Vec::new();
    for spec in sorted(specs) {
        let afterwards = spec.running_needs();
        let loading = [spec.needs_to_load, &afterwards].concat();
        let cells = [needed(&loading, &["CAP_PERFMON"]), needed(&afterwards, &[])];
        match rows.iter_mut().find(|(others, _)| *others == cells) {
            Some((_, modules)) => modules.push(spec.name),
            None => rows.push((cells, vec![spec.name])),
        }
    }
    let mut table = "| modules | while loading | afterwards |\n| --- | --- | --- |\n".to_owned();
    for ([loading, afterwards], modules) in rows {
        let _ = writeln!(table, "| {} | {loading} | {afterwards} |", modules.join(", "));
    }
    table
}

/// The capabilities that needs come to, without these.
fn needed(needs: &[Need], without: &[&str]) -> String {
    let names = |needs: &mut dyn Iterator<Item = &Need>| -> BTreeSet<String> {
        needs.flat_map(|&need| capabilities(need)).map(ToString::to_string).collect()
    };
    let always = names(&mut needs.iter().filter(|need| **need != Need::Processes));
    let hidden = names(&mut needs.iter().filter(|need| **need == Need::Processes));
    let always_cells = always.iter().filter(|name| !without.contains(&name.as_str())).map(|name| format!("`{name}`"));
    let hidden_cells = hidden.difference(&always).map(|name| format!("`{name}` with `hidepid`"));
    let cells: Vec<String> = always_cells.chain(hidden_cells).collect();
    if cells.is_empty() {
        "-".into()
    } else {
        cells.join(", ")
    }
}

/// `pmdacorebcc(1)` in man(7): the options from the command line's declaration, the configuration from the modules'.
pub fn man_page(command: &clap::Command, specs: &[&Spec]) -> String {
    let mut page = String::from(
        ".TH PMDACOREBCC 1 \"\" \"corebcc\" \"Performance Co-Pilot\"\n.SH NAME\npmdacorebcc \\- BPF metrics domain agent\n\
         .SH SYNOPSIS\n.B pmdacorebcc\n.RI [ options ]\n.br\n.B pmdacorebcc show\n[\n.B \\-\\-folded\n]\n.IR metric \" [\" interval \" [\" count ]]\n\
         .SH DESCRIPTION\n.B pmdacorebcc\nserves the\n.B bcc.*\nmetrics of Performance Co-Pilot from BPF programs that are compiled \
         into it.\n.BR pmcd (1)\nstarts it as its line in\n.I pmcd.conf\nsays; the script\n.B Install\nin the agent's \
         directory writes that line.\n.PP\nWith\n.B show\nit prints metrics without pmcd, as histograms and tables, until it is \
         interrupted; with\n.B \\-\\-folded\nas the lines that flame graph programs read:\n.PP\n.RS\npmdacorebcc show \\-\\-folded \
         bcc.proc.stacks 10 1 | flamegraph.pl > stacks.svg\n.RE\n.SH OPTIONS\n",
    );
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let mut names: Vec<String> = argument.get_short().map(|short| format!("-{short}")).into_iter().collect();
        names.extend(argument.get_long().map(|long| format!("--{long}")));
        let takes = argument.get_action().takes_values();
        let value = argument.get_value_names().filter(|_| takes).map(|names| names.join(" ")).unwrap_or_default();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(page, ".TP\n.BR {} \" \" {}\n{}.", roff(&names.join(", ")), quoted(&value), roff(&help));
    }
    page.push_str(
        ".SH CONFIGURATION\nThe configuration file is that of the Python agent it replaces: sections in brackets, \
         options with\n.B =\nor\n.BR : ,\nlines that begin with # or ; are comments.\n.SS [pmda]\n\
         .TP\n.B modules\nThe modules to run, separated by commas; each has a section.\n\
         .TP\n.B prefix\nWhat the names of all metrics begin with (bcc.).\n\
         .TP\n.B process_refresh\nSeconds between two looks at all processes for those that options\n.B process\nmean; 0: only \
         at start. New processes need no look: one whose command name (at most 15 bytes) is an entry, or whose command line (at \
         most 4 KB) an expression matches, counts from its first instruction on. Looks find those that change their names \
         later. Longer command lines, and expressions with look-around, references to groups, word boundaries or very many \
         states, take some milliseconds.\n\
         .TP\n.B module_failure_fatal\nTrue, which is the default: a module that cannot be loaded ends the agent, and an error in the file keeps all \
         modules from running. False: it costs the module only.\n\
         .TP\n.B bpf_stats\nWhether the kernel counts the runs of BPF programs and their time, for bcc.agent.program (False).\n\
         .TP\n.B show_arguments\nWhether the arguments of processes are shown by bcc.proc.exec.args and in the log (True). An error in it hides them.\n\
         .TP\n.B drop_privileges\nWhether the agent gives up, once its modules are loaded, the capabilities and system calls that they do not need \
         any more (True). The log names the capabilities that it keeps.\n",
    );
    for spec in sorted(specs) {
        let _ = writeln!(page, ".SS [{}]\n{}; cluster {}.", spec.name, roff(spec.summary), spec.cluster());
        for option in spec.options {
            let doc: Vec<&str> = option.doc.lines().map(str::trim).collect();
            let default = (option.default)();
            let otherwise = match option.example {
                Some(example) => format!("for example {example}"),
                None if default.is_empty() => "default: unset".into(),
                None => format!("default: {default}"),
            };
            let _ = writeln!(
                page,
                ".TP\n.B {}\n{}\nExpected: {}; {}.",
                roff(option.name),
                roff(&doc.join(" ")),
                roff(option.expected),
                roff(&otherwise)
            );
        }
    }
    page.push_str(
        ".SH SECURITY\nThe agent runs as root, or with CAP_BPF, CAP_PERFMON and whatever else its modules need.\n.PP\n\
         The metrics show processes of all users to everybody who may fetch from\n.BR pmcd (1),\nwhich by default is every host. \
         bcc.proc.exec.args has whole command lines, which can contain passwords; archives of\n.BR pmlogger (1)\nkeep them. With\n\
         .B show_arguments = False\nin [pmda] neither values nor the log have arguments. To have\n.B pmcd\nserve this host only \
         (all of its agents: there are no rules for a single one), end\n.I pmcd.conf\nwith\n.PP\n.RS\n.nf\n[access]\n\
         disallow \".*\" : all;\ndisallow \":*\" : all;\nallow \"local:*\" : all;\n.fi\n.RE\n.PP\nand, for each host that may fetch, a line \
         such as\n.PP\n.RS\nallow \"192.0.2.7\" : fetch;\n.RE\n.PP\n\
         .BR pmproxy (1)\nis a client on this host, whoever its own clients are.\n.PP\n\
         With a pipe (the default) nobody but\n.B pmcd\ncan reach the agent. The socket of\n.B \\-\\-unix\nbelongs to PCP_USER, mode 0660; it may be in \
         any directory that only root, PCP_USER and the agent's own account can write to, or a sticky one such as /tmp. \
         With\n.B \\-\\-inet\nand\n.B \\-\\-ipv6\nthe agent takes the first connection over the loopback interface from one of these \
         accounts and refuses others; any account can still take the port before the agent does. Prefer a pipe or a Unix\\-domain socket.\n",
    );
    page + ".SH FILES\n.TP\n.I $PCP_SYSCONF_DIR/corebcc/corebcc.conf\nthe configuration\n.TP\n\
            .I $PCP_LOG_DIR/pmcd/corebcc.log\nthe log\n.TP\n.I $PCP_PMDAS_DIR/corebcc\nthe agent's directory, with\n\
            .BR Install \" and \" Remove\n.TP\n.I $PCP_VAR_DIR/config/pmda/149.*\nidentifiers of instances\n.TP\n\
            .I $PCP_RUN_DIR/corebcc.starts\nstarts since the machine's\n.SH EXIT STATUS\n0 after an orderly end; 1 if the command line is wrong, with\n\
            .B \\-\\-check\nif the configuration is, or if a module that has to be loaded cannot be.\n.SH SEE ALSO\n.BR pmcd (1),\n.BR pminfo (1),\n.BR pmdabpf (1)\n"
}

/// Text as roff takes it: no line of it may be a request, and a hyphen is a minus.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) {
        format!("\\&{escaped}")
    } else {
        escaped
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", roff(text).replace('"', "\\(dq"))
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
        assert_eq!(order("tcplife"), "rows, the latest first");
        assert_eq!(order("execsnoop"), "rows, the latest first");
        assert_eq!(order("tcptop"), "rows, the most bytes first");
        assert_eq!(order("biotop"), "rows, the most bytes first unless `sort` says otherwise");
    }

    #[test]
    fn names_share_what_they_have_in_common() {
        assert_eq!(common(&["a.b.c", "a.b.d"]), "`a.b.{c,d}`");
        assert_eq!(common(&["a.b.c"]), "`a.b.c`");
        assert_eq!(common(&["x.y", "a.b"]), "`{x.y,a.b}`");
    }
}
