//! Stores, notifications, readiness, clients, and codes that are never sent (60 to 64, 66).

use crate::reference::{
    pmcd::{self, decode, frame, names, split, word, Pmcd},
    pmid, Reference, THREE,
};
use crate::served::{each, Facts};
use corebcc::{
    agent::Options,
    agent::{Changes, Client, Label, Selected, Source, Subject},
    pcp::{Atom, Desc, Indom, InstId, PmErr, Pmid, IN_NULL},
    pdu::{Pdu, PduType},
};
use std::borrow::Cow;

const PERMISSION: i32 = -12387;

#[test]
fn c60_a_read_only_metric_cannot_be_stored() {
    each(|served| {
        let Facts { single, refused_store, .. } = served.facts();
        for stamp in [[0u8; 8], [0xff; 8], *b"\0\0\0\x08\0\0\0\0"] {
            let mut request = refused_store.clone();
            request[12..20].copy_from_slice(&stamp);
            assert_eq!(served.error(&request), PERMISSION);
        }
        assert_eq!(word(&served.ask(&pmcd::fetch(&[single])), 12), 0, "the stamp does not come back");
    });
}

#[test]
fn c61_an_accepted_store_is_seen_by_the_next_fetch() {
    let mut pmcd = Pmcd::connected();
    assert_eq!(pmcd.error(&pmcd::store(pmid(3, 0), IN_NULL, 42)), 0);
    assert_eq!(pmcd.error(&pmcd::store_block(pmid(3, 1), IN_NULL, 6, b"hello\0")), 0);
    assert_eq!(pmcd.error(&pmcd::store_block(pmid(3, 2), IN_NULL, 3, &[0x80, 0, 0, 0, 0, 0, 0, 1])), 0);
    assert_eq!(pmcd.error(&pmcd::store_block(pmid(3, 3), IN_NULL, 5, &(-2.5f64).to_be_bytes())), 0);
    let source = pmcd.agent.source();
    assert_eq!((source.wr, &source.string[..], source.u64, source.double), (42, &b"hello"[..], (1 << 63) + 1, -2.5));
    let sets = pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(3, 0)])));
    assert_eq!(sets[0].values, [(IN_NULL, pmcd::Wire::Word(42))]);
}

#[test]
fn c61_a_store_with_one_bad_set_changes_nothing() {
    let mut pmcd = Pmcd::connected();
    let two = |second: [u32; 5]| {
        let first = [0, 0, 2, pmid(3, 0).0, 1, 0, IN_NULL, 99];
        pmcd::words(PduType::RESULT, &[&first[..], &second].concat())
    };
    assert_eq!(pmcd.error(&two([pmid(9, 9).0, 1, 0, IN_NULL, 1])), -12358);
    assert_eq!(pmcd.error(&two([pmid(3, 0).0, 1, 0, 5, 1])), -12360, "no instances here");
    assert_eq!(pmcd.error(&two([pmid(1, 2).0, 1, 0, 6, 1])), -12360, "no such instance");
    assert_eq!(pmcd.error(&two([pmid(3, 2).0, 1, 0, IN_NULL, 1])), -12362, "a word for 64 bits");
    let none = [0, 0, 2, pmid(3, 0).0, 1, 0, IN_NULL, 99, pmid(3, 0).0, 0];
    assert_eq!(pmcd.error(&pmcd::words(PduType::RESULT, &none)), -12351, "no value");
    assert_eq!(pmcd.agent.source().wr, 7);
    assert_eq!(pmcd.error(&pmcd::store_block(pmid(3, 0), IN_NULL, 6, b"1\0")), -12362, "a string for a number");
    assert_eq!(pmcd.error(&pmcd::store_block(pmid(3, 1), IN_NULL, 7, b"1\0")), -12362, "bytes for a string");
    assert!(pmcd.error(&pmcd::words(PduType::RESULT, &[0, 0, 0])) < 0, "nothing at all");
}

