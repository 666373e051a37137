//! A store: every value set is checked before the first value changes, since one code answers the whole request.

use super::instances;
use super::source::{Client, Source};
use crate::{
    pcp::{Desc, Indom, InstId, PmErr, IN_NULL},
    pdu::{Value, ValueSet},
};

/// Applies the values; an error if any is refused.
pub fn apply(source: &mut impl Source, client: Client, sets: &[ValueSet<'_>]) -> Result<(), PmErr> {
    if sets.is_empty() {
        return Err(PmErr::TOOSMALL);
    }
    let (mut metrics, mut count) = (Vec::new(), 0);
    for set in sets {
        source.desc(set.pmid)?;
        count += values(set)?.len();
        metrics.push(set.pmid);
    }
    source.may_store(client, &metrics, count)?;
    for set in sets {
        let desc = source.desc(set.pmid)?;
        for (inst, value) in values(set)? {
            check(source, &desc, *inst, value)?;
        }
    }
    for set in sets {
        let desc = source.desc(set.pmid)?;
        for (inst, value) in values(set)? {
            let atom = value.atom(desc.ty).ok_or(PmErr::CONV)?;
            source.store(client, set.pmid, *inst, &atom)?;
        }
    }
    Ok(())
}

fn values<'a, 'b>(set: &'b ValueSet<'a>) -> Result<&'b [(InstId, Value<'a>)], PmErr> {
    match &set.values {
        Ok(values) if !values.is_empty() => Ok(values),
        _ => Err(PmErr::VALUE),
    }
}

fn check(source: &mut impl Source, desc: &Desc, inst: InstId, value: &Value<'_>) -> Result<(), PmErr> {
    let known = match desc.indom {
        Indom::NULL => inst == IN_NULL,
        indom => instances::exists(source, indom, inst)?,
    };
    if !known {
        return Err(PmErr::INST);
    }
    value.atom(desc.ty).map(drop).ok_or(PmErr::CONV)
}
