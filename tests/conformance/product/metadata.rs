//! Names, descriptors, texts and labels of all the product's metrics (16 to 19, 46 to 59).

use super::{Product, BCC, COMMANDS, FORKS, LATENCY, PROCESSES, SESSIONS};
use crate::labels::{sets, CLUSTER, DOMAIN_CLASS, INDOM, INSTANCES, ITEM};
use crate::reference::pmcd::{self, names, word};
use crate::served::Served;
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
fn c48_the_products_names_are_those_that_are_declared() {
    let mut product = Product::started();
    let names = names(&product.answer(&pmcd::traverse("bcc")));
    let pmid = |name: &str, product: &mut Product| Pmid(word(&product.answer(&pmcd::lookup(name)), 20));
    let found: BTreeSet<_> = names.into_iter().map(|(_, name)| (name.clone(), pmid(&name, &mut product))).collect();
    assert_eq!(found, declared());
    assert_eq!(product.descs().len(), found.len());
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
    let bounds = [(0, 1), (2, 3), (4, 7), (8, 15)];
    let expected = bounds.map(|(low, high)| format!(r#"{{"lower_bound":{low},"upper_bound":{high}}}"#));
    let expected: Vec<_> = (0..).zip(expected).collect();
    for when in ["before the first fetch", "after a fetch", "after a time without requests"] {
        let mut labels = |indom: Indom| sets(&product.pmcd.ask(&pmcd::label(indom.0, INSTANCES)), indom.0, INSTANCES);
        let buckets: Vec<_> = labels(LATENCY).into_iter().map(|set| (set.inst, set.json)).collect();
        assert_eq!(buckets, expected, "{when}");
        for indom in [SESSIONS, COMMANDS] {
            assert!(labels(indom).iter().all(|set| set.labels.is_empty()), "{indom:?} {when}");
        }
        match when {
            "before the first fetch" => drop(product.fetch(&[Pmid::new(BCC, 0, 0)])),
            _ => product.pmcd.agent.idle(),
        }
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
