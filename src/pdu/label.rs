//! LABEL: sets of name/value pairs, sent as JSON text and the offsets of each name and value in it.

use std::borrow::Cow;

use super::{
    codec::{negative, DecodeError, Reader, Writer},
    types::LabelClass,
};
use crate::pcp::{InstId, PmErr};

/// Labels of one instance, or of the one requested object (`pmLabelSet`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSet<'a> {
    /// Instance; [`crate::pcp::IN_NULL`] in classes other than instances.
    pub inst: InstId,
    /// Location of each label in `json`, or an error code.
    pub labels: Result<Vec<WireLabel>, PmErr>,
    /// A flat JSON object without white space; empty if there are no labels.
    pub json: Cow<'a, [u8]>,
}

/// Location of one label in the text of its set (`pmLabel`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLabel {
    /// Offset of the first character of the name, quote excluded.
    pub name: u16,
    /// Length of the name, quotes excluded.
    pub name_len: u8,
    /// Flags: the class bit, [`WireLabel::COMPOUND`], [`WireLabel::OPTIONAL`].
    pub flags: u8,
    /// Offset of the value, quotes included.
    pub value: u16,
    /// Length of the value, quotes included.
    pub value_len: u16,
}

impl WireLabel {
    /// `PM_LABEL_COMPOUND`: the name is a path with dots.
    pub const COMPOUND: u8 = 0x40;
    /// `PM_LABEL_OPTIONAL`: the label does not identify the metric.
    pub const OPTIONAL: u8 = 0x80;
    const LEN: usize = 8;
}

/// A label to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    /// Name: a letter, then letters, digits, `_`; parts of a compound name are joined by dots.
    pub name: &'a str,
    /// Value: JSON without white space outside of strings; [`crate::pcp::json_string`] makes it from text.
    pub value: &'a str,
    /// True if the label is not part of the identity of the metric.
    pub optional: bool,
}

