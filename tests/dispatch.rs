//! Replays captured conversations of pmcd and dbpmda 6.0.3 with the reference agent and compares every reply byte for
//! byte, then sends the agent requests that pmcd would not: random frames and random sequences of requests.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

mod reference;

use corebcc::{
    agent::{Agent, Options},
    pcp::{PmErr, Pmid},
    pdu::{Deframer, Frame, Pdu, PduType},
};
use proptest::prelude::*;
use reference::{
    pmcd::{self, decode, frame, split, Pmcd},
    Reference, DOMAIN,
};
use std::{collections::VecDeque, fs, path::Path};

const READY: [u8; 16] = [0, 0, 0, 16, 0, 0, 0x70, 0, 0, 0, 0, 0, 0xff, 0xff, 0xcb, 0xaf];

#[test]
fn pmcd_conversation_is_reproduced() {
    assert_eq!(replay("pmcd-ref", Options { attributes: true, notready: false }), (2, 209));
}

#[test]
fn conversation_after_a_restart_is_reproduced() {
    assert_eq!(replay("pmcd-ref-restart", Options { attributes: true, notready: false }), (2, 4));
}

#[test]
fn not_ready_conversation_is_reproduced() {
    assert_eq!(replay("pmcd-ref-notready", Options { attributes: true, notready: true }), (1, 5));
}

#[test]
fn dbpmda_conversation_is_reproduced() {
    assert_eq!(replay("dbpmda-ref", Options { attributes: true, notready: false }), (1, 25));
}

/// The capture is of another agent; requests about metrics unknown to the reference agent fail with the same codes.
#[test]
fn dbpmdas_talk_with_another_agent_is_answered_pdu_for_pdu() {
    let mut agent = Agent::new(Reference::default(), Options::default());
    let (mut asked, mut answered) = (0, 0);
    for line in conversation("dbpmda-simple") {
        let (towards_agent, bytes) = match line {
            Line::Start => continue,
            Line::To(bytes) => (true, bytes),
            Line::From(bytes) => (false, bytes),
        };
        if !towards_agent {
            asked += usize::from(frame(&bytes).ty != PduType::CREDS);
            continue;
        }
        let mut out = Vec::new();
        agent.handle(&frame(&bytes), &mut out);
        answered += split(&out).len();
    }
    assert_eq!(answered, asked);
    assert!(asked > 30, "{asked} replies in the capture");
}

enum Line {
    Start,
    To(Vec<u8>),
    From(Vec<u8>),
}

fn conversation(name: &str) -> Vec<Line> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/conversations").join(name).with_extension("txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    let lines = text.lines().filter_map(|line| match line.split_at(2) {
        ("> ", hex) => Some(Line::To(unhex(hex))),
        ("< ", hex) => Some(Line::From(unhex(hex))),
        _ => (line == "# agent started").then_some(Line::Start),
    });
    lines.collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Replays the PDUs of pmcd; returns the numbers of agents started and replies compared.
fn replay(name: &str, options: Options) -> (usize, usize) {
    let mut agent = Agent::new(Reference::default(), options);
    let mut deframer = Deframer::new();
    let mut replies: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut started, mut compared) = (0, 0);
    for (n, line) in conversation(name).into_iter().enumerate() {
        match line {
            Line::Start => {
                assert!(replies.is_empty(), "{name}, PDU {n}: {} replies too many", replies.len());
                agent = Agent::new(Reference::default(), options);
                replies.push_back(agent.creds(0x1234));
                started += 1;
            }
            Line::To(bytes) => {
                assert!(replies.is_empty(), "{name}, PDU {n}: {} replies too many", replies.len());
                let mut out = Vec::new();
                feed(&mut deframer, &bytes, |frame| agent.handle(frame, &mut out));
                replies.extend(split(&out).into_iter().map(<[u8]>::to_vec));
            }
            Line::From(expected) => {
                if expected == READY {
                    let mut out = Vec::new();
                    agent.ready(&mut out);
                    replies.push_back(out);
                }
                let reply = replies.pop_front().unwrap_or_else(|| panic!("{name}, PDU {n}: no reply"));
                compare(&reply, &expected, &format!("{name}, PDU {n}"));
                compared += usize::from(frame(&reply).ty != PduType::CREDS);
            }
        }
    }
    assert!(replies.is_empty(), "{name}: {} replies too many", replies.len());
    (started, compared)
}

