//! A fetch: one value set per requested metric, in that order, duplicates included. Nothing is allocated here once the
//! reply buffer has its size.

use super::profile::{Profile, Selection};
use super::source::{Client, Source};
use crate::{
    pcp::{InstId, PmErr, Pmid, Type},
    pdu::{Pmids, ResultBuilder},
};
use log::error;

/// Adds the value sets of all metrics; `source` has been refreshed.
pub fn values(
    source: &impl Source,
    profile: &Profile,
    client: Client,
    pmids: &Pmids<'_>,
    result: &mut ResultBuilder<'_>,
) {
    for pmid in pmids.iter() {
        result.metric(pmid);
        if let Err(code) = metric(source, profile, client, pmid, result) {
            result.fail(code);
        }
    }
}

fn metric(
    source: &impl Source,
    profile: &Profile,
    client: Client,
    pmid: Pmid,
    result: &mut ResultBuilder<'_>,
) -> Result<(), PmErr> {
    let desc = source.desc(pmid)?;
    let selection = profile.selection(desc.indom);
    let wanted = |inst: InstId| selection.wants(inst);
    let has_runs = desc.ty == Type::U64
        && source.runs(pmid, &mut |run| match selection {
            Selection::All => result.numbers(run),
            _ => run.chunks(1).filter(|one| wanted(one[0].0)).for_each(|one| result.numbers(one)),
        });
    if has_runs {
        return Ok(());
    }
    source.values(client, pmid, &wanted, &mut |inst, value| {
        // A value of another type would be taken for garbage, or cost the connection: one value format per set.
        if value.ty() == desc.ty {
            result.value(inst, &value);
        } else {
            error!("{pmid}: value of type {} for a metric of type {} left out", value.ty().0, desc.ty.0);
        }
    })
}
