//! A pmlogger archive of all metrics, and what is in it.

use crate::instance::{session, values, Pmcd};
use crate::metadata::blocks;
use crate::support::{
    lacks,
    rows::{all, rows},
    told, use_disk,
};
use std::fs;

#[test]
fn an_archive_replays_descriptors_values_and_instances() {
    if lacks(&["pmlogger", "pmval"]) {
        return;
    }
    let Some(pmcd) = Pmcd::start() else { return };
    session();
    let disks = use_disk();
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let before = pmcd.values("bcc.proc.sysfork");
    let output = pmcd.client("pmlogger").args(["-c", "log.conf", "-s", "4", "-l", "logger.log", "a"]).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
    let after = pmcd.values("bcc.proc.sysfork");

    let replay = |program: &str, args: &[&str]| {
        let output = pmcd.program(program).args(["-a", "a"]).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // All metadata is that of the living agent.
    for option in ["-dm", "-tT"] {
        let live = blocks(&pmcd.ask("pminfo", &[option, "bcc"]));
        assert_eq!(live.len(), all().count());
        assert_eq!(blocks(&replay("pminfo", &[option, "bcc"])), live, "{option}");
    }
    let labels = replay("pminfo", &["-l", "bcc.runq.latency"]);
    assert!(labels.contains(r#""bcc_module":"runqlat""#) && labels.contains(r#""lower_bound":0"#), "{labels}");
    // Values lie between those read before and after.
    let count = |values: &[(String, String)]| values[0].1.parse::<u64>().unwrap();
    let logged = count(&values(&replay("pminfo", &["-f", "bcc.proc.sysfork"])));
    assert!((count(&before)..=count(&after)).contains(&logged), "{before:?} {logged} {after:?}");
    for row in rows().filter(|row| row.module != "biolatency" || disks) {
        assert!(!values(&replay("pminfo", &["-f", row.name])).is_empty(), "{}", row.name);
    }
    let series = replay("pmval", &["-r", "-f", "0", "-t", "0.2", "bcc.proc.sysfork"]);
    let counts: Vec<u64> = series.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect();
    assert!(counts.len() >= 2 && counts.is_sorted(), "{series}");
    let slots = replay("pmval", &["-r", "-t", "0.2", "-i", "0-1", "bcc.runq.latency"]);
    assert!(slots.contains("0-1"), "{slots}");
}
