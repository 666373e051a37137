//! Several clients at once: they see the same count, which never steps back.

use crate::instance::Pmcd;
use crate::support::{config, lacks, tracer::held, wait_for};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Programs with a name of their own run while three clients watch: each client sees only rises, and all see the sum.
#[test]
fn clients_at_once_see_growing_counts_and_one_total() {
    const RUNS: u64 = 40;
    let Some(pmcd) = Pmcd::start() else { return };
    let name = format!("cb{}", std::process::id() % 100_000);
    let program = pmcd.home.path(&name);
    std::os::unix::fs::symlink("/bin/true", &program).unwrap();
    let run = || assert!(Command::new(&program).status().unwrap().success());
    run();
    let watch = |_: i32| -> Child {
        let mut command = pmcd.client("pmval");
        command.args(["-r", "-f", "0", "-s", "40", "-t", "0.05", "-i", &name, "bcc.proc.exec.count"]);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
    };
    let watchers: Vec<Child> = (0..3).map(watch).collect();
    for _ in 0..RUNS - 1 {
        run();
        std::thread::sleep(Duration::from_millis(30));
    }
    let total = |pmcd: &Pmcd| {
        let values = pmcd.values("bcc.proc.exec.count");
        let value = values.iter().find(|(instance, _)| *instance == name);
        value.unwrap_or_else(|| panic!("{name}: {values:?}")).1.parse::<u64>().unwrap()
    };
    for watcher in watchers {
        let output = watcher.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let counts: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        assert!(counts.len() >= 35, "{text}");
        assert!(counts.is_sorted() && counts[0] >= 1 && counts[counts.len() - 1] <= RUNS, "{counts:?}");
        assert!(counts[counts.len() - 1] > counts[0], "{counts:?}");
    }
    assert_eq!([total(&pmcd), total(&pmcd)], [RUNS; 2]);
}

/// A client that asks for one instance does not change the values of another one.
#[test]
fn profiles_of_clients_do_not_mix() {
    let Some(pmcd) = Pmcd::start() else { return };
    let all = pmcd.values("bcc.runq.latency").len();
    assert!(all > 1);
    let mut command = pmcd.client("pmval");
    command.args(["-r", "-s", "20", "-t", "0.05", "-i", "0-1", "bcc.runq.latency"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    for _ in 0..20 {
        assert!(pmcd.values("bcc.runq.latency").len() >= all);
    }
    let text = String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned();
    assert!(text.contains("0-1") && !text.contains("2-3"), "{text}");
}

/// The programs of an agent are its own to pmcd's clients: held by its process, and as many as it says itself.
#[test]
fn programs_of_the_agent_are_held_by_its_process() {
    let Some(pmcd) = Pmcd::beside(&config(&["sysfork", "bpfstat"]), &[]) else { return };
    let own: Vec<String> =
        pmcd.values("bcc.bpf.prog.own").into_iter().filter(|of| of.1 == "1").map(|of| of.0).collect();
    assert!(own.len() >= 5, "{own:?}");
    let owners = pmcd.values("bcc.bpf.prog.owner");
    for program in &own {
        let (_, owner) = owners.iter().find(|of| of.0 == *program).unwrap_or_else(|| panic!("{program}: {owners:?}"));
        assert!(owner.contains("pmdacorebcc("), "{program}: {owner}");
    }
    let all: usize = pmcd.values("bcc.bpf.total.progs")[0].1.parse().unwrap();
    assert!(all >= own.len(), "{all}");
}

/// While the thread that collects is stuck and three clients ask each second, other requests to pmcd are answered as fast as before.
#[test]
fn a_stuck_collector_does_not_keep_pmcd_from_others() {
    if lacks(&["strace", "pmval"]) {
        return;
    }
    let Some(pmcd) = Pmcd::start() else { return };
    let time = || {
        let times = (0..30).map(|_| {
            let begin = Instant::now();
            pmcd.values("pmcd.numagents");
            std::thread::sleep(Duration::from_millis(100));
            begin.elapsed() - Duration::from_millis(100)
        });
        let mut times: Vec<Duration> = times.collect();
        times.sort();
        (times[15], times[29])
    };
    let before = time();
    let _strace = held(&pmcd.home, pmcd.agent());
    let watch = |metric: &str| -> Child {
        let mut command = pmcd.client("pmval");
        command.args(["-r", "-s", "1000", "-t", "1", metric]).stdout(pmcd.home.create(&format!("{metric}.log")));
        command.stderr(Stdio::inherit()).spawn().unwrap()
    };
    let metrics = ["bcc.proc.sysfork", "bcc.runq.latency", "bcc.disk.all.latency"];
    let mut watchers = metrics.map(watch);
    // The first wait is a long one.
    wait_for("values", || {
        let seen = |metric: &&str| pmcd.home.read(&format!("{metric}.log")).lines().count() > 8;
        metrics.iter().all(seen).then_some(())
    });
    let (median, longest) = time();
    println!("before {before:?}, then {median:?} {longest:?}");
    assert!(median < before.0 * 2 + Duration::from_millis(20), "{before:?} {median:?} {longest:?}");
    for watcher in &mut watchers {
        watcher.kill().unwrap();
        watcher.wait().unwrap();
    }
}
