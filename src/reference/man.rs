//! `pmdacorebcc(1)`: the options from the command line's declaration, configuration and metrics from the modules'.

use super::roff::Page;
use super::sorted;
use crate::kit::{OptionDef, Spec, TableSpec};
use clap::{Arg, Command};

/// Changes when a sentence of this file does.
const DATE: &str = "2026-11-22";

/// The page. `status` are the tables of the agent's own metrics.
pub fn man_page<'a>(command: &Command, specs: &[&Spec], status: impl Iterator<Item = &'a TableSpec>) -> String {
    let mut page = Page::new("pmdacorebcc", DATE);
    introduction(&mut page);
    command_line(&mut page, command);
    configuration(&mut page, specs);
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

/// `-l, --log FILE`, with the value as the option takes it.
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

/// The options of `[pmda]`.
const PMDA: &[(&str, &str)] = &[
    ("modules", "The modules to enable, separated by commas. Each has a section."),
    ("prefix", "Prefix of all metric names; `bcc.` by default."),
    (
        "process_refresh",
        "How often, in seconds, all processes are rescanned for `process` matches; 0: at start only; default: 60. New processes are matched \
         when they start, by command name (at most 15 bytes) or by command line (at most 4 KB), and count from their first instruction. The \
         rescan finds processes that change their name later. Longer command lines, and expressions with look-around, backreferences, word \
         boundaries or very many states, are matched a few milliseconds after the start.",
    ),
    (
        "module_failure_fatal",
        "True (the default without this line): a module that cannot be loaded ends the agent, and any error in the file disables all modules. \
         False (as shipped): it disables that module only.",
    ),
    (
        "bpf_stats",
        "Let the kernel count runs and run time of BPF programs, for `bcc.agent.program`. This applies to all BPF programs of the machine and \
         costs 20 to 30 ns per run; default: False.",
    ),
    (
        "show_arguments",
        "Show the arguments of processes in `bcc.proc.exec.args` and in the log; default: True. An invalid value hides them.",
    ),
    (
        "drop_privileges",
        "Drop the capabilities and system calls that the modules do not need after loading; default: True. The log names the capabilities that \
         remain.",
    ),
    (
        "load_later",
        "Let modules and programs be loaded while the agent runs: the thread that loads keeps the capabilities for it, and pmcd is asked who its \
         clients are. Default: True if there is a directory programs.d beside the configuration file when the agent starts.",
    ),
    (
        "control_users",
        "Users, with commas between them, who may store in `bcc.agent.control` and `bcc.agent.module.control`, over the local socket or \
         after a login; root always may.",
    ),
    ("control_groups", "Groups whose members may."),
    (
        "allow_helpers",
        "Functions by which programs in `programs.d` may change processes: `bpf_probe_write_user`, `bpf_override_return`, `bpf_send_signal`, \
         `bpf_send_signal_thread`, `bpf_send_signal_task`; default: none. A pair that calls another of them is not loaded.",
    ),
];

fn configuration(page: &mut Page, specs: &[&Spec]) {
    page.section("CONFIGURATION").text(
        "The configuration file has the format of pmdabcc's `bcc.conf`, which can be used unchanged: sections in brackets, options with `=` or \
         `:`. Lines that begin with # or ; are comments; no comments after a value.",
    );
    page.paragraph(
        "Files `conf.d/*.conf` beside it are read next, in the order of their names, if they are regular files that belong to root and only \
         root can write to. They add sections, or options that override earlier ones.",
    );
    page.paragraph(
        "After a change, run `pmdacorebcc --check-syntax`, which only reads the files, or `pmdacorebcc --check`, which also loads the modules. \
         Then restart pmcd or run `Install` again; or, with `load_later`, `pmstore bcc.agent.control reload` or SIGHUP: only modules whose \
         sections have changed are loaded anew.",
    );
    page.subsection("[pmda]");
    for (name, text) in PMDA {
        page.request(".TP").request(&format!(".B {name}")).text(text);
    }
    page.subsection("[scripts]");
    page.text(
        "With this section, which may be empty, bpftrace(8) runs each script `scripts.d/NAME.bt` beside the configuration file, and its maps are \
         metrics `bcc.script.NAME.data.MAP`. Script and directories must belong to root and be writable by nobody else. Scripts are started, \
         restarted and ended as their files come, change and go; the section itself is read at the start.",
    );
    page.tagged("`bpftrace`", "The path of bpftrace; default: /usr/bin/bpftrace.");
    page.tagged("`memory`", "Megabytes of data that each of its processes may have, 64 to 65536; default: 512.");
    page.tagged(
        "`expiry`",
        "Seconds, 10 to 86400, after which a script is ended whose values nobody fetches; default: never. The next fetch of its values \
         starts it. A script with a line `// name:` is not ended.",
    );
    page.subsection("Options of every module");
    page.tagged("`module`", "The module's name. A module cannot run twice.");
    page.tagged("`enabled`", "True or False: enable or disable the module, regardless of `modules`.");
    page.tagged(
        "`cluster`",
        "The cluster of the metrics' identifiers, 0 to 4095. 200 to 299 are free for local use; 300 to 349 are reserved; modules that \
         pmdabcc did not have begin at 400.",
    );
    page.tagged("`prefix`", "Instead of the prefix in [pmda].");
    page.tagged("`debug`", "Log debugging output.");
    let able = Spec::pinnable(specs);
    page.tagged(
        "`pin`",
        &format!("True: counts of the module outlive the agent, in maps that are pinned below /sys/fs/bpf/corebcc. For {able}."),
    );
    for spec in sorted(specs) {
        let needs = if spec.needs.is_empty() { String::new() } else { format!(" Needs {}.", spec.needs) };
        page.subsection(&format!("[{}]", spec.name));
        page.text(&format!(
            "{}; cluster {}. {}.{needs}",
            spec.summary,
            spec.cluster(),
            capitalized(spec.overhead.events)
        ));
        for option in spec.options {
            page.tagged(&format!("`{}`", option.name), &described(option));
        }
    }
}

fn described(option: &OptionDef) -> String {
    let doc: Vec<&str> = option.doc.lines().map(str::trim).collect();
    let default = (option.default)();
    let otherwise = match option.example {
        Some(example) => format!("for example `{example}`"),
        None if default.is_empty() => "default: unset".into(),
        None => format!("default: `{default}`"),
    };
    format!("{} Expected: {}; {otherwise}.", doc.join(" "), option.expected)
}

fn metrics<'a>(page: &mut Page, specs: &[&Spec], status: impl Iterator<Item = &'a TableSpec>) {
    page.section("METRICS").text(
        "The names below are those with the default prefix. A module's metrics have names while the module is enabled. `pminfo -T` shows the \
         full help text of a metric.",
    );
    for spec in sorted(specs) {
        page.subsection(spec.name).text(&format!("{}.", spec.summary));
        for table in spec.tables {
            listed(page, table);
        }
    }
    page.subsection("bcc.agent").text("The agent's own metrics, which need no module.");
    for table in status {
        listed(page, table);
    }
}

