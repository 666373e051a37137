//! Program statistics after CAP_SYS_ADMIN is dropped: the helper process that asks the kernel for them.

use crate::own::{values, STATISTICS};
use crate::peer::Peer;
use crate::privileges::{of_threads, with_exactly};
use crate::reference::pmcd as wire;
use crate::support::{counts_runs, lacks, lacks_bpf, lacks_host_pids, skip, wait_for, Home, ONE};
use caps::{CapSet, Capability};
use corebcc::modules::find;
use corebcc::pcp::{PmErr, IN_NULL};
use corebcc::privilege::to_load;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;

/// The error EPERM.
const REFUSED: i32 = -1;

/// Returns the child of an agent, if it has one.
fn helper(agent: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap();
    let children: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert!(children.len() <= 1, "{children:?}");
    children.first().copied()
}

fn process(pid: i32) -> PathBuf {
    format!("/proc/{pid}").into()
}

fn lacks_statistics() -> bool {
    let lacks = !caps::has_cap(None, CapSet::Permitted, Capability::CAP_SYS_ADMIN).unwrap();
    if lacks {
        skip("CAP_SYS_ADMIN");
    }
    lacks || lacks_bpf()
}

#[test]
fn the_helper_can_switch_statistics_on_and_nothing_else() {
    // The first process of another one need not wait for orphans that have ended.
    if lacks_statistics() || lacks_host_pids() {
        return;
    }
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    home.wait_for_log("privileges dropped");
    let helper = helper(peer.agent.pid()).unwrap();
    let admin = format!("{:016x}", Capability::CAP_SYS_ADMIN.bitmask());
    let (none, filter) = (format!("{:016x}", 0), "2".to_owned());
    for (field, expected) in [
        ("CapPrm", &admin),
        ("CapEff", &admin),
        ("CapBnd", &admin),
        ("CapInh", &none),
        ("CapAmb", &none),
        ("NoNewPrivs", &"1".to_owned()),
        ("Seccomp", &filter),
        ("Name", &"corebcc-stats".to_owned()),
    ] {
        assert_eq!(of_threads(helper, field).join(","), *expected, "{field}");
    }
    let opened = || fs::read_dir(process(helper).join("fd")).unwrap().flatten().count();
    assert_eq!(opened(), 1, "its end of the connection");
    for _ in 0..3 {
        assert_eq!(peer.error(&wire::store(STATISTICS, IN_NULL, 1)), 0, "{}", home.log());
        assert!(counts_runs(&process(peer.agent.pid())));
        wait_for("the descriptor to be passed on", || (opened() == 1).then_some(()));
        assert_eq!(peer.error(&wire::store(STATISTICS, IN_NULL, 0)), 0);
        assert!(!counts_runs(&process(peer.agent.pid())));
    }
    assert_eq!(peer.close().0.code(), Some(0));
    wait_for("the end of the helper", || (!process(helper).exists()).then_some(()));
}

#[test]
fn a_killed_agent_leaves_neither_statistics_nor_helper() {
    if lacks_statistics() || lacks_host_pids() {
        return;
    }
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    home.wait_for_log("privileges dropped");
    let pid = peer.agent.pid();
    let helper = helper(pid).unwrap();
    assert_eq!(peer.error(&wire::store(STATISTICS, IN_NULL, 1)), 0, "{}", home.log());
    assert!(counts_runs(&process(pid)));
    peer.agent.signal(Signal::SIGKILL);
    peer.agent.end();
    wait_for("the end of the helper", || (!process(helper).exists()).then_some(()));
    assert!(!counts_runs(&process(pid)), "it is gone");
}

#[test]
fn a_store_without_the_helper_says_what_to_do() {
    if lacks_statistics() {
        return;
    }
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    home.wait_for_log("privileges dropped");
    kill(Pid::from_raw(helper(peer.agent.pid()).unwrap()), Signal::SIGKILL).unwrap();
    for _ in 0..2 {
        assert_eq!(
            peer.error(&wire::store(STATISTICS, IN_NULL, 1)),
            PmErr::GENERIC.0,
            "pmcd takes EPIPE for the end of the agent"
        );
    }
    assert!(values(&mut peer, "bcc.agent.kernel.status")["bpf_stats"].contains("does not answer: restart the agent"));
    assert_eq!(values(&mut peer, "bcc.proc.sysfork").len(), 1, "the agent goes on");
    assert_eq!(peer.close().0.code(), Some(0));
}

/// An agent that never had CAP_SYS_ADMIN answers with an error, and logs the reason.
#[test]
fn a_store_without_the_privilege_says_what_it_takes() {
    if lacks_statistics() || lacks(&["setpriv"]) {
        return;
    }
    let home = Home::new(ONE);
    // Where perf events take CAP_SYS_ADMIN every module asks for it; sysfork does not use them.
    let mut capabilities = to_load(find("sysfork"));
    capabilities.remove(&Capability::CAP_SYS_ADMIN);
    let mut peer = with_exactly(&home, &capabilities, "root");
    assert_eq!(helper(peer.agent.pid()), None);
    assert_eq!(peer.error(&wire::store(STATISTICS, IN_NULL, 1)), REFUSED);
    let log = home.read("stderr.log");
    assert!(log.contains("program statistics: refused") && log.contains("started with CAP_SYS_ADMIN"), "{log}");
    assert_eq!(values(&mut peer, "bcc.agent.program.stats")[""], "0");
}

#[test]
fn an_agent_that_keeps_the_privilege_has_no_helper() {
    if lacks_statistics() {
        return;
    }
    let home = Home::new(&ONE.replace("[pmda]", "[pmda]\ndrop_privileges = False"));
    let mut peer = Peer::ready(&home, &[]);
    assert_eq!(helper(peer.agent.pid()), None);
    assert_eq!(peer.error(&wire::store(STATISTICS, IN_NULL, 1)), 0, "{}", home.log());
    assert!(counts_runs(&process(peer.agent.pid())));
}
