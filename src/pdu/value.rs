//! Values in a RESULT: value sets and the value blocks they point to, decoded to typed values.

use super::codec::{DecodeError, Reader};
use crate::pcp::{Atom, EventParam, InstId, PmErr, Pmid, Type};

/// `valfmt` of 32-bit values (`PM_VAL_INSITU`).
pub(super) const INSITU: i32 = 0;
/// `valfmt` of values in blocks (`PM_VAL_DPTR`).
pub(super) const POINTER: i32 = 1;
/// `valfmt` that the stock agent uses for event arrays (`PM_VAL_SPTR`); receivers treat it like [`POINTER`].
pub(super) const POINTER_STATIC: i32 = 2;

/// Values of one metric in a RESULT (`pmValueSet`).
#[derive(Clone, Debug, PartialEq)]
pub struct ValueSet<'a> {
    /// Metric.
    pub pmid: Pmid,
    /// `valfmt` as received: 0 in the set itself, else in blocks. Kept so that a PDU is reproduced unchanged.
    pub format: i32,
    /// Values by instance ([`crate::pcp::IN_NULL`] for a single one), or an error code.
    pub values: Result<Vec<(InstId, Value<'a>)>, PmErr>,
}

/// A value, typed by the descriptor of its metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A signed or unsigned word of 32 bits.
    Insitu(u32),
    /// A value block (`pmValueBlock`).
    Block {
        /// Type set by the sender.
        ty: Type,
        /// Content without padding.
        bytes: &'a [u8],
    },
}

/// A decoded record of an event array; [`crate::pcp::EventRecord`] is its form for sending.
#[derive(Clone, Debug, PartialEq)]
pub struct Event<'a> {
    /// Seconds since 1970.
    pub sec: i64,
    /// Microseconds, or nanoseconds in a high-resolution array.
    pub subsec: i64,
    /// Flags (`PM_EVENT_FLAG_*`).
    pub flags: u32,
    /// Number of missed records, in a "missed" record.
    pub missed: i32,
    /// Parameters; one of unknown type is an aggregate.
    pub params: Vec<EventParam<'a>>,
}

/// `PM_EVENT_FLAG_MISSED`.
pub(super) const MISSED: u32 = 0x8000_0000;

impl<'a> ValueSet<'a> {
    /// Makes a set with the format that its values need.
    pub fn new(pmid: Pmid, values: Result<Vec<(InstId, Value<'a>)>, PmErr>) -> Self {
        let format = values.as_ref().map_or(INSITU, |values| format_of(values));
        ValueSet { pmid, format, values }
    }

    /// Smallest size of a set in bytes: pmid and numval.
    pub(super) const MIN: usize = 8;

    /// Decodes pmid, numval; if there are values: valfmt, then instance and word of each. The words of pointer formats
    /// are kept as indexes until [`place_blocks`] resolves them.
    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let pmid = Pmid(r.u32("pmid")?);
        let numval = r.i32("number of values")?;
        if numval <= 0 {
            let values = if numval == 0 { Ok(Vec::new()) } else { Err(PmErr(numval)) };
            return Ok(ValueSet { pmid, format: INSITU, values });
        }
        let format = r.i32("value format")?;
        let n = r.bound(numval, 8, "values")?;
        let mut values = Vec::with_capacity(n);
        for _ in 0..n {
            values.push((r.u32("instance")?, Value::Insitu(r.u32("value")?)));
        }
        Ok(ValueSet { pmid, format, values: Ok(values) })
    }
}

/// Returns the format that values need: one for all of a set.
pub(super) fn format_of(values: &[(InstId, Value<'_>)]) -> i32 {
    match values.iter().any(|(_, value)| matches!(value, Value::Block { .. })) {
        true => POINTER,
        false => INSITU,
    }
}

/// Resolves the indexes of all sets. The blocks must follow the sets in the order in which they are referred to, each
/// with its own padding and nothing between them, as `__pmDecodeResult` requires.
pub(super) fn place_blocks<'a>(r: &mut Reader<'a>, sets: &mut [ValueSet<'a>]) -> Result<(), DecodeError> {
    for set in sets.iter_mut().filter(|set| set.format != INSITU) {
        for (_, value) in set.values.iter_mut().flatten() {
            let Value::Insitu(index) = *value else { continue };
            if index as usize != r.at() / 4 {
                return Err(DecodeError::Illegal("value block index", index as i32));
            }
            *value = block(r)?;
        }
    }
    Ok(())
}

/// Decodes type (8 bits) and length (24 bits, the word itself included), content, padding.
fn block<'a>(r: &mut Reader<'a>) -> Result<Value<'a>, DecodeError> {
    let (ty, len) = split(r.u32("value block")?);
    let len = len.checked_sub(4).ok_or(DecodeError::Illegal("value block length", len as i32))?;
    Ok(Value::Block { ty, bytes: r.padded(len, "value block")? })
}

/// Splits the first word of a value block or an event parameter into type and length.
fn split(word: u32) -> (Type, usize) {
    (Type((word >> 24) as i32), (word & 0xff_ffff) as usize)
}

