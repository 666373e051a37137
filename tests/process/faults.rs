//! Panics of the agent: each costs the module that it is in, or ends the agent, so that pmcd starts another one.

use crate::own::values;
use crate::peer::Peer;
use crate::support::{config, lacks_bpf, Home, ALL};

/// Starts an agent that panics at this place, before the handshake.
fn panicking(home: &Home, at: &str) -> Peer {
    Peer::of(home, home.agent(&["--notready"]).env("COREBCC_PANIC", at))
}

/// Removes the log and returns it: it may contain a panic.
fn last_words(home: &Home) -> String {
    let log = home.log() + &home.read("stderr.log");
    for name in ["corebcc.log", "stderr.log"] {
        let _ = std::fs::remove_file(home.path(name));
    }
    log
}

#[test]
fn a_module_whose_plan_panics_costs_itself_only() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ALL);
    let mut peer = panicking(&home, "plan:tcplife");
    peer.loads();
    let states = values(&mut peer, "bcc.agent.module.state");
    let sentences = values(&mut peer, "bcc.agent.module.status");
    assert_eq!(states["tcplife"], "failed");
    assert!(sentences["tcplife"].contains("a fault of the agent, please report it: COREBCC_PANIC"), "{sentences:?}");
    for module in ["biolatency", "sysfork", "runqlat", "exectop", "netproc"] {
        assert_eq!(states[module], "running", "{sentences:?}");
    }
    assert!(!values(&mut peer, "bcc.proc.sysfork").is_empty());
    assert_eq!(peer.close().0.code(), Some(0));
    assert!(last_words(&home).contains("tcplife: not loaded: a fault of the agent"));
}

/// Returns the number of the agent's attachments.
fn links(pid: i32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("bpf_link"))).count()
}

#[test]
fn a_module_whose_start_panics_leaves_no_program_attached() {
    if lacks_bpf() {
        return;
    }
    let attached = |modules: &[&str], panic: &str| {
        let home = Home::new(&config(modules));
        let mut peer = panicking(&home, panic);
        peer.loads();
        let states = values(&mut peer, "bcc.agent.module.state");
        let forks = values(&mut peer, "bcc.proc.sysfork");
        let links = links(peer.agent.pid());
        assert_eq!(peer.close().0.code(), Some(0));
        last_words(&home);
        (states, forks.len(), links)
    };
    let (states, forks, links) = attached(&["sysfork", "exectop"], "start:exectop");
    assert_eq!((&states["exectop"][..], &states["sysfork"][..], forks), ("failed", "running", 1), "{states:?}");
    assert_eq!(links, attached(&["sysfork"], "").2);
    assert!(links > 0 && attached(&["sysfork", "exectop"], "").2 > links);
}

/// A panic ends the agent while it loads, and later.
#[test]
fn a_panic_of_the_whole_thread_ends_the_agent() {
    for place in ["load:all", "attend:all"] {
        let home = Home::new(ALL);
        let mut peer = panicking(&home, place);
        peer.greet();
        let (status, _) = peer.rest();
        let log = last_words(&home);
        assert_eq!(status.code(), Some(1), "{place}: {log}");
        assert!(log.contains("a fault of the agent, please report it: COREBCC_PANIC"), "{place}: {log}");
        assert!(log.contains("no values will come any more"), "{place}: {log}");
        let starts = home.read("corebcc.starts");
        assert_eq!(starts.split_whitespace().nth(2), Some("running"), "no orderly end: {starts}");
    }
}
