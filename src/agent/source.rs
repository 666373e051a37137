//! What an agent serves: the boundary between the protocol half (`agent`, which knows PDUs) and the half that knows
//! metrics. The catalog's registry implements it over the modules; tests implement it with fixed values.

use crate::pcp::{Atom, Desc, Indom, InstId, PmErr, Pmid};
use bitflags::bitflags;
use std::borrow::Cow;

/// The client slot of a request: the header's `from` word (a small number that pmcd reuses).
pub type Client = i32;

/// Which instances the profile in force selects.
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

/// What a help text or a set of labels belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The whole agent (labels only).
    Domain,
    /// A cluster of metrics, by its number (labels only).
    Cluster(u32),
    /// One metric.
    Metric(Pmid),
    /// One instance domain.
    Indom(Indom),
}

/// One metadata label. A name with a dot is a compound name on the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// A letter, then letters, digits and `_`; shorter than 255 bytes.
    pub name: Cow<'static, str>,
    /// The value.
    pub value: LabelValue,
    /// Not part of the identity of the metric (`PM_LABEL_OPTIONAL`).
    pub optional: bool,
}

/// The JSON value of a label.
#[derive(Clone, Debug, PartialEq)]
pub enum LabelValue {
    /// A string; the agent quotes and escapes it.
    Str(Cow<'static, str>),
    /// A whole number.
    Int(i64),
    /// `true` or `false`.
    Bool(bool),
}

/// What an agent serves. Nothing here may block for more than about a second: pmcd waits for no agent longer than five,
/// and serves nobody else meanwhile.
pub trait Source {
    /// The domain number all identifiers carry.
    fn domain(&self) -> u32;

    /// All metrics as complete names; two names may share an identifier. Read again after [`Changes::NAMES`].
    fn names(&self) -> Vec<(String, Pmid)>;

    /// The descriptor of a metric; `PmErr::PMID` if there is none.
    fn desc(&self, pmid: Pmid) -> Result<Desc, PmErr>;

    /// Called once before the values of a fetch are read, with the metrics asked for: take one snapshot of each.
    fn refresh(&mut self, pmids: &mut dyn Iterator<Item = Pmid>);

    /// Hands out the values of a metric as of the last refresh, in the instance domain's order; the instance is `IN_NULL`
    /// where there is no domain. `Ok` without a value means "no values"; an error is reported if no value was handed out.
    fn values(
        &self,
        client: Client,
        pmid: Pmid,
        wanted: Selected<'_>,
        out: &mut dyn FnMut(InstId, Atom<'_>),
    ) -> Result<(), PmErr>;

    /// Hands out the values of a metric of type `U64` as [`Source::values`] does, but for the profile, and many at a time: there may be
    /// thousands. False, with nothing handed out, where there is a reason that `values` gives, or only `values` has them.
    fn runs(&self, _pmid: Pmid, _out: &mut dyn FnMut(Run<'_>)) -> bool {
        false
    }

    /// Hands out all instances of a domain, freshly refreshed, whatever the profile; `PmErr::INDOM` if there is none.
    fn instances(&mut self, indom: Indom, out: &mut dyn FnMut(InstId, &[u8])) -> Result<(), PmErr>;

    /// One-line or full help without a newline at the end; `PmErr::TEXT` if there is none.
    fn text(&self, of: Subject, full: bool) -> Result<Cow<'_, str>, PmErr>;

    /// Labels of a subject, in any order; none is an empty list.
    fn labels(&mut self, of: Subject) -> Result<Vec<Label>, PmErr>;

    /// Labels of the selected instances, in the domain's order; none for an unknown domain.
    fn instance_labels(&mut self, indom: Indom, wanted: Selected<'_>, out: &mut dyn FnMut(InstId, Vec<Label>));

    /// Whether a client may change so many values, of these metrics, in one request; an error refuses it before anything is looked up.
    fn may_store(&mut self, _client: Client, _metrics: &[Pmid], _values: usize) -> Result<(), PmErr> {
        Ok(())
    }

    /// Changes a value; `IN_NULL` for a metric without instance domain.
    fn store(&mut self, client: Client, pmid: Pmid, inst: InstId, value: &Atom<'_>) -> Result<(), PmErr>;

    /// An attribute of a client's connection (`PCP_ATTR_*` number), verified by pmcd; without terminating NUL.
    fn attribute(&mut self, _client: Client, _attribute: u32, _value: &[u8]) {}

    /// The client in this slot is gone; the slot will be given to another.
    fn client_gone(&mut self, _client: Client) {}

    /// Clients may have come and gone unseen: what is known of those in all slots may be another's.
    fn clients_unknown(&mut self) {}

    /// The changes since the last call.
    fn take_changes(&mut self) -> Changes {
        Changes::empty()
    }
}
