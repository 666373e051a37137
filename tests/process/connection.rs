//! Handshake, readiness, and the contents of the connection (statements 1 to 10, 15, 63).

use crate::peer::{Peer, SECOND};
use crate::reference::pmcd::{self as wire, decode, frame, word};
use crate::support::{lacks_bpf, rows::rows, Home, ALL, ONE};
use corebcc::pcp::Pmid;
use corebcc::pdu::{Pdu, PduType};
use std::fs;
use std::time::{Duration, Instant};

const SYSFORK: Pmid = Pmid::new(149, 2, 0);

#[test]
fn c01_the_first_bytes_are_creds_of_20_bytes_from_the_own_pid() {
    let home = Home::new(ONE);
    let mut peer = Peer::start(&home, &[]);
    let creds = peer.read_within(Duration::from_secs(5));
    assert_eq!([0, 4, 8, 12, 16].map(|at| word(&creds, at)), [20, 0x700c, peer.agent.pid() as u32, 1, 0x0102_0000]);
}

/// Initialisation cannot finish: nobody writes to the FIFO that the kernel's types are read from.
#[test]
fn c02_creds_come_in_a_second_and_before_initialisation_ends() {
    let home = Home::new(ALL);
    let fifo = home.path("btf");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let start = Instant::now();
    let mut peer = Peer::start(&home, &["--btf", fifo.to_str().unwrap()]);
    peer.greet();
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    assert!(!home.log().contains("ready: "));
}

#[test]
fn c03_nothing_else_is_written_before_pmcds_creds() {
    let home = Home::new(ONE);
    let mut peer = Peer::start(&home, &["--notready"]);
    peer.read_within(Duration::from_secs(5));
    home.wait_for_log("ready: ");
    assert!(!peer.readable(Duration::from_millis(100)), "before CREDS");
    peer.send(&wire::creds(0));
    assert_eq!(decode(&peer.read()), Pdu::Error { code: -13393 });
}

#[test]
fn c05_requests_split_or_joined_are_answered_in_order() {
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &[]);
    let requests = [
        wire::desc(SYSFORK),
        wire::profile(false, &[]),
        wire::fetch(&[SYSFORK, Pmid::new(149, 4, 0)]),
        wire::error(-12391),
        wire::text(SYSFORK.0, 5),
        wire::traverse("bcc"),
        wire::label(149, 2),
    ];
    let order = [PduType::DESC, PduType::RESULT, PduType::TEXT, PduType::PMNS_NAMES, PduType::LABEL];
    let stream = requests.concat();
    for chunk in [1, 7, stream.len()] {
        for part in stream.chunks(chunk) {
            peer.write(part);
        }
        let types: Vec<PduType> = order.iter().map(|_| frame(&peer.read()).ty).collect();
        assert_eq!(types, order, "in pieces of {chunk}");
    }
    peer.unanswered();
}

#[test]
fn c06_a_reply_beyond_the_pipe_reaches_a_late_reader_whole() {
    if lacks_bpf() {
        return;
    }
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    peer.send(&wire::fetch(&[SYSFORK; 10_000]));
    peer.send(&wire::desc(SYSFORK));
    peer.settle();
    let reply = peer.read();
    assert_eq!(reply.len(), 24 + 10_000 * (12 + 8 + 12));
    assert_eq!(wire::result(&reply).len(), 10_000);
    assert_eq!(frame(&peer.read()).ty, PduType::DESC);
}

#[test]
fn c07_a_length_below_12_ends_the_agent_with_a_log_line() {
    for length in [0u32, 11, 0xffff_fff0, 0x7fff_ffff] {
        let home = Home::new(ONE);
        let mut peer = Peer::start(&home, &[]);
        peer.greet();
        peer.write(&[length.to_be_bytes(), 0x7004u32.to_be_bytes(), [0; 4]].concat());
        let (status, rest) = peer.rest();
        assert_eq!((status.code(), rest), (Some(1), Vec::new()), "{length:#x}");
        let said = format!("pdu length {}", length as i32);
        assert!(home.log().contains(&said), "{said}: {}", home.log());
    }
}

#[test]
fn c07_eof_inside_a_pdu_ends_the_agent_with_a_log_line() {
    for cut in [1, 4, 11, 12, 15] {
        let home = Home::new(ONE);
        let mut peer = Peer::start(&home, &[]);
        peer.greet();
        peer.write(&wire::desc(SYSFORK)[..cut]);
        let (status, rest) = peer.close();
        assert_eq!((status.code(), rest), (Some(1), Vec::new()), "{cut} bytes");
        assert!(home.log().contains("end of file inside a PDU"), "{}", home.log());
    }
}

