//! `pmdacorebcc(1)`: options from the declaration of the command line, metrics from those of the modules.

use super::roff::Page;
use super::sorted;
use crate::kit::{capitalized, Spec, TableSpec};
use clap::{Arg, Command};

/// Date of both pages; it is changed together with their sentences.
pub(super) const DATE: &str = "2026-11-25";

/// Returns the page `pmdacorebcc(1)`. `status` has the tables of the agent's own metrics.
pub fn man_page<'a>(command: &Command, specs: &[&Spec], status: impl Iterator<Item = &'a TableSpec>) -> String {
    let mut page = Page::new("pmdacorebcc", 1, DATE);
    introduction(&mut page);
    command_line(&mut page, command);
    page.section("CONFIGURATION").text(
        "The configuration file is `corebcc.conf`, with the sections and options of `corebcc.conf`(5). After a change, run \
         `pmdacorebcc --check`, then restart pmcd or run `Install` again.",
    );
    metrics(&mut page, specs, status);
    privileges(&mut page);
    diagnostics(&mut page);
    examples(&mut page);
    installation(&mut page);
    page.finish()
}

fn introduction(page: &mut Page) {
    page.section("NAME").request("pmdacorebcc \\- BPF performance metrics domain agent (PMDA)");
    page.section("SYNOPSIS");
    page.request(".B pmdacorebcc\n.RI [ options ]\n.br\n.B pmdacorebcc \\-\\-check\n.RI [ file ]");
    page.request(".br\n.B pmdacorebcc show\n.RI [ options ]\n.IR metric \" ... [\" interval \" [\" count ]]");
    page.request(".br\n.B pmdacorebcc new\n.I name");
    page.request(".br\n.B pmdacorebcc completions bash\n|\n.B zsh\n|\n.B fish");
    page.section("DESCRIPTION").text(
        "`pmdacorebcc` is a Performance Metrics Domain Agent (PMDA) which exports latency histograms, I/O and network traffic by \
         process, and other `bcc.*` metrics from BPF programs that are compiled into it.",
    );
    page.paragraph("It replaces `pmdabcc`, with the same metric names, identifiers and configuration file.");
    page.paragraph(
        "`pmcd`(1) starts it from the line in `pmcd.conf` that the script `Install` writes. See INSTALLATION.",
    );
    page.paragraph("`pmdacorebcc show` prints metrics in the terminal. It needs no pmcd.");
}

fn command_line(page: &mut Page, command: &Command) {
    page.section("OPTIONS");
    arguments(page, command.get_arguments());
    for sub in command.get_subcommands() {
        page.subsection(&format!("pmdacorebcc {}", sub.get_name()));
        page.text(&format!("{}.", sub.get_about().map(ToString::to_string).unwrap_or_default()));
        arguments(page, sub.get_arguments().filter(|argument| !argument.is_global_set()));
    }
}

fn arguments<'a>(page: &mut Page, arguments: impl Iterator<Item = &'a Arg>) {
    for argument in arguments.filter(|argument| !argument.is_hide_set()) {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        page.tagged(&synopsis(argument), &format!("{help}."));
    }
}

/// Formats an option and its value as `-l, --log FILE`.
fn synopsis(argument: &Arg) -> String {
    let mut names: Vec<String> = argument.get_short().map(|short| format!("`-{short}`")).into_iter().collect();
    names.extend(argument.get_long().map(|long| format!("`--{long}`")));
    let takes = argument.get_action().takes_values();
    let value = argument.get_value_names().filter(|_| takes).map(|names| names.join(" ")).unwrap_or_default();
    let optional = argument.get_num_args().is_some_and(|range| range.min_values() == 0);
    match (names.join(", "), value) {
        (names, value) if names.is_empty() => value,
        (names, value) if value.is_empty() => names,
        (names, value) if argument.is_require_equals_set() && optional => format!("{names}[={value}]"),
        (names, value) if argument.is_require_equals_set() => format!("{names}={value}"),
        (names, value) if optional => format!("{names} [{value}]"),
        (names, value) => format!("{names} {value}"),
    }
}

fn metrics<'a>(page: &mut Page, specs: &[&Spec], status: impl Iterator<Item = &'a TableSpec>) {
    page.section("METRICS").text(
        "The nodes below are those with the default prefix. A module's metrics have names while the module is enabled. `pminfo -t` \
         lists the metrics of a node with a line for each, `pminfo -T` their full help texts.",
    );
    for spec in sorted(specs) {
        page.tagged(
            &format!("`{}`", spec.name),
            &format!("{}: {}.", capitalized(spec.summary), nodes(spec.tables.iter().copied())),
        );
    }
    page.tagged("the agent itself", &format!("{}. They need no module.", nodes(status)));
}

