//! A pmlogger archive of all metrics, and its contents.

use crate::instance::{blocks, session, values, Pmcd};
use crate::support::script::copy_program;
use crate::support::{
    all_modules,
    bpf_mount::BpfMount,
    lacks,
    rows::{all, original, rows},
    told, use_disk, wait_for, Proc,
};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::fs;
use std::process::Command;

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

/// A configuration with execs of commands, whose counts are pinned, and system calls, whose counts are not.
const ONE_PINNED: &str =
    "[pmda]\nmodules = exectop, syscount, sysfork\n[exectop]\nmodule = exectop\ncluster = 13\npin = True\n\
                          [syscount]\nmodule = syscount\ncluster = 15\n[sysfork]\nmodule = sysfork\ncluster = 2\n";

#[test]
fn an_archive_shows_no_reset_of_pinned_counts() {
    const NSENTER: &str = "/usr/bin/nsenter";
    if lacks(&["pmlogger", "pmdumplog", NSENTER]) {
        return;
    }
    let Some(mount) = BpfMount::new() else { return };
    let within = |_: &_| (format!("pipe\tbinary\t{NSENTER} {}", mount.option()), String::new());
    let Some(pmcd) = Pmcd::serving(ONE_PINNED, &[], within) else { return };
    // A name that no other run of this test has.
    let name = format!("archive-{}", std::process::id());
    let command = pmcd.home.path(&name);
    copy_program("/bin/true", &command);
    // A call that no other process makes here, less often each time, so that each new agent shows fewer.
    let work = |calls: usize| {
        // SAFETY: it takes a number and returns one.
        (0..calls).for_each(|_| assert_eq!(unsafe { nix::libc::sched_get_priority_min(0) }, 0));
        (0..50).for_each(|_| assert!(Command::new(&command).status().unwrap().success()));
    };
    let execs = || pmcd.values("bcc.proc.exec.count").into_iter().find(|(instance, _)| *instance == name);
    work(30);

    // Only these instances: pmlogger ends if it finds a new one of others and the agent ends before it has asked for the name.
    let metrics = [("bcc.proc.exec.count", &name[..]), ("bcc.proc.syscall.count", "sched_get_priority_min")];
    let [execs_logged, calls_logged] = metrics.map(|(metric, instance)| format!("{metric} [\"{instance}\"]"));
    let logged = format!("log mandatory on 100 msec {{ {execs_logged} {calls_logged} }}\n");
    fs::write(pmcd.home.path("log.conf"), logged).unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let mut logger = pmcd.client("pmlogger");
    let mut logger = Proc(logger.args(["-c", "log.conf", "-l", "logger.log", "a"]).spawn().unwrap());
    let dumped = |instance: &str| -> Vec<u64> {
        let output = pmcd.program("pmdumplog").arg("a").args(metrics.map(|(metric, _)| metric)).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let values = text.lines().filter(|line| line.contains(instance));
        values.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    };
    let logged = |times: u64| {
        wait_for(&format!("{times} execs in the archive"), || dumped(&name).contains(&times).then_some(()));
    };
    logged(50);
    // The agent ends in both ways. pmcd starts it again at the next fetch, and the second time, since it does so once a minute, when it
    // is told to read its configuration.
    for (signal, calls, times) in [(Signal::SIGKILL, 20, 100), (Signal::SIGTERM, 10, 150)] {
        let agent = pmcd.agent();
        kill(Pid::from_raw(agent), signal).unwrap();
        wait_for("the agent to end", || kill(Pid::from_raw(agent), None).is_err().then_some(()));
        if times > 100 {
            pmcd.process.signal(Signal::SIGHUP);
        }
        pmcd.wait_for_values();
        assert_ne!(pmcd.agent(), agent);
        assert_eq!(execs().unwrap().1, (times - 50).to_string(), "{}", pmcd.home.log());
        work(calls);
        logged(times);
    }
    logger.signal(Signal::SIGTERM);
    logger.end();

    let (pinned, others) = (dumped(&name), dumped("sched_get_priority_min"));
    assert!(pinned.is_sorted() && pinned.last() == Some(&150), "{pinned:?}");
    let resets = others.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert_eq!(resets, 2, "those of counts that are not pinned: {others:?}");
}

/// Python that writes an archive as the Python agent's would be: the names, identifiers, types, semantics, units and domains of that
/// agent's table, a value each, and instances named as that agent named them. Arguments: table, archive, host, time zone.
const ORIGINAL: &str = include_str!("../programs/original_archive.py");

/// The shipped rule brings the sizes of cachestat to the same semantics.
#[test]
fn archives_of_the_python_agent_and_of_this_one_are_merged() {
    const EXTRACT: &str = "/usr/lib/pcp/bin/pmlogextract";
    const REWRITE: &str = "/usr/lib/pcp/bin/pmlogrewrite";
    const PYTHON: &str = "/usr/bin/python3";
    const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bcc-metrics.tsv");
    if lacks(&["pmlogger", "pmloglabel", EXTRACT, REWRITE, PYTHON]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&all_modules(), &[]) else { return };
    let run = |program: &str, args: &[&str]| pmcd.program(program).args(args).output().unwrap();
    let ask = |program: &str, args: &[&str]| {
        let output = run(program, args);
        assert!(output.status.success(), "{program} {args:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    session();
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let output =
        pmcd.client("pmlogger").args(["-c", "log.conf", "-s", "2", "-l", "logger.log", "ours"]).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
    let label = ask("pmloglabel", &["-L", "ours"]);
    let of = |start: &str| label.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_else(|| panic!("{label}"));
    let (host, zone) = (of("Performance metrics from host "), of("Archive timezone: "));
    ask(PYTHON, &["-c", ORIGINAL, TABLE, "original", host, zone]);
    assert_eq!(ask("pminfo", &["-a", "original", "bcc"]).lines().count(), 95);

    let refused = run(EXTRACT, &["original", "ours", "merged"]);
    assert!(!refused.status.success() && told(&refused).contains("bcc.mem.vmstat."), "{}", told(&refused));
    let rule = concat!(env!("CARGO_MANIFEST_DIR"), "/consumers/pmlogrewrite/corebcc_cachestat.conf");
    ask(REWRITE, &["-c", rule, "original", "corrected"]);
    ask(EXTRACT, &["corrected", "ours", "merged"]);
    let ours = blocks(&ask("pminfo", &["-dm", "-a", "ours", "bcc"]));
    let merged = blocks(&ask("pminfo", &["-dm", "-a", "merged", "bcc"]));
    assert!(ours.len() > 40, "{:?}", ours.keys());
    for (name, lines) in ours.iter().filter(|(name, _)| !name.starts_with("bcc.agent.")) {
        assert_eq!(&merged[name], lines);
    }
    assert!(original().all(|row| merged.contains_key(row.name)));
}
