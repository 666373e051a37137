//! Framing, handshake, and PDUs that are never answered (3 to 9, 11 to 15).

use crate::reference::{
    pmcd::{self, decode, frame, split, word, Pmcd},
    pmid, Reference, THREE,
};
use corebcc::{
    agent::{Agent, Options},
    pcp::IN_NULL,
    pdu::{Deframer, Pdu, PduType},
};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
};

#[test]
fn c01_creds_are_20_bytes_of_version_2_from_the_own_pid() {
    let agent = Agent::new(Reference::default(), Options { attributes: true, notready: false });
    let creds = agent.creds(0x1234);
    assert_eq!([0, 4, 8, 12, 16].map(|at| word(&creds, at)), [20, 0x700c, 0x1234, 1, 0x0102_0044]);
    let plain = Agent::new(Reference::default(), Options::default());
    assert_eq!(word(&plain.creds(7), 16), 0x0102_0000);
}

#[test]
fn c03_nothing_is_written_before_pmcds_creds() {
    let mut pmcd = Pmcd::silent(Reference::default(), Options { attributes: true, notready: true });
    let mut out = Vec::new();
    pmcd.agent.ready(&mut out);
    assert!(out.is_empty(), "READY before CREDS");
    pmcd.tell(&pmcd::desc(pmid(0, 0)));
    pmcd.tell(&pmcd::fetch(&[pmid(0, 0)]));
    pmcd.tell(&pmcd::pdu(PduType::CREDS, b"?"));
    pmcd.tell(&pmcd::pdu(PduType::FETCH, b""));
}

#[test]
fn c04_creds_with_any_flags_and_number_are_accepted() {
    let several = pmcd::words(PduType::CREDS, &[3, 0x0200_0000, 0x0102_0004, 0x7fff_ffff]);
    let none = pmcd::words(PduType::CREDS, &[0]);
    for creds in [pmcd::creds(0), pmcd::creds(4), pmcd::creds(0xffff), several, none] {
        let mut pmcd = Pmcd::silent(Reference::default(), Options::default());
        pmcd.tell(&creds);
        pmcd.ask(&pmcd::desc(pmid(0, 0)));
    }
}

#[test]
fn c05_requests_split_or_joined_are_answered_in_order() {
    let requests = [
        pmcd::creds(4),
        pmcd::desc(pmid(0, 1)),
        pmcd::profile(false, &[]),
        pmcd::fetch(&[pmid(0, 0), pmid(1, 1)]),
        pmcd::attr(15, b"web1\0"),
        pmcd::instance(THREE, IN_NULL, "sda"),
        pmcd::label(400, 2),
    ];
    let order = [PduType::DESC, PduType::RESULT, PduType::INSTANCE, PduType::LABEL];
    let stream = requests.concat();
    for chunk in [1, 2, 3, 5, 11, 64, stream.len()] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let agent = thread::spawn(|| serve(ours));
        let mut writer = theirs.try_clone().unwrap();
        for part in stream.chunks(chunk) {
            writer.write_all(part).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut replies = Vec::new();
        theirs.read_to_end(&mut replies).unwrap();
        agent.join().unwrap();
        let types: Vec<_> = split(&replies).into_iter().map(|reply| frame(reply).ty).collect();
        assert_eq!(types, order, "in pieces of {chunk}");
    }
}

/// A minimal connection: it reads, answers, and ends at end of file.
fn serve(mut stream: UnixStream) {
    let mut agent = Agent::new(Reference::default(), Options::default());
    let mut deframer = Deframer::new();
    loop {
        let n = stream.read(deframer.spare()).unwrap();
        if n == 0 {
            assert!(deframer.is_empty(), "end of input inside a PDU");
            return;
        }
        deframer.filled(n);
        let mut out = Vec::new();
        while let Some(frame) = deframer.next().unwrap() {
            agent.handle(&frame, &mut out);
        }
        stream.write_all(&out).unwrap();
    }
}

#[test]
fn c06_a_reply_larger_than_a_pipe_holds_is_whole() {
    let reference = Reference { string: vec![b'x'; 300_000], ..Reference::default() };
    let mut pmcd = Pmcd::with(reference, Options::default());
    let reply = pmcd.ask(&pmcd::fetch(&[pmid(3, 1)]));
    let sets = pmcd::result(&reply);
    let pmcd::Wire::Block { ty: 6, bytes, .. } = &sets[0].values[0].1 else { panic!("{:?}", sets[0].format) };
    assert_eq!((bytes.len(), bytes.last()), (300_001, Some(&0)));
}

