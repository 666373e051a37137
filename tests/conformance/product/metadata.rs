//! Names, descriptors, texts and labels of all the product's metrics (16 to 19, 46 to 59).

use super::{Product, BCC, COMMANDS, FORKS, LATENCY, PROCESSES, SESSIONS};
use crate::labels::{sets, CLUSTER, DOMAIN_CLASS, INDOM, INSTANCES, ITEM};
use crate::reference::pmcd::{self, names, word};
use corebcc::agent::Source;
use corebcc::collector::STATUS;
use corebcc::modules::find;
use corebcc::pcp::{Indom, Pmid};
use std::collections::BTreeSet;

const MODULES: [&str; 9] =
    ["biolatency", "sysfork", "netproc", "tcplife", "exectop", "syscount", "profile", "tcpretrans", "bioperpid"];
const ONELINE: u32 = 1;
const FULL: u32 = 2;
const OF_METRIC: u32 = 4;
const OF_INDOM: u32 = 8;

/// Returns the declared metrics of modules and agent: `bcc.NAME`, cluster and item, numbered as in the test's
/// configuration.
fn declared() -> BTreeSet<(String, Pmid)> {
    let of_modules = MODULES.iter().flat_map(|name| find(name).unwrap().tables.iter().copied());
    let tables = of_modules.chain(STATUS.iter().map(|status| status.spec));
    let metrics = tables.flat_map(|table| table.metrics.iter().map(|metric| (table.cluster, metric)));
    metrics.map(|(cluster, metric)| (format!("bcc.{}", metric.name), Pmid::new(BCC, cluster, metric.item))).collect()
}

#[test]
fn c16_the_products_metrics_are_described_as_they_are_declared() {
    let mut product = Product::started();
    let descs = product.descs();
    assert_eq!(descs.len(), declared().len());
    for desc in descs {
        let reply = product.pmcd.ask(&pmcd::desc(desc.pmid));
        let units = word(&reply, 28);
        assert_eq!([0, 4, 12, 16].map(|at| word(&reply, at)), [32, 0x7005, desc.pmid.0, desc.ty.0 as u32]);
        assert_eq!([20, 24].map(|at| word(&reply, at)), [desc.indom.0, desc.sem.0 as u32], "{}", desc.pmid);
        assert_eq!(units & 0xff, 0, "{}", desc.pmid);
        assert_eq!(desc.pmid.domain(), BCC);
        assert!(desc.indom == Indom::NULL || desc.indom.domain() == BCC, "{}", desc.pmid);
    }
}

#[test]
fn c17_the_product_knows_no_other_metric() {
    let mut product = Product::started();
    for pmid in [Pmid::new(BCC, 2, 1), Pmid::new(BCC, 299, 0), Pmid::new(BCC, 4095, 1023), Pmid::new(BCC + 1, 2, 0)] {
        assert_eq!(product.pmcd.error(&pmcd::desc(pmid)), -12358, "{pmid}");
        assert_eq!(product.fetch(&[pmid])[0].numval, -12358, "{pmid}");
    }
}

#[test]
fn c46_the_products_metrics_and_domains_have_both_texts() {
    let mut product = Product::started();
    let mut idents: Vec<(u32, u32)> = Vec::new();
    for desc in product.descs() {
        idents.push((desc.pmid.0, OF_METRIC));
        if desc.indom != Indom::NULL {
            idents.push((desc.indom.0, OF_INDOM));
        }
    }
    for (ident, of) in idents {
        let [oneline, full] = [ONELINE, FULL].map(|kind| {
            let reply = product.pmcd.ask(&pmcd::text(ident, kind | of));
            match pmcd::decode(&reply) {
                corebcc::pdu::Pdu::Text { text, .. } => String::from_utf8(text.to_vec()).unwrap(),
                other => panic!("{ident:#x}: {other:?}"),
            }
        });
        assert!(!oneline.is_empty() && !oneline.contains('\n'), "{ident:#x}: {oneline}");
        assert!(!full.is_empty() && !full.ends_with('\n'), "{ident:#x}: {full}");
    }
    for (ident, of) in [(Pmid::new(BCC, 299, 0).0, OF_METRIC), (Indom::new(BCC, 2).0, OF_INDOM)] {
        assert_eq!(product.pmcd.error(&pmcd::text(ident, ONELINE | of)), -12349);
    }
}

#[test]
fn c48_every_name_of_the_product_resolves_and_back() {
    let mut product = Product::started();
    let all = names(&product.pmcd.ask(&pmcd::traverse("bcc")));
    let mut found = BTreeSet::new();
    for (_, name) in all {
        let pmid = Pmid(word(&product.pmcd.ask(&pmcd::lookup(&name)), 20));
        assert_eq!(word(&product.pmcd.ask(&pmcd::desc(pmid)), 12), pmid.0, "{name}");
        assert_eq!(names(&product.pmcd.ask(&pmcd::names_of(pmid))), [(None, name.clone())]);
        found.insert((name, pmid));
    }
    assert_eq!(found, declared());
}

