//! Instances that a fetch returns (34 to 40).

use crate::reference::{
    pmcd::{self, Pmcd},
    pmid, EMPTY, LAST, THREE,
};
use corebcc::pcp::{Indom, InstId, IN_NULL};

/// Returns the instances of 400.1.0 that a fetch returns under this profile.
fn selected(exclude: bool, entries: &[(Indom, bool, &[InstId])]) -> Vec<InstId> {
    let mut pmcd = Pmcd::connected();
    pmcd.tell(&pmcd::profile(exclude, entries));
    fetched(&mut pmcd)
}

fn fetched(pmcd: &mut Pmcd) -> Vec<InstId> {
    let reply = pmcd.ask(&pmcd::fetch(&[pmid(1, 0)]));
    pmcd::result(&reply)[0].insts()
}

#[test]
fn c34_an_empty_profile_selects_all() {
    assert_eq!(selected(false, &[]), [0, 5, LAST]);
}

#[test]
fn c35_an_exclude_entry_selects_exactly_its_list() {
    assert_eq!(selected(false, &[(THREE, true, &[5])]), [5]);
    assert_eq!(selected(false, &[(THREE, true, &[LAST, 0])]), [0, LAST], "in the order of the domain");
    assert!(selected(false, &[(THREE, true, &[])]).is_empty());
}

#[test]
fn c36_an_include_entry_selects_all_but_its_list() {
    assert_eq!(selected(false, &[(THREE, false, &[5])]), [0, LAST]);
    assert!(selected(false, &[(THREE, false, &[LAST, 5, 0])]).is_empty());
    assert_eq!(selected(true, &[(THREE, false, &[])]), [0, 5, LAST]);
}

#[test]
fn c37_a_global_exclude_leaves_single_values_only() {
    let mut pmcd = Pmcd::connected();
    pmcd.tell(&pmcd::profile(true, &[]));
    let sets = pmcd::result(&pmcd.ask(&pmcd::fetch(&[pmid(1, 0), pmid(0, 0)])));
    assert_eq!((sets[0].numval, sets[0].format), (0, None));
    assert_eq!(sets[1].insts(), [IN_NULL]);
}

#[test]
fn c38_a_global_exclude_with_one_domain_leaves_that_domain() {
    assert_eq!(selected(true, &[(THREE, true, &[0])]), [0]);
    assert!(selected(true, &[(EMPTY, false, &[])]).is_empty());
    assert_eq!(selected(true, &[(Indom::new(60, 1), true, &[5]), (THREE, true, &[5])]), [5]);
}

#[test]
fn c39_a_later_profile_replaces_the_earlier_one_whoever_sent_it() {
    let mut pmcd = Pmcd::connected();
    pmcd.tell(&pmcd::profile(true, &[(THREE, true, &[5])]));
    pmcd.slot = 3;
    assert_eq!(fetched(&mut pmcd), [5]);
    let mut other_context = pmcd::profile(false, &[(EMPTY, true, &[])]);
    other_context[15] = 9;
    pmcd.tell(&other_context);
    pmcd.slot = 0;
    assert_eq!(fetched(&mut pmcd), [0, 5, LAST]);
}

#[test]
fn c40_a_listed_instance_that_does_not_exist_is_ignored() {
    assert_eq!(selected(false, &[(THREE, true, &[6, 5, 7])]), [5]);
    assert_eq!(selected(false, &[(THREE, false, &[6])]), [0, 5, LAST]);
    assert!(selected(false, &[(THREE, true, &[6])]).is_empty());
}
