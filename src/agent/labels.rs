//! Label requests: from a source's labels to label sets.

use super::source::{Label, LabelValue, Source, Subject};
use super::Profile;
use crate::{
    pcp::{Indom, InstId, PmErr, Pmid, IN_NULL},
    pdu::{self as wire, LabelClass, LabelSet, Pdu},
};
use log::warn;

/// Answers one request. Without labels there are no sets, and no error.
pub fn reply(
    source: &mut impl Source,
    profile: &Profile,
    ident: u32,
    class: LabelClass,
    out: &mut Vec<u8>,
) -> Result<(), PmErr> {
    let mut sets: Vec<LabelSet> = Vec::new();
    let of = match class {
        LabelClass::DOMAIN => Some(Subject::Domain),
        LabelClass::INDOM => Some(Subject::Indom(Indom(ident))),
        LabelClass::CLUSTER => Some(Subject::Cluster(Pmid(ident).cluster())),
        LabelClass::ITEM => Some(Subject::Metric(Pmid(ident))),
        // pmcd has the labels of a context; only dbpmda asks an agent.
        LabelClass::CONTEXT => None,
        LabelClass::INSTANCES => {
            let indom = Indom(ident);
            source.instance_labels(indom, &|inst| profile.wants(indom, inst), &mut |inst, labels| {
                sets.push(set(inst, labels, class));
            });
            None
        }
        _ => return Err(PmErr::TYPE),
    };
    if let Some(of) = of {
        let labels = source.labels(of)?;
        if !labels.is_empty() {
            sets.push(set(IN_NULL, labels, class));
        }
    }
    Pdu::Label { ident, class, sets }.encode(0, out);
    Ok(())
}

fn set(inst: InstId, labels: Vec<Label>, class: LabelClass) -> LabelSet<'static> {
    let values: Vec<String> = labels.iter().map(|label| json(&label.value)).collect();
    let labels: Vec<_> = labels
        .iter()
        .zip(&values)
        .map(|(l, value)| wire::Label { name: &l.name, value, optional: l.optional })
        .collect();
    let set = LabelSet::new(inst, class, &labels);
    if let Err(code) = set.labels {
        warn!(
            "a set of {} labels (class {}, first {:?}) cannot be sent: {code}",
            labels.len(),
            class.0,
            labels.first()
        );
    }
    set
}

fn json(value: &LabelValue) -> String {
    match value {
        LabelValue::Str(text) => crate::pcp::json_string(text),
        LabelValue::Int(v) => v.to_string(),
        LabelValue::Bool(v) => v.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_json() {
        let of = |value| {
            let label = Label { name: "x".into(), value, optional: false };
            String::from_utf8(set(0, vec![label], LabelClass::ITEM).json.to_vec()).unwrap()
        };
        assert_eq!(of(LabelValue::Str("a\"b".into())), r#"{"x":"a\"b"}"#);
        assert_eq!(of(LabelValue::Int(-7)), r#"{"x":-7}"#);
        assert_eq!(of(LabelValue::Bool(false)), r#"{"x":false}"#);
    }

    #[test]
    fn a_set_that_cannot_be_sent_is_an_error_of_its_own() {
        let label = |name: &'static str| Label { name: name.into(), value: LabelValue::Int(1), optional: false };
        assert_eq!(set(0, vec![label("a"), label("b c")], LabelClass::ITEM).labels, Err(PmErr::NAME));
    }
}
