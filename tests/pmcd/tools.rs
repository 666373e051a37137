//! pmval, pmprobe and pmstore.

use crate::instance::{session, Pmcd};
use crate::support::{
    all_modules, lacks,
    rows::{all, rows},
    skip, told, use_disk, wait_for,
};
use std::collections::BTreeSet;

#[test]
fn pmprobe_finds_every_metric_with_values() {
    let Some(pmcd) = Pmcd::start() else { return };
    session();
    let disks = use_disk();
    let text = pmcd.ask("pmprobe", &["bcc"]);
    assert_eq!(text.lines().count(), all().count(), "{text}");
    for row in rows() {
        let line = text.lines().find(|line| line.starts_with(&format!("{} ", row.name))).unwrap();
        let count: i32 = line.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(count > 0 || row.module == "biolatency" && !disks, "{line}");
    }
    for row in rows().filter(|row| row.instances && (row.module != "biolatency" || disks)) {
        let numbers = pmcd.ask("pmprobe", &["-i", row.name]);
        let names = pmcd.ask("pmprobe", &["-I", row.name]);
        assert!(numbers.split(' ').count() >= 2 && names.split(' ').count() >= 2, "{numbers}{names}");
    }
}

/// pmval cuts the names of instances to the width of its columns.
#[test]
fn pmval_tells_the_kinds_of_losses_apart() {
    let Some(pmcd) = Pmcd::beside(&all_modules(), &[]) else { return };
    let text = pmcd.ask("pmval", &["-s", "2", "-t", "0.1", "bcc.agent.lost.events"]);
    let titles = text.lines().find(|line| line.contains("::") && !line.starts_with("full label")).unwrap();
    let titles: Vec<&str> = titles.split_whitespace().collect();
    let losses = pmcd.values("bcc.agent.lost.events");
    assert_eq!(titles.iter().collect::<BTreeSet<_>>().len(), losses.len(), "{titles:?}");
    assert!(titles.iter().zip(&losses).all(|(title, (name, _))| name.starts_with(title)), "{titles:?} {losses:?}");
    assert_eq!(pmcd.values("bcc.agent.lost.reason").len(), losses.len());
}

#[test]
fn pminfo_shows_the_summary_of_the_agent_first() {
    let Some(pmcd) = Pmcd::start() else { return };
    let names = pmcd.ask("pminfo", &["bcc.agent"]);
    let names: Vec<&str> = names.lines().map(str::trim).collect();
    let summary = names.iter().take_while(|name| name.starts_with("bcc.agent.summary.")).count();
    assert!((5..=10).contains(&summary) && names.len() > 40, "{names:?}");
    assert_eq!(pmcd.values("bcc.agent.summary.modules.running")[0].1, "6");
    let text = pmcd.ask("pminfo", &["-f", "bcc.agent.summary.configuration"]);
    assert!(text.contains("no errors, 6 modules enabled"), "{text}");
    let help = pmcd.ask("pminfo", &["-T", "bcc.agent.summary.cpu.programs"]);
    assert!(help.contains("pmstore bcc.agent.program.stats 1"), "{help}");
}

#[test]
fn pmstore_switches_program_statistics() {
    if lacks(&["pmstore"]) {
        return;
    }
    let Some(pmcd) = Pmcd::start() else { return };
    let has_descriptor = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", pmcd.agent())).unwrap().flatten();
        fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|link| link.as_os_str() == "anon_inode:bpf-stats")
    };
    assert!(!has_descriptor());
    let on = pmcd.run("pmstore", &["bcc.agent.program.stats", "1"]);
    if !on.status.success() {
        return skip(&format!("a kernel that counts runs for a descriptor, and the right to ask it: {}", told(&on)));
    }
    assert!(told(&on).contains("old value=0 new value=1"), "{}", told(&on));
    assert!(has_descriptor());
    assert_eq!(pmcd.values("bcc.agent.summary.cpu.programs").len(), 1);
    assert_eq!(pmcd.values("bcc.agent.program.runs").len(), pmcd.values("bcc.agent.program.kind").len());
    let wrong = pmcd.run("pmstore", &["bcc.agent.program.stats", "7"]);
    assert!(!wrong.status.success() && has_descriptor(), "{}", told(&wrong));
    pmcd.ask("pmstore", &["bcc.agent.program.stats", "0"]);
    assert!(!has_descriptor());
    assert_eq!(pmcd.values("bcc.agent.program.stats")[0].1, "0");
}

#[test]
fn pmval_shows_raw_counts_that_never_step_back_and_rates() {
    let Some(pmcd) = Pmcd::start() else { return };
    let text = pmcd.ask("pmval", &["-r", "-s", "5", "-t", "0.1", "-f", "0", "bcc.proc.sysfork"]);
    let counts: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    assert!(counts.len() == 5 && counts.is_sorted(), "{text}");
    let rates = pmcd.ask("pmval", &["-s", "2", "-t", "0.1", "bcc.proc.sysfork"]);
    assert!(rates.contains("cumulative counter (converting to rate)"), "{rates}");
    let slots = pmcd.ask("pmval", &["-r", "-s", "2", "-t", "0.1", "-i", "0-1", "bcc.runq.latency"]);
    assert!(slots.contains("0-1"), "{slots}");
}

#[test]
fn pmstore_is_refused_for_want_of_permission() {
    if lacks(&["pmstore"]) {
        return;
    }
    let Some(pmcd) = Pmcd::start() else { return };
    session();
    let disks = use_disk();
    for row in rows().filter(|row| row.module != "biolatency" || disks) {
        // An instance can go between pmstore's fetch and its store; then that is what it is told.
        wait_for("the refusal", || {
            let output = pmcd.run("pmstore", &[row.name, "1"]);
            let said = told(&output);
            assert_eq!(output.status.code(), Some(1), "{}: {said}", row.name);
            said.contains("No permission to perform requested operation").then_some(())
        });
    }
    pmcd.wait_for_values();
}

#[test]
fn names_and_numbers_that_there_are_not_are_unknown() {
    let Some(pmcd) = Pmcd::start() else { return };
    for name in ["bcc.no.such", "bcc.disk.all.latency.more", "bcc.disk.al"] {
        let said = told(&pmcd.run("pminfo", &["-f", name]));
        assert!(said.contains("Unknown metric name"), "{name}: {said}");
    }
    let said = told(&pmcd.run("pmval", &["-s", "1", "-i", "5-6", "bcc.runq.latency"]));
    assert!(said.contains("5-6"), "{said}");
    pmcd.wait_for_values();
}
