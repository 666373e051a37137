//! What becomes of the counts of a unit that are to outlive the agent: for `bcc.agent.state` and the log.

use crate::host::seconds_since_1970;

/// Status of a unit whose counts go on.
const CONTINUES: &str = "pinned; continues the counts of an agent before";

/// State of a unit whose maps are to outlive the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinState {
    /// Time from which its maps count, in seconds since 1970; 0 if they are not loaded.
    pub since: u64,
    /// True if its maps are pinned.
    pub is_pinned: bool,
    /// Number of sets of maps that this agent discarded because their layout differed.
    pub discarded: u64,
    /// Status in a sentence.
    pub status: String,
}

impl PinState {
    /// Says that the maps are pinned, with the counts of an agent before or without.
    pub(super) fn say_pinned(&mut self, unit: &str, since: u64, continues: bool) {
        (self.since, self.is_pinned) = (since, true);
        self.status = match continues {
            true => CONTINUES.into(),
            false => "pinned; counts from this load on".into(),
        };
        log::info!("{unit}: {}", self.status);
    }

    /// Says that what happened between the two agents is missing.
    pub(super) fn say_gap(&mut self, unit: &str) {
        let status = format!("{CONTINUES}, without what happened while no program ran on");
        if std::mem::replace(&mut self.status, status) != self.status {
            log::info!("{unit}: {}", self.status);
        }
    }

    /// Says that they are not, and why.
    pub(super) fn say_not(&mut self, unit: &str, why: &str) {
        self.status = format!("not pinned: {why}");
        (self.since, self.is_pinned) = (seconds_since_1970(), false);
        log::warn!("{unit}: {}", self.status);
    }
}
