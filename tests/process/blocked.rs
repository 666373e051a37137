//! Statement 65: replies keep arriving within a second while initialisation or collection is blocked for ten.

use crate::peer::{Peer, SECOND};
use crate::reference::pmcd::{self as wire, frame};
use crate::support::{lacks, lacks_bpf, rows::rows, wait_for, Home, Proc, ALL};
use corebcc::pcp::{Indom, IN_NULL};
use corebcc::pdu::PduType;
use nix::sys::signal::Signal;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// PM_ERR_AGAIN.
const AGAIN: i32 = -12389;

/// Every kind of request for ten seconds, each answered within one. What the fetches said of each metric.
#[track_caller]
fn ten_seconds(peer: &mut Peer) -> Vec<i32> {
    let pmids: Vec<_> = rows().map(|row| row.pmid()).collect();
    let until = Instant::now() + 10 * SECOND;
    peer.patience = SECOND;
    let mut said = Vec::new();
    while Instant::now() < until {
        let mut expect = |request: Vec<u8>, ty| assert_eq!(frame(&peer.ask(&request)).ty, ty);
        expect(wire::desc(pmids[0]), PduType::DESC);
        expect(wire::text(pmids[0].0, 5), PduType::TEXT);
        expect(wire::traverse("bcc"), PduType::PMNS_NAMES);
        // Rows are known whatever happens; of other instances it is not said that there are none.
        expect(wire::instance(Indom::new(149, 3), IN_NULL, ""), PduType::INSTANCE);
        expect(wire::instance(Indom::new(149, 13), IN_NULL, ""), PduType::ERROR);
        expect(wire::instance(Indom::new(149, 40), IN_NULL, ""), PduType::ERROR);
        expect(wire::label(Indom::new(149, 4).0, 32), PduType::LABEL);
        said = wire::result(&peer.ask(&wire::fetch(&pmids))).iter().map(|set| set.numval).collect();
        std::thread::sleep(Duration::from_millis(100));
    }
    said
}

/// The thread that loads waits for somebody to write to a FIFO.
#[test]
fn c65_replies_keep_arriving_while_initialisation_is_blocked() {
    let home = Home::new(ALL);
    let fifo = home.path("btf");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut peer = Peer::start(&home, &["--btf", fifo.to_str().unwrap()]);
    peer.greet();
    assert_eq!(ten_seconds(&mut peer), vec![AGAIN; rows().count()]);
    assert!(!home.log().contains("Modules compiled"), "{}", home.log());
    let (status, _) = peer.close();
    assert_eq!(status.code(), Some(0));
}

/// A tracer holds the thread that collects, and it alone, at the entry to a system call.
#[test]
fn c65_replies_keep_arriving_while_collection_is_blocked() {
    if lacks_bpf() || lacks(&["strace"]) {
        return;
    }
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &[]);
    let tasks = format!("/proc/{}/task", peer.agent.pid());
    let is_collector = |task: &std::path::Path| std::fs::read_to_string(task.join("comm")).unwrap() == "collector\n";
    let task = std::fs::read_dir(tasks).unwrap().flatten().map(|task| task.path()).find(|task| is_collector(task));
    let task = task.unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-e", "trace=/^p?poll$", "-e", "inject=/^p?poll$:delay_enter=60000000", "-p"]);
    strace.arg(task.file_name().unwrap()).stdout(Stdio::null()).stderr(home.create("strace.log"));
    let mut strace = Proc(strace.spawn().unwrap());
    let mut seen = 0;
    wait_for("the tracer to hold the thread", || {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        seen = if status.contains("State:\tt") { seen + 1 } else { 0 };
        assert!(strace.0.try_wait().unwrap().is_none(), "{}", home.read("strace.log"));
        (seen > 40).then_some(())
    });
    assert_eq!(ten_seconds(&mut peer), vec![AGAIN; rows().count()]);
    strace.signal(Signal::SIGKILL);
    strace.end();
    let pmids: Vec<_> = rows().map(|row| row.pmid()).collect();
    wait_for("values", || {
        let sets = wire::result(&peer.ask(&wire::fetch(&pmids)));
        sets.iter().all(|set| set.numval >= 0).then_some(())
    });
    assert_eq!(peer.close().0.code(), Some(0));
}