/// Returns the nodes of the namespace that hold the metrics of tables, none below another.
fn nodes<'a>(tables: impl Iterator<Item = &'a TableSpec>) -> String {
    let nodes: Vec<&str> = tables.map(node).collect();
    let is_below = |name: &str, node: &str| name.strip_prefix(node).is_some_and(|rest| rest.starts_with('.'));
    let mut named: Vec<String> = Vec::new();
    for name in nodes.iter().filter(|name| !nodes.iter().any(|node| is_below(name, node))) {
        let name = format!("`bcc.{name}`");
        if !named.contains(&name) {
            named.push(name);
        }
    }
    named.join(", ")
}

/// Returns the deepest node above all metrics of a table; for a single metric its name.
fn node(table: &TableSpec) -> &'static str {
    let names = table.metrics.iter().map(|metric| metric.name);
    let shared = |one: &'static str, other: &'static str| {
        let is_shared = |end: &usize| {
            other.get(..*end) == Some(&one[..*end]) && [None, Some(".")].contains(&other.get(*end..end + 1))
        };
        let mut ends = one.match_indices('.').map(|(dot, _)| dot).chain([one.len()]);
        &one[..ends.rfind(is_shared).unwrap_or(0)]
    };
    names.reduce(shared).unwrap_or_default()
}

fn privileges(page: &mut Page) {
    page.section("PRIVILEGES");
    page.text("The agent runs as root, or with the capabilities CAP_BPF and CAP_PERFMON (before Linux 5.8, CAP_SYS_ADMIN). Some modules need more:");
    for (capability, needed) in [
        (
            "CAP_SYS_ADMIN",
            "uprobes and USDT on some kernels; `bpf_stats = True` and storing 1 to `bcc.agent.program.stats`, for which a small helper process \
             keeps it.",
        ),
        ("CAP_SYS_RESOURCE", "BPF maps before Linux 5.11, if the locked-memory limit is too low for them."),
        (
            "CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE",
            "user stacks, USDT probes and files of other accounts' processes; tracefs.",
        ),
        ("CAP_SYSLOG", "addresses of kernel functions, for `klockstat` and kernel stacks."),
        ("CAP_CHOWN", "giving the socket of `--unix` to PCP_USER."),
        ("CAP_SETUID, CAP_SETGID", "`--username`."),
    ] {
        page.tagged(&format!("`{capability}`"), &capitalized(needed));
    }
    page.paragraph(
        "After loading, the agent drops the capabilities and system calls that its modules no longer need, unless `drop_privileges = False`. \
         The helper process, `corebcc-stats`, runs if the agent drops CAP_SYS_ADMIN. It can only ask the kernel for program statistics.",
    );
    page.paragraph(
        "Loading fails in user namespaces (rootless containers) and under lockdown=confidentiality; in a PID namespace, modules with the option \
         `process` fail.",
    );
    page.section("SECURITY").text(
        "The metrics show processes of all users to everybody who may fetch from `pmcd`(1), by default every host. `bcc.proc.exec.args` \
         has whole command lines, which can contain passwords; archives of `pmlogger`(1) keep them. With `show_arguments = False` \
         in [pmda], neither values nor the log contain arguments.",
    );
    page.paragraph("To restrict pmcd (all of its agents) to this host, end `pmcd.conf` with");
    page.example(&["[access]", "disallow \".*\" : all;", "disallow \":*\" : all;", "allow \"local:*\" : all;"]);
    page.paragraph("and add a line for each host that may fetch:");
    page.example(&["allow \"192.0.2.7\" : fetch;"]);
    page.paragraph("To pmcd, `pmproxy`(1) is a client on this host, whoever pmproxy's own clients are.");
    page.paragraph(
        "With a pipe (the default) only pmcd can reach the agent. The socket of `--unix` belongs to PCP_USER, mode 0660. Its directory must be \
         writable only by root, PCP_USER and the agent's own account, or sticky as /tmp is. With `--inet` and `--ipv6` the agent accepts the \
         first loopback connection from one of these accounts and refuses others; any account can take the port before the agent does. Prefer \
         a pipe or a Unix-domain socket.",
    );
}

