//! Command line and log file of a PMDA (statements 67 and 68).

use crate::peer::Peer;
use crate::support::{config, lacks, lacks_bpf, told, Home, BINARY, ONE};
use regex::Regex;
use std::fs::{self, File};
use std::process::{Command, Stdio};

#[test]
fn c67_clashing_transports_are_refused_on_standard_error() {
    let home = Home::new(ONE);
    for (args, clash) in [
        (&["-i", "1", "-p"][..], "pmdacorebcc: -p option clashes with -i option"),
        (&["-p", "-u", "x"], "pmdacorebcc: -u option clashes with -p option"),
        (&["-6", "1", "-i", "2"], "pmdacorebcc: -i option clashes with -6 option"),
    ] {
        let output = home.run(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", told(&output));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with(clash), "{}", told(&output));
    }
}

#[test]
fn c67_an_unknown_option_gets_the_usage_on_standard_error() {
    let home = Home::new(ONE);
    for args in [&["--no-such-option"][..], &["-Z"], &["-d", "x"], &["-d", "511"], &["-d", "-1"], &["-i", "no-such"]] {
        let output = home.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", told(&output));
        assert!(said.starts_with("pmdacorebcc: "), "{said}");
        assert!(!args[0].starts_with("-Z") || said.contains("Usage: pmdacorebcc [options]"), "{said}");
    }
}

#[test]
fn help_that_was_asked_for_is_output() {
    let usage = "Usage: pmdacorebcc [options]";
    for (args, usage) in
        [(&["-?"][..], usage), (&["--help"], usage), (&["show", "--help"], "Usage: pmdacorebcc show [options]")]
    {
        let output = Home::new(ONE).run(args);
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{}", told(&output));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(usage), "{}", told(&output));
    }
}

/// Returns the system calls of these kinds that the agent makes until it ends.
fn traced(home: &Home, calls: &str, args: &[&str]) -> String {
    let agent = home.agent(args);
    let (trace, mut strace) = (home.path("trace"), Command::new("strace"));
    strace.args(["-e", calls, "-o"]).arg(&trace).arg(agent.get_program()).args(agent.get_args());
    home.keep(&mut strace).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    home.read("trace")
}

#[test]
fn signals_end_what_does_not_wait_for_them() {
    if lacks(&["strace"]) {
        return;
    }
    let home = Home::new(ONE);
    let calls = "trace=signalfd4,getrlimit,prlimit64";
    let check = traced(&home, calls, &["--check-syntax"]);
    assert!(check.contains("RLIMIT_NOFILE") && !check.contains("signalfd4("), "{check}");
    assert!(traced(&home, calls, &["--btf", "/nonexistent"]).contains("signalfd4("));
}

/// pmcd waits five seconds for the CREDS; pairs may be large and the disk slow.
#[test]
fn creds_are_sent_before_pairs_and_identifiers_are_read() {
    if lacks(&["strace"]) {
        return;
    }
    let home = Home::new(ONE);
    let trace = traced(&home, "trace=write,openat", &["--btf", "/nonexistent"]);
    let place = |call: &dyn Fn(&str) -> bool| trace.lines().position(call);
    let creds = place(&|line| line.starts_with("write(") && line.ends_with(", 20) = 20")).expect(&trace);
    // The first look at the directory is whether there is one.
    let pairs =
        trace.lines().collect::<Vec<_>>().iter().rposition(|line| line.contains("/programs.d\"")).expect(&trace);
    let identifiers = place(&|line| line.contains("/config/pmda/149.")).expect(&trace);
    assert!(creds < pairs && creds < identifiers, "{trace}");
}

/// The agent's standard input and output are a terminal instead of pmcd.
#[test]
fn on_a_terminal_the_agent_tells_how_it_is_used_and_ends() {
    if lacks(&["script"]) {
        return;
    }
    let home = Home::new(ONE);
    for line in [BINARY.to_owned(), format!("{BINARY} -c corebcc.conf </dev/null"), format!("{BINARY} -p | cat")] {
        let mut command = Command::new("script");
        // Whatever would wait for requests ends.
        command.args(["-qec", &format!("timeout 10 sh -c '{line}; exit $?'"), "/dev/null"]);
        let output = home.keep(&mut command).stdin(Stdio::null()).output().unwrap();
        let said = told(&output);
        assert!(said.contains("not for a terminal") && said.contains("Usage: pmdacorebcc [options]"), "{line}: {said}");
        assert!(said.chars().all(|c| !c.is_control() || c.is_whitespace()), "{line}: {said}");
        assert!(!home.path("corebcc.log").exists(), "{line}");
        assert!(line.contains('|') || output.status.code() == Some(1), "{line}: {said}");
    }
}

#[test]
fn what_cannot_be_written_is_an_error() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ONE);
    for args in [&["show", "proc.sysfork", "0.1", "1"][..], &["--check"], &["--help"], &["--version"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = home.agent(args).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("cannot write to standard output: No space left on device"), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        // A reader that has gone is none.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = home.agent(args).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {}", told(&output));
    }
}

