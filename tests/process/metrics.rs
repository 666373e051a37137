//! The agent's own metrics over the wire (statements 16 to 20, 33, 46 to 48, 55, 66).

use crate::peer::Peer;
use crate::reference::pmcd::{self as wire, decode, frame, names, word, Set};
use crate::support::{
    lacks_bpf,
    rows::{all, own, rows, BUCKETS_OF_SERIES, DOMAIN, HISTOGRAMS, INDOMS},
    Home, ALL,
};
use corebcc::pcp::{Indom, Pmid, IN_NULL};
use corebcc::pdu::{LabelClass, Pdu, PduType};

fn served() -> (Home, Peer) {
    let home = Home::new(ALL);
    let peer = Peer::ready(&home, &[]);
    (home, peer)
}

#[test]
fn c16_every_metric_is_described_by_its_definition() {
    let (_home, mut peer) = served();
    for row in all() {
        let reply = peer.ask(&wire::desc(row.pmid()));
        assert_eq!(reply.len(), 32, "{}", row.name);
        assert_eq!(decode(&reply), Pdu::Desc(row.desc()), "{}", row.name);
    }
}

#[test]
fn c17_unknown_items_clusters_and_domains_are_unknown_metrics() {
    let (_home, mut peer) = served();
    for pmid in [Pmid::new(DOMAIN, 0, 1), Pmid::new(DOMAIN, 1, 0), Pmid::new(DOMAIN, 4095, 1023), Pmid::new(150, 0, 0)]
    {
        assert_eq!(peer.error(&wire::desc(pmid)), -12358, "{pmid}");
        assert_eq!(fetch(&mut peer, &[pmid])[0].numval, -12358, "{pmid}");
    }
}

#[test]
fn c18_the_low_byte_of_all_units_is_0() {
    let (_home, mut peer) = served();
    for row in all() {
        assert_eq!(word(&peer.ask(&wire::desc(row.pmid())), 28) & 0xff, 0, "{}", row.name);
    }
}

#[test]
fn c19_every_identifier_carries_the_domain_of_the_command_line() {
    let home = Home::new(ALL);
    let mut peer = Peer::ready(&home, &["-d", "421"]);
    let listed = names(&peer.ask(&wire::traverse("bcc")));
    assert_eq!(listed.len(), all().count());
    for (_, name) in listed {
        let Pdu::PmnsIds { ids, .. } = decode(&peer.ask(&wire::lookup(&name))) else { panic!("{name}") };
        assert_eq!(ids[0].domain(), 421, "{name}");
        let Pdu::Desc(desc) = decode(&peer.ask(&wire::desc(ids[0]))) else { panic!("{name}") };
        assert_eq!(
            (desc.pmid.domain(), desc.indom == Indom::NULL || desc.indom.domain() == 421),
            (421, true),
            "{name}"
        );
        assert_eq!(peer.error(&wire::desc(Pmid::new(DOMAIN, desc.pmid.cluster(), desc.pmid.item()))), -12358);
    }
}

#[track_caller]
fn fetch(peer: &mut Peer, pmids: &[Pmid]) -> Vec<Set> {
    let sets = wire::result(&peer.ask(&wire::fetch(pmids)));
    assert!(sets.iter().map(|set| set.pmid).eq(pmids.iter().copied()), "the metrics asked for, in order");
    sets
}

/// Returns a mixture of all metrics and of unknown ones, in an order of its own.
fn mixture(count: usize) -> Vec<Pmid> {
    let known: Vec<Pmid> = all().map(|row| row.pmid()).chain([Pmid::new(DOMAIN, 99, 9)]).collect();
    (0..count).map(|i| known[i * 7 % known.len()]).collect()
}

#[test]
fn c20_up_to_a_thousand_metrics_come_in_the_order_asked_for() {
    if lacks_bpf() {
        return;
    }
    let (_home, mut peer) = served();
    for count in [1, 2, 1000] {
        let pmids = mixture(count);
        for set in fetch(&mut peer, &pmids) {
            match set.pmid.cluster() {
                99 => assert_eq!(set.numval, -12358),
                2 => assert_eq!((set.numval, set.insts()), (1, vec![IN_NULL])),
                _ => assert!(set.numval >= 0, "{}: {}", set.pmid, set.numval),
            }
        }
    }
}

#[test]
fn c33_16_000_metrics_in_one_fetch_are_answered() {
    let (_home, mut peer) = served();
    let pmids = mixture(16_000);
    assert_eq!(fetch(&mut peer, &pmids).len(), 16_000);
    peer.unanswered();
}

#[test]
fn c46_every_metric_and_domain_has_both_texts_and_no_newline() {
    let (_home, mut peer) = served();
    let metrics = all().map(|row| (row.pmid().0, 4));
    let indoms = INDOMS.iter().map(|&serial| (Indom::new(DOMAIN, serial).0, 8));
    for (ident, kind) in metrics.chain(indoms) {
        for which in [1, 2] {
            let reply = peer.ask(&wire::text(ident, kind | which));
            let Pdu::Text { ident: echo, text } = decode(&reply) else { panic!("{ident:#x}: {}", frame(&reply).ty) };
            assert_eq!(echo, ident);
            assert!(!text.is_empty() && !text.ends_with(b"\n"), "{ident:#x}: {}", text.escape_ascii());
            assert!(which == 2 || !text.contains(&b'\n'), "{ident:#x}: one line");
        }
    }
}

#[test]
fn c47_what_there_is_not_has_no_text() {
    let (_home, mut peer) = served();
    for (ident, kind) in [(Pmid::new(DOMAIN, 1, 1).0, 4), (Indom::new(DOMAIN, 2).0, 8), (Indom::NULL.0, 8)] {
        assert_eq!(peer.error(&wire::text(ident, kind | 1)), -12349, "{ident:#x}");
        assert_eq!(peer.error(&wire::text(ident, kind | 2)), -12349, "{ident:#x}");
    }
}