/// The best of three attempts counts: others use this machine too.
#[test]
fn c08_eof_between_pdus_ends_with_status_0_in_100_ms() {
    let times = (0..3).map(|_| {
        let home = Home::new(ALL);
        let mut peer = Peer::ready(&home, &[]);
        peer.ask(&wire::fetch(&[SYSFORK]));
        let start = Instant::now();
        let (status, rest) = peer.close();
        let time = start.elapsed();
        assert_eq!((status.code(), rest), (Some(0), Vec::new()));
        assert!(home.log().contains("pmcd closed the connection"), "{}", home.log());
        assert!(home.log().trim_end().lines().last().unwrap().starts_with("Log finished "), "{}", home.log());
        assert_eq!(home.read("stderr.log"), "");
        time
    });
    let best = times.min().unwrap();
    assert!(best < Duration::from_millis(100), "{best:?}");
}

/// Output of any library goes to descriptor 1, and that is the log, not pmcd.
#[test]
fn c10_nothing_that_prints_can_reach_the_protocol() {
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &[]);
    let fd = |n: u32| fs::read_link(format!("/proc/{}/fd/{n}", peer.agent.pid())).unwrap();
    assert_eq!(fd(0).to_str(), Some("/dev/null"));
    assert_eq!(fd(1), home.path("corebcc.log"));
    assert_eq!(fd(2), home.path("corebcc.log"));
    // A child would get 0, 1, 2, and what this process had when it started the agent.
    for entry in fs::read_dir(format!("/proc/{}/fdinfo", peer.agent.pid())).unwrap().flatten() {
        let info = fs::read_to_string(entry.path()).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let on_exec = u32::from_str_radix(flags, 8).unwrap() & 0o2000000 != 0;
        let number: u32 = entry.file_name().to_string_lossy().parse().unwrap();
        let inherited = || fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|link| link == fd(number));
        assert!(on_exec || number <= 2 || inherited(), "descriptor {number}: {info}");
    }
    // Requests that make it log, between others.
    for _ in 0..50 {
        peer.send(&wire::pdu(PduType(0x7abc), b"junk"));
        peer.send(&wire::pdu(PduType::ATTR, b""));
        assert_eq!(peer.error(&wire::pdu(PduType::FETCH, b"?")), -12345);
        assert_eq!(frame(&peer.ask(&wire::desc(SYSFORK))).ty, PduType::DESC);
    }
    assert!(home.log().contains("0x7abc") && home.log().contains("malformed FETCH"), "{}", home.log());
}

#[test]
fn c10_with_the_log_on_standard_error_the_protocol_stays_clean() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &["-l", "-"]);
    peer.send(&wire::pdu(PduType(0x7abc), b"junk"));
    peer.unanswered();
    let (status, rest) = peer.close();
    assert_eq!((status.code(), rest), (Some(0), Vec::new()));
    assert!(home.read("stderr.log").contains("0x7abc"), "{}", home.read("stderr.log"));
}

#[test]
fn c15_memory_has_not_grown_after_10_000_clients_that_went() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    let mut clients = |slots: std::ops::Range<i32>| {
        for slot in slots {
            peer.slot = slot;
            peer.send(&wire::attr(11, b"1000\0"));
            peer.send(&wire::error(-12391));
        }
        peer.unanswered();
        peer.memory("RssAnon")
    };
    let before = clients(0..1000);
    let after = clients(1000..11_000);
    // A leak of a word for each is 80 KiB.
    assert!(after <= before + 64, "{before} KiB before, {after} KiB after");
}

#[test]
fn c63_ready_is_sent_once_with_notready_and_never_without() {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &[]);
    for row in rows() {
        peer.ask(&wire::desc(row.pmid()));
    }
    let (status, rest) = peer.close();
    assert_eq!((status.code(), rest), (Some(0), Vec::new()), "READY a second time");

    let home = Home::new(ONE);
    let mut peer = Peer::start(&home, &[]);
    peer.greet();
    home.wait_for_log("ready: ");
    peer.unanswered();
    let (status, rest) = peer.close();
    assert_eq!((status.code(), rest), (Some(0), Vec::new()), "READY without being asked for it");
}