impl LabelSet<'_> {
    const HEAD: usize = 16;
    /// Highest number of labels (`MAXLABELS`), for which every offset and length fits in the fields of `pmLabel`.
    const MAX_LABELS: usize = 254;
    const MAX_NAME: usize = 254;
    const MAX_JSON: usize = 65_534;

    /// Makes a set as the C library would send it: sorted by name, the last of equal names winning. Beyond the limits
    /// of the format the set is `PM_ERR_TOOBIG`, with a malformed name `PM_ERR_NAME`.
    pub fn new(inst: InstId, class: LabelClass, labels: &[Label<'_>]) -> LabelSet<'static> {
        match layout(class, labels) {
            Ok((labels, json)) => LabelSet { inst, labels: Ok(labels), json: Cow::Owned(json.into_bytes()) },
            Err(code) => LabelSet { inst, labels: Err(code), json: Cow::Borrowed(b"") },
        }
    }
}

fn layout(class: LabelClass, labels: &[Label<'_>]) -> Result<(Vec<WireLabel>, String), PmErr> {
    let mut sorted: Vec<&Label<'_>> = labels.iter().rev().collect();
    sorted.sort_by_key(|label| label.name);
    sorted.dedup_by_key(|label| label.name);
    if sorted.len() > LabelSet::MAX_LABELS {
        return Err(PmErr::TOOBIG);
    }
    let mut json = String::new();
    let mut places = Vec::with_capacity(sorted.len());
    for &Label { name, value, optional } in sorted {
        if !name.split('.').all(is_name) {
            return Err(PmErr::NAME);
        }
        json.push_str(if json.is_empty() { "{\"" } else { ",\"" });
        let at = json.len();
        json.push_str(name);
        json.push_str("\":");
        let value_at = json.len();
        json.push_str(value);
        if name.len() > LabelSet::MAX_NAME || json.len() + 1 > LabelSet::MAX_JSON {
            return Err(PmErr::TOOBIG);
        }
        let compound = if name.contains('.') { WireLabel::COMPOUND } else { 0 };
        let optional = if optional { WireLabel::OPTIONAL } else { 0 };
        places.push(WireLabel {
            name: at as u16,
            name_len: name.len() as u8,
            flags: class.0 as u8 | compound | optional,
            value: value_at as u16,
            value_len: value.len() as u16,
        });
    }
    if !json.is_empty() {
        json.push('}');
    }
    Ok((places, json))
}

fn is_name(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Decodes the number of sets; then all sets (instance, number of labels or error, offset and length of the text,
/// labels), then all texts, in order and without padding. A set without labels has the offset where its text would be:
/// decoders since 6.3.1 check that the PDU ends where the last text does.
pub(super) fn decode<'a>(r: &mut Reader<'a>) -> Result<Vec<LabelSet<'a>>, DecodeError> {
    let n = r.count(LabelSet::HEAD, "label sets")?;
    let mut sets = Vec::with_capacity(n);
    let mut texts = Vec::with_capacity(n);
    for _ in 0..n {
        let inst = r.u32("label instance")?;
        let count = r.i32("number of labels")?;
        texts.push((r.i32("label text offset")?, r.i32("label text length")?));
        let labels = match count {
            ..0 => Err(PmErr(count)),
            _ => Ok(places(r, count)?),
        };
        sets.push(LabelSet { inst, labels, json: Cow::Borrowed(b"") });
    }
    for (set, (offset, len)) in sets.iter_mut().zip(texts) {
        if usize::try_from(offset) != Ok(r.at()) {
            return Err(DecodeError::Illegal("label text offset", offset));
        }
        let len = r.bound(len, 1, "bytes of label text")?;
        set.json = Cow::Borrowed(r.bytes(len, "label text")?);
    }
    Ok(sets)
}

fn places(r: &mut Reader<'_>, count: i32) -> Result<Vec<WireLabel>, DecodeError> {
    let n = r.bound(count, WireLabel::LEN, "labels")?;
    let mut labels = Vec::with_capacity(n);
    for _ in 0..n {
        labels.push(WireLabel {
            name: r.u16("label name")?,
            name_len: r.u8("label name length")?,
            flags: r.u8("label flags")?,
            value: r.u16("label value")?,
            value_len: r.u16("label value length")?,
        });
    }
    Ok(labels)
}

pub(super) fn encode(w: &mut Writer<'_>, sets: &[LabelSet<'_>]) {
    w.count(sets.len());
    let len = |set: &LabelSet<'_>| LabelSet::HEAD + WireLabel::LEN * set.labels.as_ref().map_or(0, Vec::len);
    let mut text = w.at() + sets.iter().map(len).sum::<usize>();
    for set in sets {
        w.u32(set.inst);
        match &set.labels {
            Ok(labels) => w.count(labels.len()),
            Err(code) => w.i32(negative(*code).0),
        }
        w.count(text);
        w.count(set.json.len());
        text += set.json.len();
        for label in set.labels.iter().flatten() {
            w.u16(label.name);
            w.u8(label.name_len);
            w.u8(label.flags);
            w.u16(label.value);
            w.u16(label.value_len);
        }
    }
    for set in sets {
        w.bytes(&set.json);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::IN_NULL;

    fn label<'a>(name: &'a str, value: &'a str, optional: bool) -> Label<'a> {
        Label { name, value, optional }
    }

    #[test]
    fn labels_are_sorted_flagged_and_located() {
        let labels = [label("zeta", "1", false), label("alpha.b", "\"c\"", false), label("note", "true", true)];
        let set = LabelSet::new(IN_NULL, LabelClass::ITEM, &labels);
        assert_eq!(&*set.json, br#"{"alpha.b":"c","note":true,"zeta":1}"#);
        let place = |name, name_len, flags, value, value_len| WireLabel { name, name_len, flags, value, value_len };
        let expected = [place(2, 7, 0x50, 11, 3), place(16, 4, 0x90, 22, 4), place(28, 4, 0x10, 34, 1)];
        assert_eq!(set.labels, Ok(expected.to_vec()));
    }

    #[test]
    fn the_last_label_of_a_name_wins() {
        let set = LabelSet::new(0, LabelClass::INSTANCES, &[label("a", "1", false), label("a", "2", false)]);
        assert_eq!(&*set.json, br#"{"a":2}"#);
    }

    #[test]
    fn a_set_beyond_the_format_is_an_error_and_not_a_wrong_offset() {
        let long = crate::pcp::json_string(&"x".repeat(70_000));
        let set = |name: &str, value: &str| LabelSet::new(0, LabelClass::ITEM, &[label(name, value, false)]).labels;
        assert_eq!(set("a", &long), Err(PmErr::TOOBIG));
        assert_eq!(set(&"a".repeat(255), "1"), Err(PmErr::TOOBIG));
        for name in ["", "1a", "a..b", "a b", "a\"", "_a"] {
            assert_eq!(set(name, "1"), Err(PmErr::NAME), "{name}");
        }
        assert_eq!(LabelSet::new(0, LabelClass::ITEM, &[]).labels, Ok(Vec::new()));
    }
}
