//! The PDU codec against captured traffic (tests/vectors), damaged copies of it, and random bytes.
#![allow(clippy::unwrap_used)]

#[path = "wire/arbitrary.rs"]
mod arbitrary;
#[path = "../fuzz/checks.rs"]
mod checks;
#[path = "wire/writer.rs"]
mod writer;

use std::{collections::BTreeMap, fs, path::Path};

use corebcc::{
    pcp::{Atom, EventParam, Pmid, Type, IN_NULL},
    pdu::{Deframer, Event, Frame, FrameError, Label, LabelClass, LabelSet, Pdu, PduType, ValueSet},
};
use proptest::prelude::*;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// Returns name and bytes of every captured PDU that has a file of its own.
fn vectors() -> BTreeMap<String, Vec<u8>> {
    let index = fs::read_to_string(root().join("tests/vectors/vectors.tsv")).unwrap();
    let read = |name: &str| unhex(&fs::read_to_string(root().join("tests/vectors").join(name)).unwrap());
    let names = index.lines().skip(1).map(|line| line.split('\t').next().unwrap());
    let vectors: BTreeMap<_, _> = names.map(|name| (name.to_owned(), read(name))).collect();
    assert_eq!(vectors.len(), 216);
    vectors
}

fn vector(name: &str) -> Vec<u8> {
    vectors().remove(name).unwrap()
}

/// Returns the PDU as a frame, whatever length its header claims.
fn frame(pdu: &[u8]) -> Frame<'_> {
    let word = |at: usize| i32::from_be_bytes(pdu[at..at + 4].try_into().unwrap());
    Frame { ty: PduType(word(4)), from: word(8), body: &pdu[12..] }
}

fn feed(deframer: &mut Deframer, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let spare = deframer.spare();
        let n = spare.len().min(bytes.len());
        spare[..n].copy_from_slice(&bytes[..n]);
        deframer.filled(n);
        bytes = &bytes[n..];
    }
}

fn decode_and_encode(name: &str, bytes: &[u8]) {
    let mut deframer = Deframer::new();
    feed(&mut deframer, bytes);
    let frame = deframer.next().unwrap().unwrap();
    let pdu = Pdu::decode(&frame).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(!matches!(pdu, Pdu::Other { .. }), "{name}");
    let mut again = Vec::new();
    pdu.encode(frame.from, &mut again);
    assert_eq!(again, bytes, "{name}: {pdu:?}");
    assert!(deframer.is_empty());
}

#[test]
fn captured_pdus_decode_and_encode_to_the_same_bytes() {
    vectors().iter().for_each(|(name, bytes)| decode_and_encode(name, bytes));
}

#[test]
fn captured_conversations_decode_and_encode_to_the_same_bytes() {
    let mut pdus = 0;
    for name in ["dbpmda-ref", "dbpmda-simple", "pmcd-ref", "pmcd-ref-notready", "pmcd-ref-restart"] {
        let text = fs::read_to_string(root().join(format!("tests/vectors/conversations/{name}.txt"))).unwrap();
        for (line, text) in text.lines().enumerate().filter(|(_, line)| line.starts_with(['<', '>'])) {
            decode_and_encode(&format!("{name}:{}", line + 1), &unhex(&text[1..]));
            pdus += 1;
        }
    }
    assert_eq!(pdus, 655);
}

#[test]
fn the_index_agrees_with_what_is_decoded() {
    let index = fs::read_to_string(root().join("tests/vectors/vectors.tsv")).unwrap();
    let vectors = vectors();
    for line in index.lines().skip(1) {
        let [file, name, .., from] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let frame = frame(&vectors[file]);
        assert_eq!(frame.ty.to_string(), name);
        assert_eq!(frame.from.to_string(), from, "{file}");
    }
}

