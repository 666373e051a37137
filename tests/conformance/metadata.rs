//! Descriptors, instances and help (16 to 19, 41 to 47).

use crate::{
    descs,
    reference::{
        pmcd::{self, decode, word, Pmcd},
        pmid, Reference, DOMAIN, EMPTY, LAST, THREE,
    },
};
use corebcc::{
    pcp::{Indom, InstId, IN_NULL},
    pdu::{Pdu, PduType},
};

const INST: i32 = -12360;
const INDOM: i32 = -12359;

#[test]
fn c16_known_pmid_is_described_exactly() {
    let mut pmcd = Pmcd::connected();
    for desc in descs() {
        let reply = pmcd.ask(&pmcd::desc(desc.pmid));
        assert_eq!([0, 4].map(|at| word(&reply, at)), [32, 0x7005]);
        let told = [12, 16, 20, 24, 28].map(|at| word(&reply, at));
        assert_eq!(told, [desc.pmid.0, desc.ty.0 as u32, desc.indom.0, desc.sem.0 as u32, desc.units.0]);
    }
}

#[test]
fn c17_unknown_item_and_cluster_are_pmid_errors() {
    let mut pmcd = Pmcd::connected();
    for unknown in [pmid(0, 12), pmid(9, 0), pmid(4095, 1023)] {
        assert_eq!(pmcd.error(&pmcd::desc(unknown)), -12358);
    }
}

#[test]
fn c18_the_low_byte_of_units_is_zero() {
    let mut pmcd = Pmcd::connected();
    for desc in descs() {
        assert_eq!(pmcd.ask(&pmcd::desc(desc.pmid))[31], 0, "{}", desc.pmid);
    }
}

#[test]
fn c19_all_identifiers_carry_the_domain() {
    let mut pmcd = Pmcd::connected();
    for (_, name) in pmcd::names(&pmcd.ask(&pmcd::traverse("capt"))) {
        let pmid = word(&pmcd.ask(&pmcd::lookup(&name)), 20);
        let desc = pmcd.ask(&pmcd::desc(corebcc::pcp::Pmid(pmid)));
        let indom = Indom(word(&desc, 20));
        assert_eq!(pmid >> 22, DOMAIN);
        assert!(indom == Indom::NULL || indom.domain() == DOMAIN, "{name}: {indom}");
    }
}

/// Returns the instances in an INSTANCE.
fn entries(reply: &[u8]) -> Vec<(InstId, String)> {
    let Pdu::Instance { entries, .. } = decode(reply) else { panic!("no INSTANCE: {}", reply.escape_ascii()) };
    entries.iter().map(|(id, name)| (*id, String::from_utf8(name.to_vec()).unwrap())).collect()
}

#[test]
fn c41_a_whole_domain_is_listed_regardless_of_the_profile() {
    let mut pmcd = Pmcd::connected();
    pmcd.tell(&pmcd::profile(true, &[(THREE, true, &[])]));
    let all = entries(&pmcd.ask(&pmcd::instance(THREE, IN_NULL, "")));
    assert_eq!(all, [(0, "bin-100".to_string()), (5, "sda 8:0".to_string()), (LAST, "last".to_string())]);
}

#[test]
fn c42_an_id_yields_its_name_and_a_name_its_id() {
    let mut pmcd = Pmcd::connected();
    assert_eq!(entries(&pmcd.ask(&pmcd::instance(THREE, 5, ""))), [(IN_NULL, "sda 8:0".to_string())]);
    assert_eq!(entries(&pmcd.ask(&pmcd::instance(THREE, 0, ""))), [(IN_NULL, "bin-100".to_string())]);
    assert_eq!(entries(&pmcd.ask(&pmcd::instance(THREE, IN_NULL, "last"))), [(LAST, String::new())]);
    assert_eq!(pmcd.error(&pmcd::instance(THREE, 5, "sda")), INST, "both make no sense");
}