fn diagnostics(page: &mut Page) {
    page.section("DIAGNOSTICS").text("Errors are reported in three places, in the same words:");
    page.tagged(
        "`pmdacorebcc --check`",
        "All errors in the configuration, then hook by hook what this kernel accepted.",
    );
    page.tagged("`bcc.agent.configuration.status`, `bcc.agent.module.status`", "The same for the running agent.");
    page.tagged("the log", "One line per module, then `ready:` with the number of modules loaded.");
    page.paragraph("Values that a client may get instead of a number:");
    page.tagged(
        "`Metric not supported by this version of monitored application`",
        "The module failed to load or its section has an error.",
    );
    page.tagged(
        "`Try again. Information not currently available`",
        "The agent is still loading, or the module did not answer in time.",
    );
    page.tagged("`Unknown metric name`", "The module is not enabled.");
    page.paragraph("States of a module in `bcc.agent.module.state`:");
    page.tagged("`running`", "Attached.");
    page.tagged("`postponed`", "Loaded; attaches when needed, as `profile` does.");
    page.tagged("`no values`", "Loaded, but the last refresh failed.");
    page.tagged("`failed`", "Not loaded.");
    page.tagged("`off`", "Not enabled.");
    page.paragraph("`bcc.agent.lost.events` counts, by reason, events that a module saw but could not count.");
    page.section("EXIT STATUS");
    page.tagged("0", "Orderly end; with `--check`, every enabled module loaded and attached to all of its targets.");
    page.tagged("1", "Invalid command line, invalid configuration (`--check`), or a module failed that must not fail.");
}

fn examples(page: &mut Page) {
    page.section("EXAMPLES").text("Check the configuration, and print why a module does not work:");
    page.example(&["sudo pmdacorebcc --check", "pminfo -f bcc.agent.module.status"]);
    page.paragraph("Watch block I/O latency, five readings, one second apart:");
    page.example(&["sudo pmdacorebcc show bcc.disk.all.latency 1 5"]);
    page.paragraph("Draw a flame graph of ten seconds on all CPUs:");
    page.example(&[
        "sudo pmdacorebcc show --folded bcc.proc.stacks 10 1 > stacks.folded",
        "flamegraph.pl stacks.folded > stacks.svg",
    ]);
    page.paragraph("Print a histogram's counters, and the traffic of each process:");
    page.example(&["pmval -r -t 1 -s 5 -i 64-127 bcc.runq.latency", "pmrep -t 1 -s 3 :bcc-net"]);
}

fn installation(page: &mut Page) {
    page.section("INSTALLATION").text("Install the PMDA and register it with pmcd:");
    page.example(&["cd /var/lib/pcp/pmdas/corebcc && sudo ./Install"]);
    page.paragraph("`Remove` in the same directory undoes it and keeps the configuration.");
    page.paragraph("`Install` starts pmcd if necessary. It replaces another agent of domain 149, such as pmdabcc, and adopts its configuration.");
    page.section("FILES");
    for (file, text) in [
        ("$PCP_SYSCONF_DIR/corebcc/corebcc.conf", "configuration, see `corebcc.conf`(5)"),
        ("$PCP_LOG_DIR/pmcd/corebcc.log", "log"),
        ("$PCP_PMDAS_DIR/corebcc", "installation directory, with `Install` and `Remove`"),
        (
            "$PCP_VAR_DIR/config/pmda/149.*",
            "instance identifiers, kept over restarts, and a secret number (149.secret) by which names are hashed",
        ),
        ("$PCP_RUN_DIR/corebcc.starts", "agent starts since boot"),
    ] {
        page.request(".TP").request(&format!(".I {file}")).text(&capitalized(&format!("{text}.")));
    }
    page.section("PCP ENVIRONMENT").text(
        "Environment variables with the prefix `PCP_` parameterize the file and directory names used by PCP. On each installation, \
         `/etc/pcp.conf` contains the local values. `PCP_CONF` names an alternative file, as described in `pcp.conf`(5).",
    );
    page.section("SEE ALSO").request(
        ".BR corebcc.conf (5),\n.BR PCPIntro (1),\n.BR pmcd (1),\n.BR pmdabpf (1),\n.BR pmie (1),\n.BR pminfo (1),\n.BR pmlogger (1),\n.BR pmproxy (1),\n\
         .BR pmrep (1),\n.BR pmstore (1),\n.BR pmval (1),\n.BR pcp.conf (5),\n.BR pcp.env (5)",
    );
}