#[test]
fn a_pdu_that_is_cut_short_is_an_error() {
    let mut cuts = 0;
    for (name, whole) in vectors() {
        for len in 0..whole.len() {
            let mut cut = whole[..len].to_vec();
            if len >= 4 {
                cut[..4].copy_from_slice(&(len as u32).to_be_bytes());
            }
            let mut deframer = Deframer::new();
            feed(&mut deframer, &cut);
            match deframer.next() {
                Ok(None) => assert!(len < 4),
                Err(FrameError::Length(n)) => assert!(n as usize == len && len < 12),
                Err(e) => panic!("{name} cut to {len}: {e}"),
                Ok(Some(frame)) => match Pdu::decode(&frame) {
                    // The value of an attribute ends with its PDU, and the last word of a greeting is an extension.
                    Ok(Pdu::Attr { .. }) => assert!(len >= 16),
                    Ok(Pdu::Error { code: 0 }) => assert!(len == 16 && name == "error_connack.client.hex"),
                    Ok(pdu) => panic!("{name} cut to {len}: {pdu:?}"),
                    Err(_) => {}
                },
            }
            cuts += 1;
        }
    }
    assert_eq!(cuts, 9230);
}

#[test]
fn a_pdu_with_bytes_after_its_last_field_is_an_error() {
    for (name, mut pdu) in vectors() {
        let ty = frame(&pdu).ty;
        pdu.extend([0; 4]);
        match Pdu::decode(&frame(&pdu)) {
            Ok(pdu) => assert!(matches!(ty, PduType::ATTR) || matches!(pdu, Pdu::Greeting { .. }), "{name}: {pdu:?}"),
            Err(e) => assert!(e.to_string().contains("follow") || ty == PduType::LABEL, "{name}: {e}"),
        }
    }
}

/// Returns the bytes that a decoded PDU holds in lists of its own.
fn weight(pdu: &Pdu<'_>) -> usize {
    fn list<T>(list: &Vec<T>) -> usize {
        list.capacity() * size_of::<T>()
    }
    let values = |sets: &Vec<ValueSet<'_>>| list(sets) + sets.iter().flat_map(|s| &s.values).map(list).sum::<usize>();
    match pdu {
        Pdu::Profile(p) => list(&p.entries) + p.entries.iter().map(|e| list(&e.insts)).sum::<usize>(),
        Pdu::Result(result) => values(&result.sets),
        Pdu::HighresResult { sets, .. } => values(sets),
        Pdu::Instance { entries, .. } => list(entries),
        Pdu::PmnsIds { ids, .. } | Pdu::DescIds { ids } => list(ids),
        Pdu::PmnsNames { names } => list(names),
        Pdu::Label { sets, .. } => list(sets) + sets.iter().flat_map(|s| &s.labels).map(list).sum::<usize>(),
        Pdu::Descs { descs } => list(descs),
        _ => 0,
    }
}

#[test]
fn a_damaged_byte_is_an_error_or_another_value() {
    let mut decoded = 0;
    for (name, whole) in vectors() {
        for at in 4..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                checks::requests(&bytes);
                if let Ok(pdu) = Pdu::decode(&frame(&bytes)) {
                    assert!(weight(&pdu) <= 16 * bytes.len() + 256, "{name}: {} bytes", weight(&pdu));
                    decoded += 1;
                }
            }
        }
    }
    assert!(decoded > 10_000, "{decoded}");
}

#[test]
fn a_count_of_two_thousand_million_allocates_nothing() {
    for (name, whole) in vectors() {
        for at in (12..whole.len().saturating_sub(3)).step_by(4) {
            for count in [i32::MAX, i32::MIN, 0x0fff_ffff] {
                let mut bytes = whole.clone();
                bytes[at..at + 4].copy_from_slice(&count.to_be_bytes());
                let pdu = Pdu::decode(&frame(&bytes));
                let weight = pdu.as_ref().map_or(0, weight);
                assert!(weight <= 16 * bytes.len() + 256, "{name}, word {at}: {weight} bytes");
            }
        }
    }
}