fn listed(page: &mut Page, table: &TableSpec) {
    for metric in table.metrics {
        page.tagged(&format!("`bcc.{}`", metric.name), &format!("{}.", metric.oneline));
    }
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

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
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
        ("$PCP_SYSCONF_DIR/corebcc/corebcc.conf", "configuration"),
        ("$PCP_LOG_DIR/pmcd/corebcc.log", "log"),
        ("$PCP_PMDAS_DIR/corebcc", "installation directory, with `Install` and `Remove`"),
        ("$PCP_VAR_DIR/config/pmda/149.*", "instance identifiers, kept over restarts"),
        ("$PCP_RUN_DIR/corebcc.starts", "agent starts since boot"),
    ] {
        page.request(".TP").request(&format!(".I {file}")).text(&capitalized(&format!("{text}.")));
    }
    page.section("PCP ENVIRONMENT").text(
        "Environment variables with the prefix `PCP_` parameterize the file and directory names used by PCP. On each installation, \
         `/etc/pcp.conf` contains the local values. `PCP_CONF` names an alternative file, as described in `pcp.conf`(5).",
    );
    page.section("SEE ALSO").request(
        ".BR PCPIntro (1),\n.BR pmcd (1),\n.BR pmdabpf (1),\n.BR pmie (1),\n.BR pminfo (1),\n.BR pmlogger (1),\n.BR pmproxy (1),\n\
         .BR pmrep (1),\n.BR pmstore (1),\n.BR pmval (1),\n.BR pcp.conf (5),\n.BR pcp.env (5)",
    );
}
