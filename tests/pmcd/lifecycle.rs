//! Ends of pmcd and of the agent, a pmcd that reads its configuration again, and an agent that listens instead of using a pipe.

use crate::instance::{port, Pmcd};
use crate::support::{lacks, rows::all, still_loaded, wait_for, Proc};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::process::Stdio;
use std::time::Duration;

fn lives(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

/// Returns the numbers of command names' instances by name, which have to outlive an agent.
fn numbers(pmcd: &Pmcd) -> Vec<(String, String)> {
    let text = pmcd.ask("pminfo", &["-f", "bcc.proc.exec.count"]);
    let instance = |line: &str| {
        let (number, name) = line.trim().strip_prefix("inst [")?.split_once(" or \"")?;
        Some((name.split_once("\"]")?.0.to_owned(), number.to_owned()))
    };
    text.lines().filter_map(instance).collect()
}

#[test]
fn an_agent_ends_with_pmcd_and_the_next_keeps_its_instances() {
    let Some(mut pmcd) = Pmcd::start() else { return };
    let (agent, programs) = (pmcd.agent(), pmcd.agents_programs());
    let before = numbers(&pmcd);
    assert!(!before.is_empty());
    // Clients that fetch as fast as they can, so that pmcd dies in the middle of something.
    let busy = |_| {
        let mut command = pmcd.client("pmval");
        command.args(["-r", "-t", "0.001", "bcc.proc.net.tcp.send.bytes"]).stdout(Stdio::null()).stderr(Stdio::null());
        Proc(command.spawn().unwrap())
    };
    let busy: Vec<Proc> = (0..3).map(busy).collect();
    std::thread::sleep(Duration::from_millis(200));
    pmcd.again(Signal::SIGKILL);
    drop(busy);
    wait_for("the agent to end", || (!lives(agent)).then_some(()));
    wait_for("its programs to go", || still_loaded(&programs).is_empty().then_some(()));
    pmcd.wait_for_values();
    assert_ne!(pmcd.agent(), agent);
    let after = numbers(&pmcd);
    for (name, number) in &before {
        assert!(after.iter().all(|(other, now)| other != name || now == number), "{name}: {before:?} {after:?}");
    }
    assert!(after.iter().any(|(name, _)| before.iter().any(|(other, _)| other == name)), "{before:?} {after:?}");
}

/// pmcd closes its end; about a tenth of a second later it kills the agents that are left.
#[test]
fn an_orderly_end_of_pmcd_is_one_of_the_agent() {
    let Some(mut pmcd) = Pmcd::start() else { return };
    let (agent, programs) = (pmcd.agent(), pmcd.agents_programs());
    pmcd.process.signal(Signal::SIGTERM);
    pmcd.process.end();
    wait_for("the agent to end", || (!lives(agent)).then_some(()));
    wait_for("its programs to go", || still_loaded(&programs).is_empty().then_some(()));
    // Its last words are another matter: a tenth of a second later pmcd kills those that are still there.
    assert!(pmcd.home.log().contains("pmcd closed the connection"), "{}", pmcd.home.log());
}

/// Returns the numbers of restarts, and of those after a crash.
fn restarts(pmcd: &Pmcd) -> [String; 2] {
    ["bcc.agent.restarts", "bcc.agent.crashes"].map(|name| pmcd.values(name).swap_remove(0).1)
}

#[test]
fn a_killed_agent_is_started_again_and_leaves_nothing_behind() {
    let Some(pmcd) = Pmcd::start() else { return };
    let (agent, programs) = (pmcd.agent(), pmcd.agents_programs());
    kill(Pid::from_raw(agent), Signal::SIGKILL).unwrap();
    wait_for("its programs to go", || still_loaded(&programs).is_empty().then_some(()));
    // The next requests make pmcd notice and start it again.
    pmcd.wait_for_values();
    assert_ne!(pmcd.agent(), agent);
    let log = pmcd.home.read("pmcd.log");
    assert!(log.contains("corebcc") && log.contains("signal(9)"), "{log}");
    assert_eq!(restarts(&pmcd), ["1", "1"]);
}

#[test]
fn an_agent_that_is_asked_to_end_says_so_and_is_started_again() {
    let Some(pmcd) = Pmcd::start() else { return };
    let agent = pmcd.agent();
    kill(Pid::from_raw(agent), Signal::SIGTERM).unwrap();
    pmcd.wait_for_values();
    let old = pmcd.home.read("corebcc.log.prev");
    assert!(old.contains("ended by signal 15"), "{old}");
    assert_ne!(pmcd.agent(), agent);
    assert_eq!(restarts(&pmcd), ["1", "0"]);
}

#[test]
fn a_pmcd_that_waits_until_the_agent_is_ready_is_told() {
    let Some(pmcd) = Pmcd::with(|_| ("pipe binary notready".into(), "--notready".into())) else { return };
    assert_eq!(pmcd.ask("pmprobe", &["bcc"]).lines().count(), all().count());
    assert_eq!(restarts(&pmcd), ["0", "0"]);
}

#[test]
fn a_reconfigured_pmcd_keeps_the_agent_and_its_counts() {
    let Some(pmcd) = Pmcd::start() else { return };
    let agent = pmcd.agent();
    let count = || pmcd.values("bcc.proc.sysfork")[0].1.parse::<u64>().unwrap();
    let before = count();
    pmcd.process.signal(Signal::SIGHUP);
    wait_for("pmcd to have read it", || {
        pmcd.wait_for_values();
        pmcd.home.read("pmcd.log").contains("Reconfigur").then_some(()).or(pmcd
            .home
            .read("pmcd.log")
            .contains("estart")
            .then_some(()))
    });
    kill(Pid::from_raw(agent), Signal::SIGHUP).unwrap();
    assert!(count() >= before);
    assert_eq!(pmcd.agent(), agent);
    assert!(lives(agent) && !pmcd.home.path("corebcc.log.prev").exists());
}

#[test]
fn an_agent_that_listens_on_a_port_or_a_socket_serves_a_pmcd() {
    if lacks(&["pminfo"]) {
        return;
    }
    for unix in [false, true] {
        let how = |home: &crate::support::Home| {
            if unix {
                let path = home.path("agent.sock").display().to_string();
                (format!("socket unix {path}"), format!("-u {path}"))
            } else {
                let port = port();
                (format!("socket inet {port}"), format!("-i {port}"))
            }
        };
        let Some(pmcd) = Pmcd::with(how) else { return };
        assert_eq!(pmcd.ask("pmprobe", &["bcc"]).lines().count(), all().count());
        assert!(pmcd.home.log().contains("waiting for pmcd on"), "{}", pmcd.home.log());
        let agent = pmcd.agent();
        drop(pmcd);
        wait_for("the agent to end", || (!lives(agent)).then_some(()));
    }
}
