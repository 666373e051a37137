//! The instance profile in force: the instances of each domain for the next fetch.

use crate::{
    pcp::{Indom, InstId},
    pdu,
};

/// The last profile from pmcd, which sends another before a fetch of another client that needs it. Everything is
/// selected until the first one, which may never come: pmcd does not repeat it after a restart of the agent.
#[derive(Debug, Default)]
pub struct Profile(pdu::Profile);

impl Profile {
    /// Replaces the profile by one from pmcd.
    pub fn replace(&mut self, mut sent: pdu::Profile) {
        sent.entries.iter_mut().for_each(|entry| entry.insts.sort_unstable());
        self.0 = sent;
    }

    /// Returns the selected instances of a domain (`__pmInProfile` in libpcp's `profile.c`). The single value of a
    /// metric without instance domain is always selected.
    pub fn selection(&self, indom: Indom) -> Selection<'_> {
        if indom == Indom::NULL {
            return Selection::All;
        }
        match self.0.entries.iter().find(|entry| entry.indom == indom) {
            Some(entry) if entry.exclude => Selection::Only(&entry.insts),
            Some(entry) => Selection::AllBut(&entry.insts),
            None if self.0.exclude => Selection::Only(&[]),
            None => Selection::All,
        }
    }

    /// True if an instance is selected.
    pub fn wants(&self, indom: Indom, inst: InstId) -> bool {
        self.selection(indom).wants(inst)
    }
}

/// A selection of instances of one domain; lists are sorted.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// All instances.
    All,
    /// Only these instances.
    Only(&'a [InstId]),
    /// All but these instances.
    AllBut(&'a [InstId]),
}

impl Selection<'_> {
    /// True if it contains an instance.
    pub fn wants(self, inst: InstId) -> bool {
        match self {
            Selection::All => true,
            Selection::Only(insts) => insts.binary_search(&inst).is_ok(),
            Selection::AllBut(insts) => insts.binary_search(&inst).is_err(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::ProfileEntry;

    const DISKS: Indom = Indom::new(400, 0);
    const OTHER: Indom = Indom::new(400, 1);

    fn profile(exclude: bool, entry: Option<(bool, &[InstId])>) -> Profile {
        let entry = entry.map(|(exclude, insts)| ProfileEntry { indom: DISKS, exclude, insts: insts.to_vec() });
        let mut profile = Profile::default();
        profile.replace(pdu::Profile { context: 0, exclude, entries: entry.into_iter().collect() });
        profile
    }

    #[test]
    fn without_a_profile_everything_is_wanted() {
        assert!(Profile::default().wants(DISKS, 5));
    }

    #[test]
    fn an_entry_overrides_the_global_state_for_its_domain_only() {
        let only_5 = profile(true, Some((true, &[7, 5])));
        assert!(only_5.wants(DISKS, 5));
        assert!(!only_5.wants(DISKS, 0));
        assert!(!only_5.wants(OTHER, 5));
        let all_but_5 = profile(true, Some((false, &[5])));
        assert!(!all_but_5.wants(DISKS, 5));
        assert!(all_but_5.wants(DISKS, 0));
        let none = profile(false, Some((true, &[])));
        assert!(!none.wants(DISKS, 5));
        assert!(none.wants(OTHER, 5));
    }

    #[test]
    fn a_single_value_is_wanted_whatever_the_profile_says() {
        assert!(profile(true, None).wants(Indom::NULL, crate::pcp::IN_NULL));
        assert!(!profile(true, None).wants(DISKS, 5));
    }
}