impl<'a> Value<'a> {
    /// Returns the value in the type of its metric; a string ends at its first NUL. `None` if it is not of that type,
    /// and for event arrays, which [`Value::events`] reads.
    pub fn atom(&self, ty: Type) -> Option<Atom<'a>> {
        match *self {
            Value::Insitu(v) => match ty {
                Type::I32 => Some(Atom::I32(v as i32)),
                Type::U32 => Some(Atom::U32(v)),
                _ => None,
            },
            Value::Block { ty: sent, bytes } if sent == ty || sent == Type::UNKNOWN => match ty {
                Type::STRING => bytes.split(|&b| b == 0).next().map(Atom::Str),
                Type::AGGREGATE_STATIC => Some(Atom::Aggregate(bytes)),
                _ => atom(ty, bytes),
            },
            Value::Block { .. } => None,
        }
    }

    /// Decodes the records of an event array of either kind.
    pub fn events(&self) -> Result<Vec<Event<'a>>, DecodeError> {
        match *self {
            Value::Block { ty: ty @ (Type::EVENT | Type::HIGHRES_EVENT), bytes } => {
                events(&mut Reader::body(bytes), ty == Type::HIGHRES_EVENT)
            }
            Value::Block { ty, .. } => Err(DecodeError::Illegal("type of an event array", ty.0)),
            Value::Insitu(_) => Err(DecodeError::Illegal("type of an event array", Type::U32.0)),
        }
    }
}

/// Makes a value from all of `bytes`; a string has no NUL here, as in event parameters.
fn atom(ty: Type, bytes: &[u8]) -> Option<Atom<'_>> {
    let mut r = Reader::body(bytes);
    let atom = match ty {
        Type::I32 => Atom::I32(r.i32("value").ok()?),
        Type::U32 => Atom::U32(r.u32("value").ok()?),
        Type::I64 => Atom::I64(r.i64("value").ok()?),
        Type::U64 => Atom::U64(r.u64("value").ok()?),
        Type::FLOAT => Atom::Float(f32::from_bits(r.u32("value").ok()?)),
        Type::DOUBLE => Atom::Double(f64::from_bits(r.u64("value").ok()?)),
        Type::STRING => Atom::Str(r.rest()),
        Type::AGGREGATE => Atom::Aggregate(r.rest()),
        _ => return None,
    };
    r.finish("value").ok()?;
    Some(atom)
}

/// Decodes a count; per record: time stamp, flags, parameter count; per parameter: pmid, type and length, content,
/// padding.
fn events<'a>(r: &mut Reader<'a>, highres: bool) -> Result<Vec<Event<'a>>, DecodeError> {
    let n = r.count(if highres { 24 } else { 16 }, "event records")?;
    let mut records = Vec::with_capacity(n);
    for _ in 0..n {
        let (sec, subsec) = match highres {
            true => (r.i64("event time")?, r.i64("event time")?),
            false => (r.i32("event time")?.into(), r.i32("event time")?.into()),
        };
        let flags = r.u32("event flags")?;
        let count = r.i32("event parameters")?;
        if flags & MISSED != 0 {
            records.push(Event { sec, subsec, flags, missed: count, params: Vec::new() });
            continue;
        }
        let mut params = Vec::with_capacity(r.bound(count, 8, "event parameters")?);
        for _ in 0..count {
            let pmid = Pmid(r.u32("event parameter")?);
            let Value::Block { ty, bytes } = block(r)? else { continue };
            params.push(EventParam { pmid, value: atom(ty, bytes).unwrap_or(Atom::Aggregate(bytes)) });
        }
        records.push(Event { sec, subsec, flags, missed: 0, params });
    }
    r.finish("event array")?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_type_than_the_metric_is_no_atom() {
        assert_eq!(Value::Insitu(u32::MAX).atom(Type::I32), Some(Atom::I32(-1)));
        assert_eq!(Value::Insitu(1).atom(Type::FLOAT), None);
        let double = Value::Block { ty: Type::DOUBLE, bytes: &[0xc0, 4, 0, 0, 0, 0, 0, 0] };
        assert_eq!(double.atom(Type::DOUBLE), Some(Atom::Double(-2.5)));
        assert_eq!(double.atom(Type::U64), None);
        assert_eq!(Value::Block { ty: Type::U64, bytes: &[0; 7] }.atom(Type::U64), None);
        assert_eq!(Value::Block { ty: Type::U64, bytes: &[0; 9] }.atom(Type::U64), None);
    }

    #[test]
    fn a_string_ends_at_its_nul() {
        for bytes in [&b"hello\0"[..], b"hello", b"hello\0rest\0"] {
            assert_eq!(Value::Block { ty: Type::STRING, bytes }.atom(Type::STRING), Some(Atom::Str(b"hello")));
        }
        assert_eq!(Value::Block { ty: Type::STRING, bytes: b"" }.atom(Type::STRING), Some(Atom::Str(b"")));
    }
}
