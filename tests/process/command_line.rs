//! The command line and the log file of a PMDA (statements 67 and 68).

use crate::peer::Peer;
use crate::support::{told, Home, ONE};
use regex::Regex;

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
    let output = home.run(&["-?"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{}", told(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: pmdacorebcc [options]"), "{}", told(&output));
}

#[test]
fn c68_the_log_has_its_head_its_lines_and_its_foot() {
    let home = Home::new(ONE);
    let log = home.path("another.log");
    std::fs::write(&log, "of an earlier agent\n").unwrap();
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
    assert!(lines.len() > 10, "{text}");
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
    assert!(said.contains("Ready to process requests."), "{said}");
}