#[test]
fn c50_the_products_names_make_a_tree_that_traverses_alike() {
    let mut product = Product::started();
    let all: BTreeSet<String> = names(&product.pmcd.ask(&pmcd::traverse("bcc"))).into_iter().map(|(_, n)| n).collect();
    let (mut inner, mut leaves) = (vec!["bcc".to_string()], BTreeSet::new());
    while let Some(node) = inner.pop() {
        assert_eq!(product.pmcd.error(&pmcd::lookup(&node)), -12357, "{node} is no leaf");
        let reply = product.pmcd.ask(&pmcd::children(&node, true));
        let children = names(&reply);
        assert_eq!(word(&reply, 12) as usize, children.iter().map(|(_, name)| name.len() + 1).sum::<usize>());
        for (status, child) in children {
            let child = format!("{node}.{child}");
            match status {
                Some(0) => drop(leaves.insert(child)),
                _ => inner.push(child),
            }
        }
    }
    assert_eq!(leaves, all);
}

#[test]
fn c51_a_leaf_of_the_product_has_no_children() {
    let mut product = Product::started();
    let reply = product.pmcd.ask(&pmcd::children("bcc.proc.sysfork", true));
    assert_eq!([0, 12, 16, 20].map(|at| word(&reply, at)), [24, 0, 0, 0]);
    let own = names(&product.pmcd.ask(&pmcd::traverse("bcc.proc.sysfork")));
    assert_eq!(own, [(None, "bcc.proc.sysfork".to_string())]);
    for name in ["bcc.proc.sys", "bcc.nope", "bc", "bcc.", ""] {
        assert_eq!(product.pmcd.error(&pmcd::children(name, false)), -12357, "{name:?}");
        assert_eq!(product.pmcd.error(&pmcd::traverse(name)), -12357, "{name:?}");
    }
    assert_eq!(product.pmcd.error(&pmcd::names_of(Pmid::new(BCC, 299, 0))), -12358);
}

#[test]
fn c55_the_product_labels_domain_modules_and_histograms() {
    let mut product = Product::started();
    let mut json = |ident: u32, class: u32| -> Vec<String> {
        let reply = product.pmcd.ask(&pmcd::label(ident, class));
        sets(&reply, ident, class).into_iter().map(|set| set.json).collect()
    };
    assert_eq!(json(BCC, DOMAIN_CLASS), [r#"{"agent":"bcc"}"#]);
    assert_eq!(json(FORKS.0, CLUSTER), [r#"{"bcc_module":"sysfork"}"#]);
    assert_eq!(json(Pmid::new(BCC, 2, 77).0, CLUSTER), [r#"{"bcc_module":"sysfork"}"#], "any item");
    assert_eq!(json(LATENCY.0, INDOM), [r#"{"statistic":"histogram"}"#]);
    let without = [
        (Pmid::new(BCC, 300, 0).0, CLUSTER),
        (PROCESSES.0, INDOM),
        (FORKS.0, ITEM),
        (Indom::new(BCC, 299).0, INSTANCES),
    ];
    for (ident, class) in without {
        assert_eq!(json(ident, class), [""; 0], "{ident:#x} {class}");
    }
}

#[test]
fn c57_the_products_buckets_are_labelled_with_their_bounds() {
    let mut product = Product::started();
    product.fetch(&[Pmid::new(BCC, 0, 0)]);
    let mut labels = |indom: Indom| sets(&product.pmcd.ask(&pmcd::label(indom.0, INSTANCES)), indom.0, INSTANCES);
    let buckets: Vec<_> = labels(LATENCY).into_iter().map(|set| (set.inst, set.json)).collect();
    let bounds = [(0, 1), (2, 3), (4, 7), (8, 15)];
    let expected = bounds.map(|(low, high)| format!(r#"{{"lower_bound":{low},"upper_bound":{high}}}"#));
    assert_eq!(buckets, (0..).zip(expected).collect::<Vec<_>>());
    for indom in [SESSIONS, COMMANDS] {
        assert!(labels(indom).iter().all(|set| set.labels.is_empty()), "{indom:?}");
    }
    product.pmcd.tell(&pmcd::profile(true, &[(LATENCY, false, &[]), (COMMANDS, true, &[])]));
    let mut count = |indom: Indom| sets(&product.pmcd.ask(&pmcd::label(indom.0, INSTANCES)), indom.0, INSTANCES).len();
    assert_eq!((count(LATENCY), count(COMMANDS)), (4, 0));
}

#[test]
fn the_product_has_no_name_twice() {
    let product = Product::started();
    let names: Vec<String> = product.pmcd.agent.source().names().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}
