//! pmval, pmprobe and pmstore.

use crate::instance::{session, Pmcd};
use crate::support::{
    lacks,
    rows::{all, rows},
    told, use_disk, wait_for,
};

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