fn feed(deframer: &mut Deframer, bytes: &[u8], mut each: impl FnMut(&Frame<'_>)) {
    let mut bytes = bytes;
    while !bytes.is_empty() {
        let room = deframer.spare();
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
        deframer.filled(n);
        bytes = &bytes[n..];
        while let Some(frame) = deframer.next().unwrap() {
            each(&frame);
        }
    }
    assert!(deframer.is_empty());
}

/// Asserts that PDUs are equal except for what may differ: the process id in CREDS, the order of names, and the
/// identifier of a TEXT, which the stock agent sends in host byte order.
#[track_caller]
fn compare(reply: &[u8], expected: &[u8], what: &str) {
    let (mut reply, mut expected) = (reply.to_vec(), expected.to_vec());
    assert_eq!(frame(&reply).ty, frame(&expected).ty, "{what}");
    assert_eq!(reply.len(), expected.len(), "{what}");
    match frame(&reply).ty {
        PduType::CREDS => [&mut reply, &mut expected].into_iter().for_each(|pdu| pdu[8..12].fill(0)),
        PduType::TEXT => [&mut reply, &mut expected].into_iter().for_each(|pdu| pdu[12..16].fill(0)),
        PduType::PMNS_NAMES => {
            assert_eq!(pmcd::names(&reply), pmcd::names(&expected), "{what}");
            [&mut reply, &mut expected].into_iter().for_each(|pdu| pdu.truncate(24));
        }
        _ => {}
    }
    assert!(reply == expected, "{what}: {}\n reply    {}\n expected {}", frame(&reply).ty, hex(&reply), hex(&expected));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Requests that have a reply.
const ANSWERED: [PduType; 10] = [
    PduType::FETCH,
    PduType::RESULT,
    PduType::DESC_REQ,
    PduType::INSTANCE_REQ,
    PduType::TEXT_REQ,
    PduType::PMNS_IDS,
    PduType::PMNS_NAMES,
    PduType::PMNS_CHILD,
    PduType::PMNS_TRAVERSE,
    PduType::LABEL_REQ,
];

/// Asserts one reply of the right type if the request has one, none otherwise; and no code for which pmcd would drop
/// the agent.
fn check_answer(request: &[u8], out: &[u8]) {
    let ty = frame(request).ty;
    let replies = split(out);
    assert_eq!(replies.len(), usize::from(ANSWERED.contains(&ty)), "replies to {ty}");
    for reply in replies {
        let expected = match ty {
            PduType::FETCH => PduType::RESULT,
            PduType::DESC_REQ => PduType::DESC,
            PduType::INSTANCE_REQ => PduType::INSTANCE,
            PduType::TEXT_REQ => PduType::TEXT,
            PduType::PMNS_IDS | PduType::PMNS_CHILD | PduType::PMNS_TRAVERSE => PduType::PMNS_NAMES,
            PduType::PMNS_NAMES => PduType::PMNS_IDS,
            PduType::LABEL_REQ => PduType::LABEL,
            _ => PduType::ERROR,
        };
        match decode(reply) {
            Pdu::Error { code: 0 } => assert_eq!(ty, PduType::RESULT, "a success code"),
            Pdu::Error { code } => assert_eq!(PmErr(code).sendable(), PmErr(code)),
            _ => assert_eq!(frame(reply).ty, expected, "the reply to {ty}"),
        }
    }
}

/// Generates a well-formed request of any kind, about existing and unknown objects.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let pmid = (0u32..6, 0u32..13).prop_map(|(cluster, item)| Pmid::new(DOMAIN, cluster, item));
    let indom = prop_oneof![Just(reference::THREE), Just(reference::EMPTY), Just(corebcc::pcp::Indom::new(DOMAIN, 9))];
    let inst = prop_oneof![Just(0u32), Just(5), Just(6), Just(reference::LAST), Just(u32::MAX), any::<u32>()];
    let name = prop_oneof![
        Just("capt"),
        Just("capt.v"),
        Just("capt.v.i32"),
        Just("capt.empty"),
        Just("capt.in"),
        Just("cap"),
        Just("")
    ];
    let inst_name = prop_oneof![Just(""), Just("sda"), Just("sda 8:0"), Just("sda 8:1"), Just("last"), Just("la")];
    let ident =
        prop_oneof![pmid.clone().prop_map(|pmid| pmid.0), indom.clone().prop_map(|indom| indom.0), any::<u32>()];
    let list = prop::collection::vec(inst.clone(), 0..4);
    let entries = prop::collection::vec((indom.clone(), any::<bool>(), list), 0..3);
    let profile = (any::<bool>(), entries).prop_map(|(exclude, entries)| {
        let entries: Vec<_> = entries.iter().map(|(indom, state, list)| (*indom, *state, list.as_slice())).collect();
        pmcd::profile(exclude, &entries)
    });
    let value = prop_oneof![Just(1001u32), Just(1002), Just(1003), Just(u32::MAX), any::<u32>()];
    let bytes = prop::collection::vec(any::<u8>(), 0..12);
    prop_oneof![
        prop::collection::vec(pmid.clone(), 1..20).prop_map(|pmids| pmcd::fetch(&pmids)),
        profile,
        pmid.clone().prop_map(pmcd::desc),
        pmid.clone().prop_map(pmcd::names_of),
        (indom, inst.clone(), inst_name).prop_map(|(indom, inst, name)| pmcd::instance(indom, inst, name)),
        (ident.clone(), 0u32..32).prop_map(|(ident, kind)| pmcd::text(ident, kind)),
        (ident, prop_oneof![Just(1u32), Just(2), Just(4), Just(8), Just(16), Just(32), any::<u32>()])
            .prop_map(|(ident, class)| pmcd::label(ident, class)),
        name.clone().prop_map(pmcd::lookup),
        (name.clone(), any::<bool>()).prop_map(|(name, statuses)| pmcd::children(name, statuses)),
        name.prop_map(pmcd::traverse),
        (0u32..20, bytes.clone()).prop_map(|(number, value)| pmcd::attr(number, &value)),
        prop_oneof![Just(PmErr::NOTCONN.0), any::<i32>()].prop_map(pmcd::error),
        (pmid.clone(), inst.clone(), value).prop_map(|(pmid, inst, value)| pmcd::store(pmid, inst, value)),
        (pmid, inst, 0u32..12, bytes).prop_map(|(pmid, inst, ty, bytes)| pmcd::store_block(pmid, inst, ty, &bytes)),
    ]
}

/// Generates a frame with a valid header and any body, often a request with some bytes changed or cut off.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(any::<u8>(), 0..80);
    let noise = (0x7000i32..0x701a, body).prop_map(|(ty, body)| pmcd::pdu(PduType(ty), &body));
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let damaged = (request(), damage, any::<prop::sample::Index>()).prop_map(|(request, damage, cut)| {
        let mut body = request[12..].to_vec();
        for (at, byte) in damage.iter().filter(|_| !request[12..].is_empty()) {
            body[at.index(request.len() - 12)] = *byte;
        }
        body.truncate(body.len() - cut.index(8).min(body.len()));
        pmcd::pdu(frame(&request).ty, &body)
    });
    prop_oneof![noise, damaged]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_requests_is_answered_one_to_one(requests in prop::collection::vec((request(), 0i32..3), 1..30)) {
        let mut pmcd = Pmcd::connected();
        for (request, slot) in requests {
            pmcd.slot = slot;
            let out = pmcd.send(&request);
            check_answer(&request, &out);
        }
    }

    #[test]
    fn any_frame_is_answered_if_its_type_asks_for_it(frames in prop::collection::vec(anything(), 1..30)) {
        let mut pmcd = Pmcd::connected();
        for frame in frames {
            let out = pmcd.send(&frame);
            check_answer(&frame, &out);
        }
        pmcd.ask(&pmcd::desc(Pmid::new(DOMAIN, 0, 0)));
    }

    #[test]
    fn nothing_is_answered_before_creds(frames in prop::collection::vec(anything(), 1..10)) {
        let mut pmcd = Pmcd::silent(Reference::default(), Options::default());
        for bytes in frames.iter().filter(|bytes| frame(bytes).ty != PduType::CREDS) {
            pmcd.tell(bytes);
        }
    }
}
