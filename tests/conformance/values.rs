//! Fetches and their results (20 to 33).

use crate::{
    descs,
    reference::{
        pmcd::{self, word, Pmcd, Wire},
        pmid, Reference, LAST, THREE,
    },
    served::{each, Facts},
};
use corebcc::{
    agent::Options,
    pcp::{Indom, Pmid, Type, IN_NULL},
};

fn block(set: &pmcd::Set) -> (u8, &[u8]) {
    match &set.values[0].1 {
        Wire::Block { ty, bytes, .. } => (*ty, bytes),
        Wire::Word(word) => panic!("{}: in-situ {word:#x}", set.pmid),
    }
}

#[test]
fn c20_every_metric_asked_for_has_its_set_in_order() {
    each(|served| {
        let all: Vec<Pmid> = served.descs().iter().map(|desc| desc.pmid).rev().collect();
        for n in [1, 2, 1000] {
            served.fetch(&all.iter().copied().cycle().take(n).collect::<Vec<_>>());
            // compares
        }
    });
    let mut pmcd = Pmcd::connected();
    let asked = [pmid(1, 0), pmid(0, 1), pmid(0, 0)];
    pmcd.ask(&pmcd::fetch(&asked));
    assert_eq!(pmcd.agent.source().refreshed, asked, "one refresh for the whole fetch");
    assert_eq!(pmcd.agent.source().reads.get(), 3);
}

#[test]
fn c21_a_metric_asked_for_twice_has_two_sets_and_two_blocks() {
    let mut pmcd = Pmcd::connected();
    let sets = pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(0, 3), pmid(0, 3)])));
    assert_eq!(block(&sets[0]), block(&sets[1]));
    let place = |set: &pmcd::Set| match set.values[0].1 {
        Wire::Block { at, .. } => at,
        Wire::Word(_) => 0,
    };
    assert_ne!(place(&sets[0]), place(&sets[1]));
}

#[test]
fn c22_an_unknown_metric_has_an_8_byte_set_and_harms_no_other() {
    each(|served| {
        let Facts { single, unknown, .. } = served.facts();
        let sets = served.fetch(&[unknown[1], single, unknown[0], single]);
        assert_eq!(sets.iter().map(|set| set.numval).collect::<Vec<_>>(), [-12358, 1, -12358, 1]);
        assert_eq!(sets[1].at - sets[0].at, 8);
        assert_eq!(sets[3].at - sets[2].at, 8);
        assert_eq!(sets[1].insts(), sets[3].insts());
    });
}

#[test]
fn c23_the_time_stamp_is_zero() {
    each(|served| {
        let fetch = pmcd::fetch(&[served.facts().single]);
        for _ in 0..3 {
            let reply = served.ask(&fetch);
            assert_eq!((word(&reply, 12), word(&reply, 16)), (0, 0));
        }
    });
}

#[test]
fn c24_a_single_value_has_the_null_instance() {
    each(|served| {
        let mut seen = 0;
        for desc in served.descs() {
            let set = served.fetch(&[desc.pmid]).remove(0);
            match desc.indom {
                Indom::NULL if set.numval > 0 => {
                    assert_eq!(set.insts(), [IN_NULL], "{}", desc.pmid);
                    seen += 1;
                }
                _ => assert!(set.insts().iter().all(|inst| *inst <= LAST), "{}", desc.pmid),
            }
        }
        assert!(seen > 10, "{seen}");
    });
}

#[test]
fn c25_only_32_bit_values_stand_in_the_set() {
    each(|served| {
        let mut seen = 0;
        for desc in served.descs() {
            let set = served.fetch(&[desc.pmid]).remove(0);
            let Some(format) = set.format else { continue };
            let expected = match desc.ty {
                Type::I32 | Type::U32 => 0,
                Type::EVENT | Type::HIGHRES_EVENT => 2,
                _ => 1,
            };
            assert_eq!(format, expected, "{}", desc.pmid);
            if format > 0 {
                assert_eq!(i32::from(block(&set).0), desc.ty.0, "{}", desc.pmid);
            }
            seen += 1;
        }
        assert!(seen > 15, "{seen}");
    });
}

