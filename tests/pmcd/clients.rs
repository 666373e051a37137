//! Several clients at once: they see one count, which never steps back.

use crate::instance::Pmcd;
use std::process::{Child, Command, Stdio};

/// Programs with a name of their own are run while three clients watch: each sees only rises, and all see the sum.
#[test]
fn clients_fetching_at_once_see_counts_that_never_step_back_and_the_same_total() {
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
        std::thread::sleep(std::time::Duration::from_millis(30));
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

/// A client that asks for one instance does not change what another one sees.
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