#[test]
fn c62_exactly_one_result_carries_each_change() {
    let mut pmcd = Pmcd::connected();
    let stamp = |pmcd: &mut Pmcd| word(&pmcd.ask(&pmcd::fetch(&[pmid(0, 0)])), 12);
    for (stored, bits) in [(1001, 0x08), (1002, 0x10), (1003, 0x18)] {
        assert_eq!(pmcd.error(&pmcd::store(pmid(3, 0), IN_NULL, stored)), 0);
        // Other requests in between neither carry nor lose it.
        pmcd.ask(&pmcd::desc(pmid(0, 0)));
        pmcd.ask(&pmcd::pdu(PduType::FETCH, b"malformed"));
        assert_eq!(stamp(&mut pmcd), bits);
        assert_eq!(stamp(&mut pmcd), 0);
    }
    pmcd.agent.source_mut().changes = Changes::LABELS;
    pmcd.ask(&pmcd::desc(pmid(0, 0)));
    pmcd.agent.source_mut().changes = Changes::NAMES;
    assert_eq!(stamp(&mut pmcd), 0x18, "changes add up");
}

#[test]
fn c62_new_names_are_found_at_once() {
    let mut pmcd = Pmcd::connected();
    assert_eq!(pmcd.error(&pmcd::lookup("capt.new")), -12357);
    pmcd.agent.source_mut().more_names.push("capt.new".into());
    assert_eq!(pmcd.error(&pmcd::lookup("capt.new")), -12357, "not announced yet");
    pmcd.agent.source_mut().changes = Changes::NAMES;
    assert_eq!(word(&pmcd.ask(&pmcd::lookup("capt.new")), 20), pmid(0, 0).0);
    assert_eq!(names(&pmcd.ask(&pmcd::names_of(pmid(0, 0)))).len(), 3);
    assert_eq!(word(&pmcd.ask(&pmcd::fetch(&[pmid(0, 0)])), 12), 0x10);
}

/// Returns the bytes that a call of `ready` sends.
fn ready(pmcd: &mut Pmcd) -> Vec<u8> {
    let mut out = Vec::new();
    pmcd.agent.ready(&mut out);
    out
}

#[test]
fn c63_ready_is_sent_once_if_configured_and_never_otherwise() {
    let notready = Options { attributes: false, notready: true };
    let announcement = pmcd::error(-13393);

    let mut pmcd = Pmcd::with(Reference::default(), notready);
    assert_eq!(ready(&mut pmcd), announcement);
    assert_eq!(ready(&mut pmcd), b"");
    pmcd.ask(&pmcd::desc(pmid(0, 0)));
    assert_eq!(ready(&mut pmcd), b"");

    let mut early = Pmcd::silent(Reference::default(), notready);
    assert_eq!(ready(&mut early), b"");
    assert_eq!(early.send(&pmcd::creds(0)), announcement, "as soon as pmcd has introduced itself");
    assert_eq!(early.send(&pmcd::creds(0)), b"");
    assert_eq!(ready(&mut early), b"");

    let mut without = Pmcd::silent(Reference::default(), Options::default());
    assert_eq!(ready(&mut without), b"");
    assert_eq!(without.send(&pmcd::creds(0)), b"");
    assert_eq!(ready(&mut without), b"");
}

#[test]
fn c63_ready_is_not_sent_to_a_pmcd_that_does_not_wait_for_it() {
    let mut pmcd = Pmcd::with(Reference::default(), Options { attributes: false, notready: true });
    pmcd.tell(&pmcd::attr(14, b"1\0"));
    pmcd.ask(&pmcd::desc(pmid(0, 0)));
    assert_eq!(ready(&mut pmcd), b"");
}

#[test]
fn c64_attributes_belong_to_a_client_slot_until_notconn() {
    let mut pmcd = Pmcd::connected();
    pmcd.slot = 1;
    pmcd.tell(&pmcd::attr(15, b"web1\0"));
    pmcd.slot = 2;
    pmcd.tell(&pmcd::attr(15, b"web2"));
    pmcd.tell(&pmcd::attr(11, b"0\0"));
    let of = |pmcd: &Pmcd, slot| pmcd.agent.source().attributes.iter().filter(|(client, ..)| *client == slot).count();
    assert_eq!((of(&pmcd, 1), of(&pmcd, 2)), (1, 2));
    assert_eq!(pmcd.agent.source().attributes[1], (2, 15, b"web2".to_vec()));
    pmcd.tell(&pmcd::error(-12345));
    assert_eq!(of(&pmcd, 2), 2, "only NOTCONN ends a client");
    pmcd.tell(&pmcd::error(-12391));
    assert_eq!((of(&pmcd, 1), of(&pmcd, 2)), (1, 0));
}