#[test]
fn captured_event_arrays_hold_the_records_the_agent_made() {
    let pdu = vector("fetch_event.rsp.hex");
    let Ok(Pdu::Result(result)) = Pdu::decode(&frame(&pdu)) else { panic!() };
    let param = |item, value| EventParam { pmid: Pmid::new(400, 0, item), value };
    let params =
        vec![param(0, Atom::I32(-1)), param(8, Atom::Str(b"abc")), param(5, Atom::Double(std::f64::consts::PI))];
    let (sec, subsec) = (1_700_000_000, 123_456);
    let point = Event { sec, subsec, flags: 1, missed: 0, params };
    let missed = Event { sec, subsec, flags: 0x8000_0000, missed: 4, params: vec![] };
    let [(IN_NULL, value)] = result.sets[0].values.as_deref().unwrap() else { panic!("{result:?}") };
    assert_eq!(value.events(), Ok(vec![point, missed]));
    assert_eq!(value.atom(Type::EVENT), None);
}

#[test]
fn a_block_shared_by_two_values_is_refused() {
    // Both strings of one block each; the second index is set to the first one's.
    let mut pdu = vector("fetch_inst_string.rsp.hex");
    assert!(Pdu::decode(&frame(&pdu)).is_ok());
    pdu.copy_within(40..44, 48);
    assert!(Pdu::decode(&frame(&pdu)).unwrap_err().to_string().starts_with("value block index"));
}

#[test]
fn built_labels_equal_those_of_the_c_library() {
    fn label<'a>(name: &'a str, value: &'a str, optional: bool) -> Label<'a> {
        Label { name, value, optional }
    }
    let encode = |ident, class, sets| {
        let mut out = Vec::new();
        Pdu::Label { ident, class, sets }.encode(0, &mut out);
        out
    };
    let labels = [label("zeta", "1", false), label("alpha.b", "\"c\"", false), label("note", "true", true)];
    let set = LabelSet::new(IN_NULL, LabelClass::ITEM, &labels);
    let item = encode(0x6400_0000, LabelClass::ITEM, vec![set]);
    assert_eq!(item, vector("label_item_compound_optional.rsp.hex"));

    let disk = |inst: u32| {
        let slot = inst.to_string();
        let labels = [label("slot", &slot, false), label("kind", "\"disk\"", false)];
        LabelSet::new(inst, LabelClass::INSTANCES, &labels)
    };
    let last = LabelSet::new(0x7fff_ffff, LabelClass::INSTANCES, &[]);
    let instances = encode(0x6400_0000, LabelClass::INSTANCES, vec![disk(0), disk(5), last]);
    assert_eq!(instances, vector("label_instances.rsp.hex"));
}

#[test]
fn a_stream_is_cut_into_the_same_frames_however_it_is_read() {
    let vectors = vectors();
    let stream: Vec<u8> = vectors.values().flatten().copied().collect();
    for read in [1, 2, 7, 11, 13, 300, 4096, stream.len()] {
        let (mut deframer, mut frames) = (Deframer::new(), vectors.values());
        for chunk in stream.chunks(read) {
            feed(&mut deframer, chunk);
            while let Some(got) = deframer.next().unwrap() {
                assert_eq!(got, frame(frames.next().unwrap()));
            }
        }
        assert!(deframer.is_empty() && frames.next().is_none(), "reads of {read}");
    }
}

#[test]
fn joined_pdus_come_one_by_one_and_half_a_pdu_is_no_clean_end() {
    let pdu = vector("error_notconn_from1.req.hex");
    let mut deframer = Deframer::new();
    feed(&mut deframer, &[&pdu[..], &pdu, &pdu[..15]].concat());
    for _ in 0..2 {
        assert_eq!(deframer.next().unwrap(), Some(frame(&pdu)));
        assert!(!deframer.is_empty());
    }
    assert_eq!(deframer.next(), Ok(None));
    assert!(!deframer.is_empty());
    feed(&mut deframer, &pdu[15..]);
    assert_eq!(deframer.next().unwrap(), Some(frame(&pdu)));
    assert!(deframer.is_empty());
}

#[test]
fn lengths_and_types_that_cannot_be_end_the_stream() {
    let max = Deframer::MAX as i32;
    for len in [0, 1, 11, -1, i32::MIN, max + 1, i32::MAX] {
        let mut deframer = Deframer::new();
        feed(&mut deframer, &len.to_be_bytes());
        for _ in 0..2 {
            assert_eq!(deframer.next(), Err(FrameError::Length(len)));
        }
    }
    let mut deframer = Deframer::new();
    feed(&mut deframer, &[0, 0, 0, 12, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0]);
    assert_eq!(deframer.next(), Err(FrameError::Type(-2)));
    assert_eq!(FrameError::Length(-1).to_string(), "pdu length -1: expected 12 to 16777216");
}

