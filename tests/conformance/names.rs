//! The dynamic name space (48 to 54).

use crate::reference::{
    pmcd::{self, names, word, Pmcd},
    pmid, Reference,
};
use corebcc::pcp::Pmid;

const NAME: i32 = -12357;

#[test]
fn c48_every_name_below_the_root_resolves_and_back() {
    let mut pmcd = Pmcd::connected();
    let all = names(&pmcd.ask(&pmcd::traverse("capt")));
    assert_eq!(all.len(), 26);
    for (status, name) in &all {
        assert_eq!(*status, None);
        let reply = pmcd.ask(&pmcd::lookup(name));
        assert_eq!([0, 4, 12, 16].map(|at| word(&reply, at)), [24, 0x700d, 0, 1]);
        let pmid = Pmid(word(&reply, 20));
        assert_eq!(word(&pmcd.ask(&pmcd::desc(pmid)), 12), pmid.0);
        assert!(names(&pmcd.ask(&pmcd::names_of(pmid))).contains(&(None, name.clone())));
    }
    let both = names(&pmcd.ask(&pmcd::names_of(pmid(0, 0))));
    assert_eq!(both, [(None, "capt.alias.i32".to_string()), (None, "capt.v.i32".to_string())]);
}

#[test]
fn c49_a_name_that_is_no_leaf_is_a_name_error() {
    let mut pmcd = Pmcd::connected();
    for name in ["capt", "capt.v", "capt.nope", "capt.v.i32.x", "capt.v.i3", "capt.v.i32.", "", ".", "v.i32"] {
        assert_eq!(pmcd.error(&pmcd::lookup(name)), NAME, "{name:?}");
    }
}

#[test]
fn c50_children_have_statuses_if_asked() {
    let mut pmcd = Pmcd::connected();
    let with = names(&pmcd.ask(&pmcd::children("capt", true)));
    let list: Vec<_> = with.iter().map(|(status, name)| (name.as_str(), status.unwrap())).collect();
    assert_eq!(list, [("alias", 1), ("ctl", 1), ("empty", 0), ("err", 1), ("ev", 1), ("inst", 1), ("v", 1)]);
    let without = pmcd.ask(&pmcd::children("capt", false));
    assert_eq!(word(&without, 16), 0);
    assert!(names(&without).iter().zip(&with).all(|(a, b)| a.0.is_none() && a.1 == b.1));
    assert!(names(&pmcd.ask(&pmcd::children("capt.v", true))).iter().all(|(status, _)| *status == Some(0)));
}

#[test]
fn c51_a_leaf_has_no_children_and_traverses_to_itself() {
    let mut pmcd = Pmcd::connected();
    for statuses in [false, true] {
        let reply = pmcd.ask(&pmcd::children("capt.v.i32", statuses));
        assert_eq!([0, 12, 16, 20].map(|at| word(&reply, at)), [24, 0, 0, 0]);
    }
    assert_eq!(names(&pmcd.ask(&pmcd::traverse("capt.v.i32"))), [(None, "capt.v.i32".to_string())]);
}

#[test]
fn c52_unknown_nodes_and_metrics_are_errors() {
    let mut pmcd = Pmcd::connected();
    for name in ["capt.nope", "cap", "captx", "capt.", "", "."] {
        assert_eq!(pmcd.error(&pmcd::children(name, true)), NAME, "{name:?}");
        assert_eq!(pmcd.error(&pmcd::traverse(name)), NAME, "{name:?}");
    }
    assert_eq!(pmcd.error(&pmcd::names_of(pmid(9, 9))), -12358);
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
    let mut pmcd = Pmcd::connected();
    let requests = [
        pmcd::traverse("capt"),
        pmcd::traverse("capt.inst"),
        pmcd::children("capt", true),
        pmcd::children("capt.v", false),
        pmcd::names_of(pmid(0, 0)),
    ];
    for request in requests {
        let reply = pmcd.ask(&request);
        let total: usize = names(&reply).iter().map(|(_, name)| name.len() + 1).sum();
        assert_eq!(word(&reply, 12) as usize, total);
        assert_eq!(word(&reply, 20) as usize, names(&reply).len());
    }
}
