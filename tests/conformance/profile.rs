//! Instances that a fetch returns (34 to 40).

use crate::reference::pmcd;
use crate::served::{each, Facts, Served};
use corebcc::pcp::{Indom, InstId, IN_NULL};

/// Returns the instances of a fetch under this profile.
fn selected(served: &mut dyn Served, exclude: bool, entries: &[(Indom, bool, &[InstId])]) -> Vec<InstId> {
    served.tell(&pmcd::profile(exclude, entries));
    fetched(served)
}

fn fetched(served: &mut dyn Served) -> Vec<InstId> {
    served.fetch(&[served.facts().many])[0].insts()
}

#[test]
fn c34_an_empty_profile_selects_all() {
    each(|served| assert_eq!(selected(served, false, &[]), served.facts().ids()));
}

#[test]
fn c35_an_exclude_entry_selects_exactly_its_list() {
    each(|served| {
        let (indom, ids) = (served.facts().indom, served.facts().ids());
        let last = ids[ids.len() - 1];
        assert_eq!(selected(served, false, &[(indom, true, &ids[1..2])]), ids[1..2]);
        assert_eq!(selected(served, false, &[(indom, true, &[last, ids[0]])]), [ids[0], last], "in the domain's order");
        assert!(selected(served, false, &[(indom, true, &[])]).is_empty());
    });
}

#[test]
fn c36_an_include_entry_selects_all_but_its_list() {
    each(|served| {
        let (indom, ids) = (served.facts().indom, served.facts().ids());
        let others: Vec<InstId> = ids.iter().copied().filter(|id| *id != ids[1]).collect();
        assert_eq!(selected(served, false, &[(indom, false, &ids[1..2])]), others);
        assert!(selected(served, false, &[(indom, false, &ids)]).is_empty());
        assert_eq!(selected(served, true, &[(indom, false, &[])]), ids);
    });
}

#[test]
fn c37_a_global_exclude_leaves_single_values_only() {
    each(|served| {
        let Facts { single, many, .. } = served.facts();
        served.tell(&pmcd::profile(true, &[]));
        let sets = served.fetch(&[many, single]);
        assert_eq!((sets[0].numval, sets[0].format), (0, None));
        assert_eq!(sets[1].insts(), [IN_NULL]);
    });
}

#[test]
fn c38_a_global_exclude_with_one_domain_leaves_that_domain() {
    each(|served| {
        let (Facts { indom, empty, .. }, ids) = (served.facts(), served.facts().ids());
        assert_eq!(selected(served, true, &[(indom, true, &ids[..1])]), ids[..1]);
        assert!(selected(served, true, &[(empty.1, false, &[])]).is_empty());
        let elsewhere = (Indom::new(60, 1), true, &ids[1..2]);
        assert_eq!(selected(served, true, &[elsewhere, (indom, true, &ids[1..2])]), ids[1..2]);
    });
}

#[test]
fn c39_a_later_profile_replaces_the_earlier_one_whoever_sent_it() {
    each(|served| {
        let (Facts { indom, empty, .. }, ids) = (served.facts(), served.facts().ids());
        served.tell(&pmcd::profile(true, &[(indom, true, &ids[1..2])]));
        served.set_slot(3);
        assert_eq!(fetched(served), ids[1..2]);
        let mut other_context = pmcd::profile(false, &[(empty.1, true, &[])]);
        other_context[15] = 9;
        served.tell(&other_context);
        served.set_slot(0);
        assert_eq!(fetched(served), ids);
    });
}

#[test]
fn c40_a_listed_instance_that_does_not_exist_is_ignored() {
    each(|served| {
        let (Facts { indom, missing, .. }, ids) = (served.facts(), served.facts().ids());
        assert_eq!(selected(served, false, &[(indom, true, &[missing, ids[1], missing + 1])]), ids[1..2]);
        assert_eq!(selected(served, false, &[(indom, false, &[missing])]), ids);
        assert!(selected(served, false, &[(indom, true, &[missing])]).is_empty());
    });
}