#[test]
fn c26_a_strings_length_counts_its_nul_and_no_padding() {
    for len in 0..=5 {
        let reference = Reference { string: b"abcde"[..len].to_vec(), ..Reference::default() };
        let mut pmcd = Pmcd::with(reference, Options::default());
        let reply = pmcd.ask(&pmcd::fetch(&[pmid(3, 1)]));
        let sets = pmcd::result(&reply);
        assert_eq!(block(&sets[0]), (6, &b"abcde\0\0\0"[..len].iter().copied().chain([0]).collect::<Vec<_>>()[..]));
        assert_eq!(word(&reply, 44), 6 << 24 | (4 + len as u32 + 1), "type and length word");
        assert_eq!(reply.len(), 48 + (len + 1).next_multiple_of(4));
    }
}

#[test]
fn c27_wide_values_have_the_high_word_first() {
    let reference = Reference { u64: (1 << 63) + 1, double: -2.5, ..Reference::default() };
    let mut pmcd = Pmcd::with(reference, Options::default());
    let reply = pmcd.ask(&pmcd::fetch(&[pmid(3, 2), pmid(0, 2), pmid(0, 5), pmid(3, 3), pmid(0, 4)]));
    let sets = pmcd::result(&reply);
    assert_eq!(block(&sets[0]), (3, &[0x80, 0, 0, 0, 0, 0, 0, 1][..]));
    assert_eq!(block(&sets[1]), (2, &[255, 255, 255, 255, 255, 255, 255, 254][..]));
    assert_eq!(block(&sets[2]), (5, &[0x40, 9, 0x21, 0xfb, 0x54, 0x44, 0x2d, 0x18][..]));
    assert_eq!(block(&sets[3]), (5, &[0xc0, 4, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(block(&sets[4]), (4, &[0x3f, 0xc0, 0, 0][..]));
}

#[test]
fn c28_blocks_follow_the_sets_without_gaps_up_to_the_end() {
    let mut pmcd = Pmcd::connected();
    let all: Vec<Pmid> = descs().iter().map(|desc| desc.pmid).chain([pmid(9, 9)]).collect();
    for n in 1..all.len() {
        // `result` checks the places.
        assert_eq!(pmcd::result(&pmcd.ask(&pmcd::fetch(&all[n..]))).len(), all.len() - n);
        assert_eq!(pmcd::result(&pmcd.ask(&pmcd::fetch(&all[..n]))).len(), n);
    }
}

#[test]
fn c29_equal_strings_have_their_own_blocks() {
    let reference = Reference { more_instances: vec![(7, b"seven".to_vec())], ..Reference::default() };
    let mut pmcd = Pmcd::with(reference, Options::default());
    let sets = pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(1, 1)])));
    let places: Vec<usize> = sets[0]
        .values
        .iter()
        .map(|(_, value)| match value {
            Wire::Block { at, .. } => *at,
            Wire::Word(_) => 0,
        })
        .collect();
    assert_eq!(sets[0].insts(), [0, 5, LAST, 7]);
    assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
    assert!(
        matches!(&sets[0].values[2..], [(_, Wire::Block { bytes: a, .. }), (_, Wire::Block { bytes: b, .. })] if a == b)
    );
}

#[test]
fn c30_an_empty_domain_has_no_values_and_no_format() {
    each(|served| {
        let reply = served.ask(&pmcd::fetch(&[served.facts().empty.0]));
        assert_eq!((word(&reply, 28), reply.len()), (0, 32));
    });
}

#[test]
fn c31_an_instance_without_value_is_left_out() {
    let mut pmcd = Pmcd::connected();
    let sets = pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(1, 2), pmid(1, 3)])));
    assert_eq!(sets[0].values, [(0, Wire::Word(0)), (LAST, Wire::Word(LAST))]);
    assert_eq!((sets[1].numval, sets[1].format), (0, None));
    pmcd.tell(&pmcd::profile(false, &[(THREE, true, &[5])]));
    let sets = pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(1, 2)])));
    assert_eq!((sets[0].numval, sets[0].format), (-12351, None), "the only one fails");
}

#[test]
fn c32_without_a_profile_all_instances_are_returned() {
    each(|served| {
        let facts = served.facts();
        assert_eq!(served.fetch(&[facts.many])[0].insts(), facts.ids());
    });
}

#[test]
fn c33_a_fetch_of_16_000_metrics_is_answered() {
    each(|served| {
        let all = served.descs().into_iter().map(|desc| desc.pmid).chain(served.facts().unknown);
        let asked: Vec<Pmid> = all.collect::<Vec<_>>().into_iter().cycle().take(16_000).collect();
        served.fetch(&asked); // compares
    });
}