/// A source that fails every request with one code.
struct Failing(PmErr);

impl Source for Failing {
    fn domain(&self) -> u32 {
        400
    }
    fn names(&self) -> Vec<(String, Pmid)> {
        vec![]
    }
    fn desc(&self, pmid: Pmid) -> Result<Desc, PmErr> {
        if pmid == self::pmid(1, 0) {
            return Reference::default().desc(pmid);
        }
        Err(self.0)
    }
    fn refresh(&mut self, _pmids: &mut dyn Iterator<Item = Pmid>) {}
    fn values(&self, _: Client, _: Pmid, _: Selected<'_>, _: &mut dyn FnMut(InstId, Atom<'_>)) -> Result<(), PmErr> {
        Err(self.0)
    }
    fn instances(&mut self, indom: Indom, out: &mut dyn FnMut(InstId, &[u8])) -> Result<(), PmErr> {
        if indom == THREE {
            out(5, b"sda");
            return Ok(());
        }
        Err(self.0)
    }
    fn text(&self, _of: Subject, _full: bool) -> Result<Cow<'_, str>, PmErr> {
        Err(self.0)
    }
    fn labels(&mut self, _of: Subject) -> Result<Vec<Label>, PmErr> {
        Err(self.0)
    }
    fn instance_labels(&mut self, _: Indom, _: Selected<'_>, _: &mut dyn FnMut(InstId, Vec<Label>)) {}
    fn store(&mut self, _: Client, _: Pmid, _: InstId, _: &Atom<'_>) -> Result<(), PmErr> {
        Err(self.0)
    }
}

#[test]
fn c66_codes_that_cost_the_connection_are_never_sent() {
    const GENERIC: i32 = -12345;
    for code in [-12366, -12353, -32, 0, 1, i32::MAX] {
        let mut pmcd = Pmcd::with(Failing(PmErr(code)), Options::default());
        for request in [
            pmcd::desc(pmid(0, 0)),
            pmcd::instance(Indom::new(400, 1), IN_NULL, ""),
            pmcd::text(pmid(0, 0).0, 5),
            pmcd::label(400, 2),
            pmcd::label(pmid(0, 0).0, 16),
            pmcd::store(pmid(0, 0), IN_NULL, 1),
            pmcd::store_block(pmid(1, 0), 5, 3, &[0; 8]),
        ] {
            assert_eq!(pmcd.error(&request), GENERIC, "{} with {code}", frame(&request).ty);
        }
        let sets = pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(0, 0), pmid(1, 0)])));
        assert_eq!(sets.iter().map(|set| set.numval).collect::<Vec<_>>(), [GENERIC, GENERIC]);
    }
}

#[test]
fn c66_a_malformed_request_is_answered_by_a_generic_error() {
    each(|served| {
        let Facts { domain, root, inner, single, indom, instances, store, .. } = served.facts();
        let requests = [
            pmcd::fetch(&[single]),
            store,
            pmcd::desc(single),
            pmcd::instance(indom, IN_NULL, instances[0].1),
            pmcd::text(single.0, 5),
            pmcd::label(domain, 2),
            pmcd::names_of(single),
            pmcd::lookup(inner),
            pmcd::children(root, true),
            pmcd::traverse(root),
        ];
        for request in requests {
            let ty = frame(&request).ty;
            for cut in 0..request.len() - 12 {
                let out = served.send(&pmcd::pdu(ty, &request[12..12 + cut]));
                assert_eq!(split(&out).len(), 1);
                assert!(
                    matches!(decode(&out), Pdu::Error { code: -12345 }),
                    "{ty} cut to {cut}: {}",
                    out.escape_ascii()
                );
            }
        }
    });
}
