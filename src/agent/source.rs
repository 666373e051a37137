//! The source of metrics: the boundary between the protocol half (`agent`, which knows PDUs) and the half that knows
//! metrics. The catalog's registry implements it over the modules; tests implement it with fixed values.

use crate::pcp::{Atom, Desc, Indom, InstId, PmErr, Pmid};
use bitflags::bitflags;
use std::borrow::Cow;

/// Client slot of a request: the header's `from` word (a small number that pmcd reuses).
pub type Client = i32;

/// Filter for instances selected by the profile in force.
pub type Selected<'a> = &'a dyn Fn(InstId) -> bool;

/// Instances with their values, in the instance domain's order.
pub type Run<'a> = &'a [(InstId, u64)];

bitflags! {
    /// State changes to announce with the next fetch result (`PMDA_EXT_*_CHANGE` in `pmda.h`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Changes: u32 {
        /// `PMDA_EXT_LABEL_CHANGE`
        const LABELS = 0x08;
        /// `PMDA_EXT_NAMES_CHANGE`
        const NAMES = 0x10;
    }
}

/// The object that a help text or a set of labels belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The agent (labels only).
    Domain,
    /// A cluster of metrics, by number (labels only).
    Cluster(u32),
    /// A metric.
    Metric(Pmid),
    /// An instance domain.
    Indom(Indom),
}

/// A metadata label. A name with a dot is a compound name on the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Name: a letter, then letters, digits and `_`; shorter than 255 bytes.
    pub name: Cow<'static, str>,
    /// Value.
    pub value: LabelValue,
    /// True if it is not part of the identity of the metric (`PM_LABEL_OPTIONAL`).
    pub optional: bool,
}

/// The JSON value of a label.
#[derive(Clone, Debug, PartialEq)]
pub enum LabelValue {
    /// A string; the agent quotes and escapes it.
    Str(Cow<'static, str>),
    /// An integer.
    Int(i64),
    /// `true` or `false`.
    Bool(bool),
}

/// A source of metrics. No method may block for more than about a second: pmcd waits for an agent up to five, and
/// serves nobody else meanwhile.
pub trait Source {
    /// Returns the domain number of all identifiers.
    fn domain(&self) -> u32;

    /// Returns all metrics with their complete names; two names may share an identifier. Called again after
    /// [`Changes::NAMES`].
    fn names(&self) -> Vec<(String, Pmid)>;

    /// Returns the descriptor of a metric; `PmErr::PMID` if there is none.
    fn desc(&self, pmid: Pmid) -> Result<Desc, PmErr>;

    /// Takes one snapshot of the requested metrics; called once before the values of a fetch are read.
    fn refresh(&mut self, pmids: &mut dyn Iterator<Item = Pmid>);

    /// Passes on the values of a metric as of the last refresh, in the instance domain's order; the instance is
    /// `IN_NULL` without a domain. `Ok` without a value means "no values"; an error is reported only if no value was
    /// passed on.
    fn values(
        &self,
        client: Client,
        pmid: Pmid,
        wanted: Selected<'_>,
        out: &mut dyn FnMut(InstId, Atom<'_>),
    ) -> Result<(), PmErr>;

    /// Passes on the values of a metric of type `U64` like [`Source::values`], but in runs, since there may be
    /// thousands, and regardless of the profile. False, with nothing passed on, if there are no values for a reason
    /// that `values` returns, or only `values` has them.
    fn runs(&self, _pmid: Pmid, _out: &mut dyn FnMut(Run<'_>)) -> bool {
        false
    }

    /// Passes on all instances of a domain, freshly refreshed, regardless of the profile; `PmErr::INDOM` if there is
    /// none.
    fn instances(&mut self, indom: Indom, out: &mut dyn FnMut(InstId, &[u8])) -> Result<(), PmErr>;

    /// Returns one-line or full help without a newline at the end; `PmErr::TEXT` if there is none.
    fn text(&self, of: Subject, full: bool) -> Result<Cow<'_, str>, PmErr>;

    /// Returns the labels of a subject, in any order; an empty list without labels.
    fn labels(&mut self, of: Subject) -> Result<Vec<Label>, PmErr>;

    /// Passes on the labels of the selected instances, in the domain's order; none for an unknown domain.
    fn instance_labels(&mut self, indom: Indom, wanted: Selected<'_>, out: &mut dyn FnMut(InstId, Vec<Label>));

    /// Returns an error if a client must not change this many values of these metrics in one request; called before
    /// anything is looked up.
    fn may_store(&mut self, _client: Client, _metrics: &[Pmid], _values: usize) -> Result<(), PmErr> {
        Ok(())
    }

    /// Changes a value; `IN_NULL` for a metric without instance domain.
    fn store(&mut self, client: Client, pmid: Pmid, inst: InstId, value: &Atom<'_>) -> Result<(), PmErr>;

    /// Receives an attribute of a client's connection (`PCP_ATTR_*` number), verified by pmcd; without terminating NUL.
    fn attribute(&mut self, _client: Client, _attribute: u32, _value: &[u8]) {}

    /// Reports that the client in this slot has gone; the slot will be reused.
    fn client_gone(&mut self, _client: Client) {}

    /// Reports that clients may have come and gone unnoticed: attributes of any slot may be another client's.
    fn clients_unknown(&mut self) {}

    /// Gives back the memory of values: nobody has asked for some time. The next fetch refreshes them.
    fn idle(&mut self) {}

    /// Returns the changes since the last call.
    fn take_changes(&mut self) -> Changes {
        Changes::empty()
    }
}
