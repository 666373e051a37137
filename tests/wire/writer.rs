//! `ResultWriter`: the values written can be decoded, and the bytes follow the placement rules that pmcd enforces.

use corebcc::{
    pcp::{Atom, EventParam, EventRecord, InstId, PmErr, Pmid},
    pdu::{Event, Pdu, ResultWriter, ValueSet},
};
use proptest::{collection::vec, prelude::*};

type Set = (Pmid, Result<Vec<(InstId, Atom<'static>)>, PmErr>);

fn text() -> impl Strategy<Value = &'static [u8]> {
    vec(1..=255u8, 0..12).prop_map(|v| &*v.leak())
}

fn records(highres: bool) -> impl Strategy<Value = &'static [EventRecord<'static>]> {
    let value = prop_oneof![
        any::<i32>().prop_map(Atom::I32),
        any::<u64>().prop_map(Atom::U64),
        any::<f32>().prop_map(Atom::Float),
        text().prop_map(Atom::Str),
        text().prop_map(Atom::Aggregate),
    ];
    let param = (any::<u32>(), value).prop_map(|(pmid, value)| EventParam { pmid: Pmid(pmid), value });
    let params = vec(param, 0..4).prop_map(|v| &*v.leak());
    let record = (any::<(i32, i32)>(), prop_oneof![(0..32u32, Just(0)), (Just(1 << 31), any::<i32>())], params);
    let record = record.prop_map(move |((sec, subsec), (flags, missed), params)| EventRecord {
        sec: sec.into(),
        subsec: subsec.into(),
        flags,
        // The count is lost in a high-resolution array, as it is in the C library.
        missed: if highres { 0 } else { missed },
        params: if flags == 1 << 31 { &[] } else { params },
    });
    vec(record, 0..4).prop_map(|v| &*v.leak())
}

/// Generates values of one type, as a metric has.
fn values() -> impl Strategy<Value = Vec<(InstId, Atom<'static>)>> {
    fn some(atom: impl Strategy<Value = Atom<'static>> + 'static) -> BoxedStrategy<Vec<(InstId, Atom<'static>)>> {
        vec((any::<u32>(), atom), 0..5).boxed()
    }
    prop_oneof![
        some(any::<i32>().prop_map(Atom::I32)),
        some(any::<u32>().prop_map(Atom::U32)),
        some(any::<i64>().prop_map(Atom::I64)),
        some(any::<u64>().prop_map(Atom::U64)),
        some(any::<f32>().prop_map(Atom::Float)),
        some(any::<f64>().prop_map(Atom::Double)),
        some(text().prop_map(Atom::Str)),
        some(text().prop_map(Atom::Aggregate)),
        some(records(false).prop_map(Atom::Event)),
        some(records(true).prop_map(Atom::HighresEvent)),
    ]
}

fn sets() -> impl Strategy<Value = Vec<Set>> {
    let set = prop_oneof![3 => values().prop_map(Ok), 1 => (-30_000..-13_000).prop_map(|code| Err(PmErr(code)))];
    vec((any::<u32>().prop_map(Pmid), set), 0..8)
}

fn write(writer: &mut ResultWriter, out: &mut Vec<u8>, stamp: u32, sets: &[Set]) {
    let mut result = writer.begin(out, 0, stamp, sets.len());
    for (pmid, values) in sets {
        result.metric(*pmid);
        match values {
            Ok(values) => values.iter().for_each(|(inst, value)| result.value(*inst, value)),
            Err(code) => result.fail(*code),
        }
    }
    result.finish();
}

/// Parses a RESULT by hand and checks all offsets. Shares no code with the crate.
fn walk(pdu: &[u8], sets: &[Set]) {
    let word = |at: usize| u32::from_be_bytes(pdu[at..at + 4].try_into().unwrap());
    assert_eq!(word(0) as usize, pdu.len());
    assert_eq!(word(4), 0x7001);
    assert_eq!(word(20) as usize, sets.len());
    let (mut at, mut pointers) = (24, Vec::new());
    for (pmid, values) in sets {
        assert_eq!(word(at), pmid.0);
        let numval = word(at + 4) as i32;
        at += 8;
        match values {
            Err(code) => assert_eq!(numval, code.0),
            Ok(values) if values.is_empty() => assert_eq!(numval, 0),
            Ok(values) => {
                assert_eq!(numval as usize, values.len());
                let format = word(at);
                at += 4;
                for (inst, value) in values {
                    assert_eq!(word(at), *inst);
                    let expected = match value {
                        Atom::I32(_) | Atom::U32(_) => 0,
                        Atom::Event(_) | Atom::HighresEvent(_) => 2,
                        _ => 1,
                    };
                    assert_eq!(format, expected);
                    if format != 0 {
                        pointers.push((word(at + 4) as usize * 4, value.ty()));
                    }
                    at += 8;
                }
            }
        }
    }
    // The first block starts where the last set ends, the next one behind it and its padding, the last one ends the PDU:
    // so no two values can share one.
    for (block, ty) in pointers {
        assert_eq!(block, at);
        assert_eq!(word(block) >> 24, ty.0 as u32);
        let len = (word(block) & 0xff_ffff) as usize;
        assert!(len >= 4);
        assert!(pdu[block + len..block + len.next_multiple_of(4)].iter().all(|&b| b == b'~'));
        at += len.next_multiple_of(4);
    }
    assert_eq!(at, pdu.len());
}