/// The system's configuration is used as far as possible, also for modules that it contains and does not enable.
#[test]
fn show_reads_the_configuration_that_the_agent_reads() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ONE);
    fs::create_dir_all(home.path("etc/corebcc")).unwrap();
    let system = "[pmda]\nmodules = sysfork\nprefix = of_system.\n[sysfork]\nmodule = sysfork\ncluster = 2\n\
        [exectop]\nmodule = exectop\ncluster = 13\nprefix = of_section.\n";
    fs::write(home.path("etc/corebcc/corebcc.conf"), system).unwrap();
    let show = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["show"]).args(args).args(["0.1", "1"]).env("PCP_SYSCONF_DIR", home.path("etc"));
        home.keep(&mut command).stdin(Stdio::null()).output().unwrap()
    };
    let first = |args: &[&str]| {
        let output = show(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_trouble = |line: &str| !line.starts_with("pmdacorebcc: not enabled, not shown: ");
        assert!(output.status.success() && !said.lines().any(is_trouble), "{args:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(first(&["proc.sysfork"]), "of_system.proc.sysfork");
    assert_eq!(first(&["of_system.proc.sysfork"]), "of_system.proc.sysfork");
    assert_eq!(first(&["proc.exec.count"]), "of_section.proc.exec.count");
    assert_eq!(first(&["of_system.proc.net"]), "of_system.proc.net", "it has no section");
    let output = show(&["bcc.proc.sysfork"]);
    assert!(
        !output.status.success() && told(&output).contains("no metric or module `bcc.proc.sysfork`"),
        "{}",
        told(&output)
    );
    assert_eq!(first(&["-c", &home.config().display().to_string(), "sysfork"]), "bcc.proc.sysfork");
}

#[test]
fn show_of_a_node_shows_what_there_is_and_says_what_is_not() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(&config(&["sysfork", "exectop", "netproc", "kprobe_hits"]));
    let text = fs::read_to_string(home.config()).unwrap().replace("\nkprobes = ", "\n#kprobes = ");
    fs::write(home.config(), text).unwrap();
    let show = |metric: &str| {
        let mut command = home.agent(&["show", metric, "0.1", "1"]);
        let output = command.env("COREBCC_AVOID", "tp__task_newtask,raw__task_newtask").output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, shown, said) = show("bcc");
    let titles = shown.lines().filter(|line| line.starts_with("bcc."));
    let titles: Vec<&str> = titles.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!((status, titles), (Some(0), vec!["bcc.proc.exec.count", "bcc.proc.net"]), "{shown}{said}");
    let lines: Vec<&str> = said.lines().collect();
    let is = |line: &str, module: &str, reason: &str| {
        let reasons = line.strip_prefix(&format!("pmdacorebcc: {module} is not shown: "));
        reasons.is_some_and(|said| said.contains(reason))
    };
    assert_eq!(lines.len(), 3, "each is told once: {said}");
    assert!(lines[0].contains("not enabled, not shown: ") && lines[0].contains(" biolatency, "), "{said}");
    assert!(!lines[0].contains("exectop"), "{said}");
    let lines = &lines[1..];
    assert!(is(lines[0], "kprobe_hits", "[kprobe_hits] has no option `kprobes`"), "{said}");
    assert!(is(lines[1], "sysfork", "no way to attach to task_newtask"), "{said}");
    assert!(lines[1].contains("; the kernel said: "), "{said}");
    let (status, shown, said) = show("bcc.proc.sysfork");
    assert_eq!((status, shown.as_str()), (Some(1), ""), "{said}");
    assert_eq!(said.matches("no way to attach to task_newtask").count(), 1, "{said}");
}

#[test]
fn c68_the_log_has_its_head_its_lines_and_its_foot() {
    let home = Home::new(ONE);
    let log = home.path("another.log");
    fs::write(&log, "of an earlier agent\n").unwrap();
    let mut peer = Peer::ready(&home, &["-l", log.to_str().unwrap()]);
    let pid = peer.agent.pid();
    assert_eq!(peer.close().0.code(), Some(0));

    let text = home.read("another.log");
    let lines: Vec<&str> = text.lines().collect();
    let date = r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d";
    let is =
        |line: &str, pattern: &str| assert!(Regex::new(pattern).unwrap().is_match(line), "{line} is not {pattern}");
    is(lines[0], &format!(r"^Log for pmdacorebcc on \S+ started {date} \d\d\d\d$"));
    assert_eq!(lines[1], "");
    assert_eq!(lines[lines.len() - 2], "");
    is(lines[lines.len() - 1], &format!(r"^Log finished {date} \d\d\d\d$"));
    assert_eq!(lines.len() - 4, 5, "start, module, privileges, ready and end: {text}");
    for line in &lines[2..lines.len() - 2] {
        is(line, &format!(r"^\[{date}\] pmdacorebcc\({pid}\) (Info|Warning|Error): ."));
    }
    assert_eq!(home.read("another.log.prev"), "of an earlier agent\n");
    assert!(!home.path("corebcc.log").exists());
}

#[test]
fn a_log_that_cannot_be_made_is_said_and_the_agent_serves() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &["-l", "/nonexistent/x.log"]);
    peer.unanswered();
    assert_eq!(peer.close().0.code(), Some(0));
    let said = home.read("stderr.log");
    assert!(said.contains("cannot open log file /nonexistent/x.log"), "{said}");
    assert!(said.contains("ready: "), "{said}");
}
