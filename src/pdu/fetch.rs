//! Parameters of a fetch: the metrics (FETCH) and the instances (PROFILE).

use std::{borrow::Cow, fmt};

use super::codec::{word, DecodeError, Reader, Wire, Writer};
use crate::pcp::{Indom, InstId, Pmid};

/// Metrics of a fetch, in the requested order; a view of the frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Pmids<'a>(Cow<'a, [u8]>);

impl<'a> Pmids<'a> {
    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let n = r.count(4, "pmids")?;
        r.bytes(4 * n, "pmids").map(|bytes| Pmids(Cow::Borrowed(bytes)))
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.count(self.len());
        w.bytes(&self.0);
    }

    /// Returns the number of metrics, duplicates included.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the metrics in the requested order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Pmid> + '_ {
        self.0.chunks_exact(4).map(|b| Pmid(word(b)))
    }
}

impl FromIterator<Pmid> for Pmids<'_> {
    fn from_iter<I: IntoIterator<Item = Pmid>>(pmids: I) -> Self {
        let mut bytes = Vec::new();
        let mut w = Writer::new(&mut bytes);
        pmids.into_iter().for_each(|pmid| pmid.encode(&mut w));
        Pmids(Cow::Owned(bytes))
    }
}

impl fmt::Debug for Pmids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Selection of instances for the following fetches (`pmProfile`); owned, because it outlives its frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Number of the client's context.
    pub context: i32,
    /// True if domains without an entry are excluded, false if all of their instances are selected.
    pub exclude: bool,
    /// Entries, one per instance domain.
    pub entries: Vec<ProfileEntry>,
}

/// Selection for one instance domain (`pmInDomProfile`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileEntry {
    /// Instance domain.
    pub indom: Indom,
    /// True: only `insts` are selected. False: all but `insts` are.
    pub exclude: bool,
    /// Exceptions from `exclude`.
    pub insts: Vec<InstId>,
}

impl Profile {
    const ENTRY: usize = 16;

    /// Decodes context, global state, number of entries, zero; then all entries (indom, state, count, zero), then all
    /// lists.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let context = r.i32("profile context")?;
        let exclude = r.i32("profile state")? != 0;
        let n = r.i32("profile entries")?;
        r.u32("profile padding")?;
        let n = r.bound(n, Self::ENTRY, "profile entries")?;
        let mut heads = Reader::body(r.bytes(n * Self::ENTRY, "profile entries")?);
        let mut entries = Vec::with_capacity(n);
        for _ in 0..n {
            let indom = Indom(heads.u32("profile indom")?);
            let exclude = heads.i32("profile state")? != 0;
            let count = heads.i32("profile instances")?;
            heads.u32("profile padding")?;
            let count = r.bound(count, <InstId as Wire>::MIN, "profile instances")?;
            entries.push(ProfileEntry { indom, exclude, insts: r.list(count)? });
        }
        Ok(Profile { context, exclude, entries })
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.i32(self.context);
        w.u32(self.exclude.into());
        w.count(self.entries.len());
        w.u32(0);
        for entry in &self.entries {
            w.u32(entry.indom.0);
            w.u32(entry.exclude.into());
            w.count(entry.insts.len());
            w.u32(0);
        }
        for entry in &self.entries {
            w.list(&entry.insts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pmids_are_read_in_place() {
        let pmids: Pmids = [Pmid::new(149, 0, 1), Pmid::new(149, 2, 3)].into_iter().collect();
        assert_eq!(format!("{pmids:?}"), "[149.0.1, 149.2.3]");
        assert_eq!(pmids.len(), 2);
    }
}
