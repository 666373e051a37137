//! The dynamic name space (48 to 54).

use crate::reference::{
    pmcd::{self, names, word, Pmcd},
    pmid, Reference,
};
use crate::served::{each, Facts};
use corebcc::pcp::Pmid;
use std::collections::BTreeSet;

const NAME: i32 = -12357;

#[test]
fn c48_every_name_below_the_root_resolves_and_back() {
    each(|served| {
        let all = names(&served.ask(&pmcd::traverse(served.facts().root)));
        let described: BTreeSet<Pmid> = served.descs().iter().map(|desc| desc.pmid).collect();
        let mut found = BTreeSet::new();
        for (status, name) in &all {
            assert_eq!(*status, None);
            let reply = served.ask(&pmcd::lookup(name));
            assert_eq!([0, 4, 12, 16].map(|at| word(&reply, at)), [24, 0x700d, 0, 1]);
            let pmid = Pmid(word(&reply, 20));
            assert_eq!(word(&served.ask(&pmcd::desc(pmid)), 12), pmid.0, "{name}");
            assert!(names(&served.ask(&pmcd::names_of(pmid))).contains(&(None, name.clone())), "{name}");
            found.insert(pmid);
        }
        assert_eq!(found, described);
    });
    let both = names(&Pmcd::connected().ask(&pmcd::names_of(pmid(0, 0))));
    assert_eq!(both, [(None, "capt.alias.i32".to_string()), (None, "capt.v.i32".to_string())]);
}

#[test]
fn c49_a_name_that_is_no_leaf_is_a_name_error() {
    each(|served| {
        let Facts { root, inner, leaf, .. } = served.facts();
        let nope = [format!("{root}.nope"), format!("{leaf}.x"), format!("{leaf}.")];
        let cut = [&leaf[..leaf.len() - 1], &leaf[root.len() + 1..], "", ".", root, inner];
        for name in nope.iter().map(String::as_str).chain(cut) {
            assert_eq!(served.error(&pmcd::lookup(name)), NAME, "{name:?}");
        }
    });
}

#[test]
fn c50_children_have_statuses_if_asked() {
    each(|served| {
        let root = served.facts().root;
        let all: BTreeSet<String> =
            names(&served.ask(&pmcd::traverse(root))).into_iter().map(|(_, name)| name).collect();
        let (mut inner, mut leaves) = (vec![root.to_string()], BTreeSet::new());
        while let Some(node) = inner.pop() {
            assert_eq!(served.error(&pmcd::lookup(&node)), NAME, "{node} is no leaf");
            let with = names(&served.ask(&pmcd::children(&node, true)));
            let without = served.ask(&pmcd::children(&node, false));
            assert_eq!(word(&without, 16), 0);
            assert!(names(&without).iter().zip(&with).all(|(a, b)| a.0.is_none() && a.1 == b.1));
            for (status, child) in with {
                let child = format!("{node}.{child}");
                match status {
                    Some(0) => drop(leaves.insert(child)),
                    Some(1) => inner.push(child),
                    other => panic!("{child}: {other:?}"),
                }
            }
        }
        assert_eq!(leaves, all);
    });
}

#[test]
fn c51_a_leaf_has_no_children_and_traverses_to_itself() {
    each(|served| {
        let leaf = served.facts().leaf;
        for statuses in [false, true] {
            let reply = served.ask(&pmcd::children(leaf, statuses));
            assert_eq!([0, 12, 16, 20].map(|at| word(&reply, at)), [24, 0, 0, 0]);
        }
        assert_eq!(names(&served.ask(&pmcd::traverse(leaf))), [(None, leaf.to_string())]);
    });
}

#[test]
fn c52_unknown_nodes_and_metrics_are_errors() {
    each(|served| {
        let Facts { root, leaf, unknown, .. } = served.facts();
        let nope = [format!("{root}.nope"), format!("{root}x"), format!("{root}.")];
        let cut = [&root[..root.len() - 1], &leaf[..leaf.len() - 1], "", "."];
        for name in nope.iter().map(String::as_str).chain(cut) {
            assert_eq!(served.error(&pmcd::children(name, true)), NAME, "{name:?}");
            assert_eq!(served.error(&pmcd::traverse(name)), NAME, "{name:?}");
        }
        assert_eq!(served.error(&pmcd::names_of(unknown[1])), -12358);
    });
}

#[test]
fn c53_a_name_is_not_found_through_its_beginning() {
    let reference =
        Reference { more_names: ["capt.emptyish.x", "capt.vv.x"].map(String::from).to_vec(), ..Reference::default() };
    let mut pmcd = Pmcd::with(reference, Default::default());
    assert_eq!(names(&pmcd.ask(&pmcd::traverse("capt.empty"))), [(None, "capt.empty".to_string())]);
    assert_eq!(names(&pmcd.ask(&pmcd::children("capt.empty", true))), []);
    let below_v = names(&pmcd.ask(&pmcd::traverse("capt.v")));
    assert!(below_v.iter().all(|(_, name)| name.starts_with("capt.v.")), "{below_v:?}");
    assert_eq!(below_v.len(), 12);
}

#[test]
fn c54_the_string_total_counts_one_more_for_each_name() {
    each(|served| {
        let Facts { root, inner, single, .. } = served.facts();
        let requests = [
            pmcd::traverse(root),
            pmcd::traverse(inner),
            pmcd::children(root, true),
            pmcd::children(inner, false),
            pmcd::names_of(single),
        ];
        for request in requests {
            let reply = served.ask(&request);
            let total: usize = names(&reply).iter().map(|(_, name)| name.len() + 1).sum();
            assert_eq!(word(&reply, 12) as usize, total);
            assert_eq!(word(&reply, 20) as usize, names(&reply).len());
        }
    });
}
