//! Faulty connections: a pmcd that ends in the middle of a PDU, sends wrong lengths, or stops reading.

use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, frame};
use crate::support::{wait_for, Home, Proc, ALL, ONE};
use corebcc::pcp::Pmid;
use corebcc::pdu::PduType;
use nix::sys::signal::Signal;
use std::io::Write;

const SYSFORK: Pmid = Pmid::new(149, 2, 0);

/// Returns a fetch whose reply no pipe holds: 1.6 MB.
fn large_fetch() -> Vec<u8> {
    wire::fetch(&[SYSFORK; 50_000])
}

#[test]
fn a_pmcd_that_goes_in_the_middle_of_a_reply_ends_the_agent() {
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &[]);
    peer.send(&large_fetch());
    assert!(peer.readable(crate::peer::SECOND));
    (peer.to, peer.from) = (None, None);
    assert_eq!(peer.agent.end().code(), Some(1));
    assert!(home.log().contains("pmcd takes no reply: Broken pipe"), "{}", home.log());
    assert!(home.log().contains("Log finished "), "{}", home.log());
}

#[test]
fn a_pmcd_that_goes_before_it_reads_the_creds_ends_the_agent() {
    let home = Home::new(ONE);
    let (input, _to) = std::io::pipe().unwrap();
    let (_, output) = std::io::pipe().unwrap();
    let mut command = home.agent(&[]);
    let mut agent = Proc(command.stdin(input).stdout(output).stderr(home.create("stderr.log")).spawn().unwrap());
    assert_eq!(agent.end().code(), Some(1), "{}", home.log());
    assert!(home.log().contains("pmcd takes no reply: Broken pipe"), "{}", home.log());
    assert!(home.log().contains("Log finished "), "{}", home.log());
}

#[test]
fn half_a_request_is_waited_for_without_using_the_processor() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    let request = wire::desc(SYSFORK);
    let ticks = |peer: &Peer| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", peer.agent.pid())).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    };
    peer.write(&request[..7]);
    peer.settle();
    let before = ticks(&peer);
    assert!(!peer.readable(crate::peer::SECOND), "an answer to half a request");
    // A hundredth of a second each: a loop that spins would use a hundred.
    assert!(ticks(&peer) - before < 20, "{} ticks in a second", ticks(&peer) - before);
    peer.write(&request[7..]);
    assert_eq!(frame(&peer.read()).ty, PduType::DESC);
}

/// The largest length that is accepted claims 16 MiB, which are not allocated before they arrive.
#[test]
fn a_length_that_is_only_claimed_costs_no_memory() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    let before = peer.memory("VmSize");
    peer.write(&[(16u32 << 20).to_be_bytes(), 0x7003u32.to_be_bytes(), [0; 4]].concat());
    peer.settle();
    assert!(peer.memory("VmSize") < before + 1024, "{before} KiB before, {} KiB after", peer.memory("VmSize"));
    let (status, rest) = peer.close();
    assert_eq!((status.code(), rest), (Some(1), Vec::new()));
}

/// Counts inside a PDU that its length contradicts.
#[test]
fn giant_counts_are_answered_with_an_error_and_cost_no_memory() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    let before = peer.memory("VmSize");
    for count in [0x7fff_ffff, 0xffff_ffff, 0x8000_0000, 0x4000_0000] {
        for request in [
            wire::words(PduType::FETCH, &[0, 0, 0, count, SYSFORK.0]),
            wire::words(PduType::RESULT, &[0, 0, count, SYSFORK.0, 1, 0, 0, 0]),
            wire::words(PduType::RESULT, &[0, 0, 1, SYSFORK.0, count, 0, 0, 0]),
            wire::words(PduType::INSTANCE_REQ, &[0, 0, 0, 0, count]),
            wire::words(PduType::PMNS_NAMES, &[count, 0, count, count]),
            wire::words(PduType::PMNS_IDS, &[0, count, 1]),
            wire::words(PduType::PMNS_TRAVERSE, &[0, count]),
        ] {
            assert!(peer.error(&request) < 0, "{}", frame(&request).ty);
        }
        peer.send(&wire::words(PduType::PROFILE, &[0, 0, count, 0]));
        peer.send(&wire::words(PduType::CREDS, &[count]));
    }
    peer.unanswered();
    assert!(peer.memory("VmSize") < before + 1024, "{before} KiB before, {} KiB after", peer.memory("VmSize"));
}

#[test]
fn a_pmcd_that_stops_reading_cannot_keep_the_agent_from_ending() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let home = Home::new(ALL);
        let mut peer = Peer::ready(&home, &[]);
        // As many requests as go in, none of whose replies is read.
        let to = peer.to.as_mut().unwrap();
        let flags = nix::fcntl::OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(&*to, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
        let request = large_fetch();
        wait_for("the agent to stop reading", || to.write_all(&request).is_err().then_some(()));
        peer.settle();
        let memory = peer.memory("VmRSS");
        assert!(memory < 100 << 10, "{memory} KiB for replies nobody takes");
        peer.agent.signal(signal);
        assert_eq!(peer.agent.end().code(), Some(0));
        assert!(home.log().contains("ended by signal"), "{}", home.log());
    }
}

#[test]
fn a_hang_up_signal_changes_nothing() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    peer.agent.signal(Signal::SIGHUP);
    peer.agent.signal(Signal::SIGPIPE);
    peer.unanswered();
    assert_eq!(peer.close().0.code(), Some(0));
}