#[test]
fn c43_the_first_word_matches_and_another_second_word_does_not() {
    let mut pmcd = Pmcd::connected();
    assert_eq!(entries(&pmcd.ask(&pmcd::instance(THREE, IN_NULL, "sda"))), [(5, String::new())]);
    assert_eq!(entries(&pmcd.ask(&pmcd::instance(THREE, IN_NULL, "sda 8:0"))), [(5, String::new())]);
    for other in ["sda 8:1", "sda ", "sd", "8:0", "sdab", "bin"] {
        assert_eq!(pmcd.error(&pmcd::instance(THREE, IN_NULL, other)), INST, "{other}");
    }
}

#[test]
fn c44_unknown_instances_and_domains_are_told_apart() {
    let mut pmcd = Pmcd::connected();
    let unknown = Indom::new(DOMAIN, 9);
    assert_eq!(pmcd.error(&pmcd::instance(THREE, 6, "")), INST);
    assert_eq!(pmcd.error(&pmcd::instance(THREE, 0x8000_0000, "")), INST);
    assert_eq!(pmcd.error(&pmcd::instance(THREE, IN_NULL, "sdb")), INST);
    for (inst, name) in [(IN_NULL, ""), (0, ""), (IN_NULL, "x"), (5, "x")] {
        assert_eq!(pmcd.error(&pmcd::instance(unknown, inst, name)), INDOM);
    }
    assert_eq!(pmcd.error(&pmcd::instance(EMPTY, 0, "")), INST);
    assert_eq!(pmcd.ask(&pmcd::instance(EMPTY, IN_NULL, "")).len(), 20);
}

#[test]
fn c45_instance_names_are_padded_and_nothing_follows() {
    for len in 1..=9 {
        let reference = Reference { more_instances: vec![(7, vec![b'n'; len])], ..Reference::default() };
        let mut pmcd = Pmcd::with(reference, Default::default());
        assert_eq!(pmcd.ask(&pmcd::instance(THREE, 7, "")).len(), 20 + 8 + len.next_multiple_of(4));
        assert_eq!(pmcd.ask(&pmcd::instance(THREE, IN_NULL, "")).len(), 64 + 8 + len.next_multiple_of(4));
    }
}

#[test]
fn c46_help_is_sent_as_it_is_without_a_newline_at_its_end() {
    let mut pmcd = Pmcd::connected();
    let i32 = pmid(0, 0).0;
    let expected = [
        (i32, 5, "one liner"),
        (i32, 6, "Full help text.\nSecond line."),
        (pmid(0, 2).0, 5, ""),
        (pmid(0, 2).0, 6, ""),
        (THREE.0, 9, "three things"),
        (THREE.0, 10, "Three things, at length."),
    ];
    for (ident, kind, text) in expected {
        let reply = pmcd.ask(&pmcd::text(ident, kind));
        let mut whole = pmcd::words_and_string(PduType::TEXT, &[ident], text.as_bytes());
        assert_eq!(reply.len(), whole.len());
        let pad = whole.len() - text.len().next_multiple_of(4) + text.len();
        whole[pad..].copy_from_slice(&reply[pad..]);
        assert_eq!(reply, whole);
        assert!(!text.ends_with('\n'));
    }
}

#[test]
fn c47_no_text_is_a_text_error() {
    let mut pmcd = Pmcd::connected();
    for (ident, kind) in [(pmid(9, 9).0, 5), (pmid(0, 3).0, 6), (EMPTY.0, 9), (Indom::new(DOMAIN, 9).0, 10)] {
        assert_eq!(pmcd.error(&pmcd::text(ident, kind)), -12349);
    }
    assert_eq!(pmcd.error(&pmcd::text(pmid(0, 1).0, 6)), -12349, "one-line text only");
    for kind in [0, 1, 2, 4, 8, 3, 7, 13, 15, 16, 0xffff_ffff] {
        assert_eq!(pmcd.error(&pmcd::text(pmid(0, 0).0, kind)), -12349, "kind {kind}");
    }
}
