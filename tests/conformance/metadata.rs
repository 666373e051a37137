//! Descriptors, instances and help (16 to 19, 41 to 47).

use crate::{
    reference::{
        pmcd::{self, decode, word, Pmcd},
        pmid, Reference, DOMAIN, EMPTY, THREE,
    },
    served::{each, Facts},
};
use corebcc::{
    pcp::{Indom, InstId, Pmid, IN_NULL},
    pdu::{Pdu, PduType},
};

const INST: i32 = -12360;
const INDOM: i32 = -12359;

#[test]
fn c16_known_pmid_is_described_exactly() {
    each(|served| {
        for desc in served.descs() {
            let reply = served.ask(&pmcd::desc(desc.pmid));
            assert_eq!([0, 4].map(|at| word(&reply, at)), [32, 0x7005]);
            let told = [12, 16, 20, 24, 28].map(|at| word(&reply, at));
            assert_eq!(told, [desc.pmid.0, desc.ty.0 as u32, desc.indom.0, desc.sem.0 as u32, desc.units.0]);
        }
    });
}

#[test]
fn c17_unknown_item_and_cluster_are_pmid_errors() {
    each(|served| {
        let Facts { unknown, domain, single, .. } = served.facts();
        for pmid in unknown.into_iter().chain([Pmid::new(domain + 1, single.cluster(), single.item())]) {
            assert_eq!(served.error(&pmcd::desc(pmid)), -12358, "{pmid}");
            assert_eq!(served.fetch(&[pmid])[0].numval, -12358, "{pmid}");
        }
    });
}

#[test]
fn c18_the_low_byte_of_units_is_zero() {
    each(|served| {
        for desc in served.descs() {
            assert_eq!(served.ask(&pmcd::desc(desc.pmid))[31], 0, "{}", desc.pmid);
        }
    });
}

#[test]
fn c19_all_identifiers_carry_the_domain() {
    each(|served| {
        let Facts { root, domain, .. } = served.facts();
        for (_, name) in pmcd::names(&served.ask(&pmcd::traverse(root))) {
            let pmid = word(&served.ask(&pmcd::lookup(&name)), 20);
            let indom = Indom(word(&served.ask(&pmcd::desc(Pmid(pmid))), 20));
            assert_eq!(pmid >> 22, domain);
            assert!(indom == Indom::NULL || indom.domain() == domain, "{name}: {indom}");
        }
    });
}

/// Returns the instances in an INSTANCE.
fn entries(reply: &[u8]) -> Vec<(InstId, String)> {
    let Pdu::Instance { entries, .. } = decode(reply) else { panic!("no INSTANCE: {}", reply.escape_ascii()) };
    entries.iter().map(|(id, name)| (*id, String::from_utf8(name.to_vec()).unwrap())).collect()
}

#[test]
fn c41_a_whole_domain_is_listed_regardless_of_the_profile() {
    each(|served| {
        let Facts { indom, instances, .. } = served.facts();
        served.tell(&pmcd::profile(true, &[(indom, true, &[])]));
        let all = entries(&served.ask(&pmcd::instance(indom, IN_NULL, "")));
        assert!(all.iter().map(|(id, name)| (*id, &**name)).eq(instances.iter().copied()), "{all:?}");
    });
}

#[test]
fn c42_an_id_yields_its_name_and_a_name_its_id() {
    each(|served| {
        let Facts { indom, instances, .. } = served.facts();
        for (id, name) in instances {
            assert_eq!(entries(&served.ask(&pmcd::instance(indom, *id, ""))), [(IN_NULL, (*name).into())]);
            assert_eq!(entries(&served.ask(&pmcd::instance(indom, IN_NULL, name))), [(*id, String::new())]);
            assert_eq!(served.error(&pmcd::instance(indom, *id, name)), INST, "both make no sense");
        }
    });
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
    each(|served| {
        let Facts { domain, indom, missing, empty, unknown_indom, .. } = served.facts();
        for (inst, name) in [(missing, ""), (0x8000_0000, ""), (IN_NULL, "nobody")] {
            assert_eq!(served.error(&pmcd::instance(indom, inst, name)), INST, "{inst} {name}");
        }
        for unknown in [unknown_indom, Indom::new(domain + 1, 0)] {
            for (inst, name) in [(IN_NULL, ""), (0, ""), (IN_NULL, "x"), (5, "x")] {
                assert_eq!(served.error(&pmcd::instance(unknown, inst, name)), INDOM, "{unknown}");
            }
        }
        assert_eq!(served.error(&pmcd::instance(empty.1, 0, "")), INST);
        assert_eq!(served.ask(&pmcd::instance(empty.1, IN_NULL, "")).len(), 20);
    });
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
