//! `corebcc.conf(5)`: sections and options, from the modules' declarations.

use super::man::{capitalized, DATE};
use super::roff::Page;
use super::sorted;
use crate::kit::{OptionDef, Spec};

/// Options of `[pmda]` and their descriptions.
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

/// Returns the page `corebcc.conf(5)`.
pub fn conf_page(specs: &[&Spec]) -> String {
    let mut page = Page::new("corebcc.conf", 5, DATE);
    description(&mut page);
    options(&mut page, specs);
    files(&mut page);
    page.finish()
}

fn description(page: &mut Page) {
    page.section("NAME").request("corebcc.conf \\- configuration of pmdacorebcc");
    page.section("DESCRIPTION").text(
        "The configuration file of `pmdacorebcc`(1) has the format of pmdabcc's `bcc.conf`, which can be used unchanged: sections in brackets, options with `=` or \
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
}

fn options(page: &mut Page, specs: &[&Spec]) {
    page.section("OPTIONS OF THE AGENT").subsection("[pmda]");
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
        "Seconds, 10 to 86400, after which a script is ended whose values nobody fetches; default: never. The next fetch of its values starts \
         it. A script with a line `// name:` is not ended.",
    );
    page.section("MODULES").subsection("Options of every module");
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

fn files(page: &mut Page) {
    page.section("FILES");
    for (file, text) in [
        ("$PCP_SYSCONF_DIR/corebcc/corebcc.conf", "the configuration"),
        ("$PCP_SYSCONF_DIR/corebcc/conf.d", "additions by packages and automation"),
        ("$PCP_SYSCONF_DIR/corebcc/programs.d", "programs of a site"),
        ("$PCP_SYSCONF_DIR/corebcc/scripts.d", "scripts of a site"),
        ("$PCP_PMDAS_DIR/corebcc/corebcc.conf.default", "the configuration as shipped"),
    ] {
        page.request(".TP").request(&format!(".I {file}")).text(&capitalized(&format!("{text}.")));
    }
    page.section("SEE ALSO").request(".BR pmdacorebcc (1),\n.BR pmcd (1)");
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