#[test]
fn c07_a_short_length_or_negative_type_ends_the_connection() {
    for header in [[11, 0x7004, 0], [0, 0x7004, 0], [0xffff_fff0, 0x7004, 0], [16, 0x8000_7004, 0]] {
        let mut deframer = Deframer::new();
        let bytes: Vec<u8> = header.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        deframer.spare()[..12].copy_from_slice(&bytes);
        deframer.filled(12);
        assert!(deframer.next().is_err(), "{header:x?}");
    }
}

#[test]
fn c07_end_of_input_inside_a_pdu_can_be_told() {
    let request = pmcd::desc(pmid(0, 0));
    for cut in 1..request.len() {
        let mut deframer = Deframer::new();
        deframer.spare()[..cut].copy_from_slice(&request[..cut]);
        deframer.filled(cut);
        assert!(matches!(deframer.next(), Ok(None)), "{cut} bytes");
        assert!(!deframer.is_empty(), "{cut} bytes");
    }
}

#[test]
fn c09_replies_have_from_0_whoever_asks() {
    for slot in [0, 1, 77, i32::MAX, -1] {
        let mut pmcd = Pmcd::connected();
        pmcd.slot = slot;
        // `ask` looks at the word.
        pmcd.ask(&pmcd::desc(pmid(0, 0)));
        pmcd.ask(&pmcd::desc(pmid(9, 9)));
        pmcd.ask(&pmcd::fetch(&[pmid(0, 0)]));
        pmcd.ask(&pmcd::instance(THREE, IN_NULL, ""));
        pmcd.ask(&pmcd::text(pmid(0, 0).0, 5));
        pmcd.ask(&pmcd::label(THREE.0, 32));
        pmcd.ask(&pmcd::traverse("capt"));
        pmcd.ask(&pmcd::lookup("capt.v.i32"));
        pmcd.ask(&pmcd::names_of(pmid(0, 0)));
        pmcd.ask(&pmcd::children("capt", true));
        pmcd.ask(&pmcd::store(pmid(3, 0), IN_NULL, 8));
    }
}

#[test]
fn c11_a_profile_is_not_answered_valid_or_malformed() {
    let mut pmcd = Pmcd::connected();
    let whole = pmcd::profile(true, &[(THREE, true, &[5])]);
    for cut in 12..=whole.len() {
        pmcd.tell(&pmcd::pdu(PduType::PROFILE, &whole[12..cut]));
    }
    pmcd.tell(&pmcd::words(PduType::PROFILE, &[0, 0, u32::MAX, 0]));
    pmcd.tell(&pmcd::words(PduType::PROFILE, &[0, 0, 1, 0, THREE.0, 1, 0x7fff_ffff, 0]));
    // A malformed one changes nothing: the last valid one is in force.
    assert_eq!(pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(1, 0)])))[0].insts(), [5]);
}

#[test]
fn c12_an_attribute_is_not_answered() {
    let mut pmcd = Pmcd::connected();
    for attribute in [0, 5, 11, 12, 14, 15, 16, 17, 4711, u32::MAX] {
        for value in [&b""[..], b"\0", b"web1", b"web1\0", b"a\0b\0", b"\xff\xfe"] {
            pmcd.tell(&pmcd::attr(attribute, value));
        }
    }
    pmcd.tell(&pmcd::pdu(PduType::ATTR, b""));
    pmcd.tell(&pmcd::pdu(PduType::ATTR, b"\0\0"));
}

#[test]
fn c13_an_error_from_pmcd_is_not_answered() {
    let mut pmcd = Pmcd::connected();
    for code in [-12391, -12345, 0, 1, i32::MIN] {
        pmcd.tell(&pmcd::error(code));
        pmcd.tell(&pmcd::words(PduType::ERROR, &[code as u32, 0x0201_0e44]));
    }
    pmcd.tell(&pmcd::pdu(PduType::ERROR, b""));
}

#[test]
fn c14_an_unknown_type_has_no_answer_and_the_next_has() {
    let mut pmcd = Pmcd::connected();
    for ty in [0, 1, 0x6fff, 0x700a, 0x700b, 0x700c, 0x7014, 0x7016, 0x7018, 0x7fff_ffff] {
        pmcd.tell(&pmcd::pdu(PduType(ty), b""));
        pmcd.tell(&pmcd::pdu(PduType(ty), &[0; 16]));
        assert!(matches!(decode(&pmcd.ask(&pmcd::desc(pmid(0, 0)))), Pdu::Desc(_)), "after {ty:#x}");
    }
}

#[test]
fn c15_clients_that_are_gone_leave_nothing_behind() {
    let mut pmcd = Pmcd::connected();
    for slot in 0..10_000 {
        pmcd.slot = slot % 100;
        pmcd.tell(&pmcd::attr(14, b"4711\0"));
        pmcd.tell(&pmcd::error(-12391));
    }
    assert!(pmcd.agent.source().attributes.is_empty());
}