#[test]
fn the_fuzz_corpus_holds() {
    let replay = |target: &str, check: fn(&[u8])| {
        let files = fs::read_dir(root().join("fuzz/corpus").join(target)).unwrap();
        files.map(|file| check(&fs::read(file.unwrap().path()).unwrap())).count()
    };
    assert!(replay("frames", checks::frames) >= 6);
    assert!(replay("requests", checks::requests) >= 20);
    assert!(replay("config", checks::config) >= 8);
    assert!(replay("pair", checks::pair) >= 8);
    assert!(replay("object", checks::object) >= 9);
    assert!(replay("decoders", checks::decoders) >= 11);
    assert!(replay("script", checks::script) >= 8);
    assert!(replay("elf", checks::elf) >= 2);
    assert!(replay("host", checks::host) >= 11);
    assert!(replay("state", checks::state) >= 3);
}

/// Any byte may be damaged: in headers, symbols, types, relocations and code.
#[test]
fn damaged_objects_of_pairs_are_refused_or_opened() {
    let whole = fs::read(root().join("fuzz/corpus/object/whole")).unwrap();
    checks::object(&whole);
    for at in (0..whole.len()).step_by(3) {
        for value in [0x00, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] ^= value | 1;
            checks::object(&damaged);
        }
    }
}

proptest! {
    #[test]
    fn random_damage_of_objects_does_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        length in any::<prop::sample::Index>(),
        is_cut in prop::bool::weighted(0.2),
    ) {
        let mut object = fs::read(root().join("fuzz/corpus/object/whole")).unwrap();
        for (at, byte) in changes {
            *at.get_mut(&mut object) = byte;
        }
        if is_cut {
            object.truncate(length.index(object.len()));
        }
        checks::object(&object);
    }

    #[test]
    fn random_keys_do_not_panic(key in prop::collection::vec(any::<u8>(), 0..64)) {
        checks::decoders(&key);
    }

    #[test]
    fn random_configurations_do_not_panic(
        lines in prop::collection::vec(
            "\\[(pmda|DEFAULT|runqlat|tcplife)\\]|[a-z_%();:=, ]{0,20}|(modules|module|cluster|process|dport) ?[=:] ?[a-z0-9,.%()_-]{0,12}",
            0..12,
        )
    ) {
        checks::config(lines.join("\n").as_bytes());
    }

    #[test]
    fn random_scripts_do_not_panic(text in "[@a-c\\[\\]()=+,; \"/*\\\\:\u{e9}]{0,60}", value in "[\\[\\]{}0-9a\",: -]{0,40}") {
        let line = format!("{text}@a[b] = hist();\0{{\"type\": \"map\", \"data\": {{\"@a\": {value}}}}}\n{value}");
        checks::script(line.as_bytes());
    }

    #[test]
    fn random_pairs_do_not_panic(
        lines in prop::collection::vec(
            "( |  |    |      |- ){0,4}(metrics|counters|histograms|labels|decoders|name|help|size|bucket_type|bucket_max|static_map):? ?[a-z0-9&*\\[\\]{},'-]{0,8}",
            0..14,
        ),
        key: Vec<u8>,
    ) {
        checks::pair(&[lines.join("\n").as_bytes(), &[0], &key].concat());
    }

    #[test]
    fn random_streams_do_not_panic(data: Vec<u8>) {
        checks::frames(&data);
    }

    /// Small words resemble counts, lengths and types.
    #[test]
    fn random_bodies_do_not_panic(
        ty in 0x7000u32..0x7019,
        words in prop::collection::vec(prop_oneof![0u32..6, 0u32..64, any::<u32>()], 0..40),
        tail in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let words = [0, ty, 0].into_iter().chain(words);
        let pdu: Vec<u8> = words.flat_map(u32::to_be_bytes).chain(tail).collect();
        checks::requests(&pdu);
    }
}