fn owned(records: &[EventRecord<'static>]) -> Vec<Event<'static>> {
    let owned = |r: &EventRecord<'static>| Event {
        sec: r.sec,
        subsec: r.subsec,
        flags: r.flags,
        missed: r.missed,
        params: r.params.to_vec(),
    };
    records.iter().map(owned).collect()
}

fn same(got: &ValueSet<'_>, put: &Set) {
    assert_eq!(got.pmid, put.0);
    let (got, put) = match (&got.values, &put.1) {
        (Ok(got), Ok(put)) => (got, put),
        (got, put) => return assert_eq!(got.as_ref().err(), put.as_ref().err()),
    };
    assert_eq!(got.len(), put.len());
    for ((inst, value), (put_inst, put)) in got.iter().zip(put) {
        assert_eq!(inst, put_inst);
        match put {
            Atom::Event(records) | Atom::HighresEvent(records) => assert_eq!(value.events(), Ok(owned(records))),
            _ => assert_eq!(value.atom(put.ty()), Some(*put)),
        }
    }
}

proptest! {
    #[test]
    fn results_keep_the_placement_rules_and_come_back(first in sets(), second in sets(), stamp: u32) {
        let (mut writer, mut out) = (ResultWriter::new(), Vec::new());
        for sets in [first, second] {
            out.clear();
            write(&mut writer, &mut out, stamp, &sets);
            walk(&out, &sets);
            let Ok(Pdu::Result(result)) = Pdu::decode(&super::frame(&out)) else { panic!("{out:x?}") };
            prop_assert_eq!(result.stamp, [stamp as i32, 0]);
            prop_assert_eq!(result.sets.len(), sets.len());
            result.sets.iter().zip(&sets).for_each(|(got, put)| same(got, put));
        }
    }
}

#[test]
fn replies_equal_those_of_the_c_library() {
    let pmid = |cluster, item| Pmid::new(400, cluster, item);
    let one = |pmid, value| vec![(pmid, Ok(vec![(u32::MAX, value)]))];
    let pi = std::f64::consts::PI;
    let params = [
        EventParam { pmid: pmid(0, 0), value: Atom::I32(-1) },
        EventParam { pmid: pmid(0, 8), value: Atom::Str(b"abc") },
        EventParam { pmid: pmid(0, 5), value: Atom::Double(pi) },
    ];
    let missed = EventRecord { sec: 1_700_000_000, subsec: 123_456, flags: 1 << 31, missed: 4, params: &[] };
    let low = [EventRecord { flags: 1, missed: 0, params: params.to_vec().leak(), ..missed }, missed];
    let id = [EventParam { pmid: pmid(0, 8), value: Atom::Str(b"ab") }];
    let missed = EventRecord { subsec: 123_456_789, ..missed };
    let high = [EventRecord { flags: 10, missed: 0, params: id.to_vec().leak(), ..missed }, missed];
    let strings = [(0, Atom::Str(b"zero")), (5, Atom::Str(b"fivef")), (0x7fff_ffff, Atom::Str(b"mx"))];
    let cases: [(&str, Vec<Set>); 12] = [
        ("i32", one(pmid(0, 0), Atom::I32(-1))),
        ("u32", one(pmid(0, 1), Atom::U32(0xdead_beef))),
        ("i64", one(pmid(0, 2), Atom::I64(-2))),
        ("float", one(pmid(0, 4), Atom::Float(1.5))),
        ("double", one(pmid(0, 5), Atom::Double(pi))),
        ("str0", one(pmid(0, 6), Atom::Str(b""))),
        ("str4", one(pmid(0, 9), Atom::Str(b"abcd"))),
        ("aggr", one(pmid(0, 10), Atom::Aggregate(&[1, 2, 3, 4, 5]))),
        ("err_again", vec![(pmid(1, 5), Err(PmErr::AGAIN))]),
        ("inst_string", vec![(pmid(1, 1), Ok(strings.to_vec()))]),
        ("event", one(pmid(4, 0), Atom::Event(low.to_vec().leak()))),
        ("highres_event", one(pmid(4, 1), Atom::HighresEvent(high.to_vec().leak()))),
    ];
    for (name, sets) in cases {
        let mut out = Vec::new();
        write(&mut ResultWriter::new(), &mut out, 0, &sets);
        assert_eq!(out, super::vector(&format!("fetch_{name}.rsp.hex")), "{name}");
        walk(&out, &sets);
    }
}
