//! Instance requests: a whole domain, the name of an id, or the id of a name.

use super::source::Source;
use crate::{
    pcp::{Indom, InstId, PmErr, IN_NULL},
    pdu::Pdu,
};

/// Answers one request; the profile does not apply.
pub fn reply(
    source: &mut impl Source,
    indom: Indom,
    inst: InstId,
    name: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), PmErr> {
    let (mut text, mut places) = (Vec::new(), Vec::new());
    source.instances(indom, &mut |id, name| {
        text.extend_from_slice(name);
        places.push((id, text.len()));
    })?;
    let mut start = 0;
    let place = |(id, end): (InstId, usize)| (id, &text[std::mem::replace(&mut start, end)..end]);
    let all: Vec<(InstId, &[u8])> = places.into_iter().map(place).collect();

    // What is known already is left out of the answer: an id of -1, or an empty name (`pmdaInstance` in libpcp_pmda).
    let entries: Vec<(InstId, &[u8])> = match (inst, name) {
        (IN_NULL, None) => all,
        (_, None) => {
            let (_, name) = all.iter().find(|(id, _)| *id == inst).ok_or(PmErr::INST)?;
            vec![(IN_NULL, *name)]
        }
        (IN_NULL, Some(name)) => vec![(find(&all, name).ok_or(PmErr::INST)?, b"")],
        (_, Some(_)) => return Err(PmErr::INST),
    };
    Pdu::Instance { indom, entries }.encode(0, out);
    Ok(())
}

/// True if an instance exists.
pub fn exists(source: &mut impl Source, indom: Indom, inst: InstId) -> Result<bool, PmErr> {
    let mut found = false;
    source.instances(indom, &mut |id, _| found |= id == inst)?;
    Ok(found)
}

/// Finds the exact name, else a name with this first word: `sda` finds `sda 8:0`.
fn find(all: &[(InstId, &[u8])], name: &[u8]) -> Option<InstId> {
    let exact = all.iter().find(|(_, n)| *n == name);
    let first_word = || all.iter().find(|(_, n)| n.split(|&byte| byte == b' ').next() == Some(name));
    exact.or_else(first_word).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_whole_or_by_its_first_word() {
        let all = [(3, &b"sda 8:0"[..]), (4, b"sda1 8:1"), (5, b"dm"), (6, b"dm x")];
        assert_eq!(find(&all, b"sda 8:0"), Some(3));
        assert_eq!(find(&all, b"sda"), Some(3));
        assert_eq!(find(&all, b"sda1"), Some(4));
        assert_eq!(find(&all, b"dm"), Some(5));
        for none in [&b"sd"[..], b"sda 8:1", b"sda ", b"sda 8", b"", b"8:0"] {
            assert_eq!(find(&all, none), None, "{}", none.escape_ascii());
        }
    }
}