#[test]
fn c48_every_name_resolves_to_a_described_metric_and_back() {
    let (_home, mut peer) = served();
    let listed: Vec<String> = names(&peer.ask(&wire::traverse("bcc"))).into_iter().map(|(_, name)| name).collect();
    let mut wanted: Vec<&str> = all().map(|row| row.name).collect();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
    for row in all() {
        let Pdu::PmnsIds { status: 0, ids } = decode(&peer.ask(&wire::lookup(row.name))) else {
            panic!("{}", row.name)
        };
        assert_eq!(ids, [row.pmid()]);
        assert_eq!(decode(&peer.ask(&wire::desc(ids[0]))), Pdu::Desc(row.desc()));
        assert_eq!(names(&peer.ask(&wire::names_of(ids[0]))), [(None, row.name.to_owned())]);
    }
    // The tree one level at a time ends at the same leaves.
    let mut leaves = Vec::new();
    let mut nodes = vec!["bcc".to_owned()];
    while let Some(node) = nodes.pop() {
        for (status, child) in names(&peer.ask(&wire::children(&node, true))) {
            let list = if status == Some(0) { &mut leaves } else { &mut nodes };
            list.push(format!("{node}.{child}"));
        }
    }
    leaves.sort();
    assert_eq!(leaves, wanted);
}

#[test]
fn c55_labels_name_the_agent_the_module_and_the_histograms() {
    let (_home, mut peer) = served();
    let mut text = |ident: u32, class: LabelClass| {
        let reply = peer.ask(&wire::label(ident, class.0 as u32));
        let Pdu::Label { ident: echo, class: echoed, sets } = decode(&reply) else { panic!("{}", frame(&reply).ty) };
        assert_eq!((echo, echoed), (ident, class));
        sets.iter().map(|set| String::from_utf8_lossy(&set.json).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(text(DOMAIN, LabelClass::DOMAIN), [r#"{"agent":"bcc"}"#]);
    for row in rows() {
        let module = format!(r#"{{"bcc_module":"{}"}}"#, row.module);
        assert_eq!(text(row.pmid().0, LabelClass::CLUSTER), [module]);
        assert!(text(row.pmid().0, LabelClass::ITEM).is_empty());
    }
    for row in own() {
        assert!(text(row.pmid().0, LabelClass::CLUSTER).is_empty(), "{}: no module has it", row.name);
    }
    for serial in INDOMS {
        let indom = Indom::new(DOMAIN, serial).0;
        let labels = text(indom, LabelClass::INDOM);
        let of_instances = text(indom, LabelClass::INSTANCES);
        if HISTOGRAMS.contains(&serial) {
            assert_eq!(labels, [r#"{"statistic":"histogram"}"#]);
            assert!(of_instances.iter().all(|json| json.starts_with(r#"{"lower_bound":"#)), "{of_instances:?}");
        } else if BUCKETS_OF_SERIES.contains(&serial) {
            assert_eq!(labels, [r#"{"bound_unit":"microsec","statistic":"histogram"}"#]);
            assert!(of_instances.iter().all(|json| json.contains(r#""lower_bound":"#)), "{of_instances:?}");
        } else {
            assert!(labels.is_empty(), "{labels:?}");
        }
    }
}

/// Every kind of request is made about all that exists and about unknown things; [`Peer`] checks every reply.
#[test]
fn c66_no_reply_is_one_that_an_agent_must_not_send() {
    let (_home, mut peer) = served();
    let pmids = all().map(|row| row.pmid()).chain([Pmid::new(DOMAIN, 0, 9), Pmid::new(1, 2, 3), Pmid(u32::MAX)]);
    let indoms = (0..50).map(|serial| Indom::new(DOMAIN, serial)).chain([Indom::NULL, Indom(0)]);
    let mut requests = Vec::new();
    for pmid in pmids {
        requests.extend([wire::desc(pmid), wire::fetch(&[pmid]), wire::fetch(&[pmid, pmid]), wire::names_of(pmid)]);
        requests.extend([wire::store(pmid, IN_NULL, 1), wire::store(pmid, 0, 1)]);
        requests.push(wire::store_block(pmid, 0, 3, &[0; 8]));
        requests.extend((0..32).map(|kind| wire::text(pmid.0, kind)));
        requests.extend((0..7).map(|class| wire::label(pmid.0, 1 << class)));
    }
    for indom in indoms {
        requests.extend([0, 1, 5, IN_NULL].map(|inst| wire::instance(indom, inst, "")));
        requests.extend([wire::instance(indom, IN_NULL, "0-1"), wire::instance(indom, 3, "both")]);
        requests.extend((0..32).map(|kind| wire::text(indom.0, kind)));
        requests.extend((0..7).map(|class| wire::label(indom.0, 1 << class)));
    }
    for name in ["", ".", "bcc", "bcc.", "bcc.disk", "bcc.disk.all.latency", "bcc.no", "disk", "\u{e9}"] {
        requests.extend([
            wire::lookup(name),
            wire::children(name, true),
            wire::children(name, false),
            wire::traverse(name),
        ]);
    }
    for ty in 0x7000..0x7018 {
        requests.push(wire::pdu(PduType(ty), b""));
        requests.push(wire::pdu(PduType(ty), b"\xff\xff\xff\xff\xff\xff\xff\xff"));
    }
    for request in requests {
        peer.send(&request);
        let replies = peer.pending();
        assert!(replies.len() < 2, "{} replies to {}", replies.len(), frame(&request).ty);
    }
}
