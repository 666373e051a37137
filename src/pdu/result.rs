//! RESULT in both directions. A reply is written directly into its buffer: value sets go there, blocks are collected
//! separately and appended at the end, when their offset is known.

use super::{
    codec::{negative, DecodeError, Reader, Writer},
    types::PduType,
    value::{format_of, place_blocks, Value, ValueSet, INSITU, MISSED, POINTER, POINTER_STATIC},
};
use crate::pcp::{Atom, EventRecord, InstId, PmErr, Pmid, Type};

/// Largest length of a value block, whose field has 24 bits.
const MAX_BLOCK: usize = 0xff_ffff;
/// Largest length of a PDU, which pmcd reads as a signed word.
const MAX_PDU: usize = i32::MAX as usize;

/// Values of several metrics: the reply to a fetch, or a store.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultSet<'a> {
    /// Time stamp. From an agent: state-change bits and zero; in a store: undefined.
    pub stamp: [i32; 2],
    /// Value sets, one per requested metric, in that order.
    pub sets: Vec<ValueSet<'a>>,
}

impl<'a> ResultSet<'a> {
    /// Decodes two words of time stamp, number of sets, sets, blocks.
    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let stamp = [r.i32("time stamp")?, r.i32("time stamp")?];
        let n = r.count(ValueSet::MIN, "value sets")?;
        Ok(ResultSet { stamp, sets: decode_sets(r, n)? })
    }

    pub(super) fn encode(&self, mut w: Writer<'_>) {
        w.i32(self.stamp[0]);
        w.i32(self.stamp[1]);
        w.count(self.sets.len());
        encode_sets(w, &self.sets);
    }
}

/// Decodes `n` sets, then their blocks.
pub(super) fn decode_sets<'a>(r: &mut Reader<'a>, n: usize) -> Result<Vec<ValueSet<'a>>, DecodeError> {
    let mut sets = Vec::with_capacity(n);
    for _ in 0..n {
        sets.push(ValueSet::decode(r)?);
    }
    place_blocks(r, &mut sets)?;
    Ok(sets)
}

/// Encodes the value sets at the end of a PDU. A set has one format: an in-situ value among blocks becomes a block.
pub(super) fn encode_sets(w: Writer<'_>, list: &[ValueSet<'_>]) {
    let mut writer = ResultWriter::new();
    let mut sets = writer.sets(w);
    for set in list {
        sets.open(set.pmid);
        let values = match &set.values {
            Ok(values) => values,
            Err(code) => {
                sets.fail(negative(*code));
                continue;
            }
        };
        let format = match format_of(values) {
            POINTER if set.format != INSITU => set.format,
            format => format,
        };
        for (inst, value) in values {
            match *value {
                Value::Insitu(v) if format == INSITU => sets.word(*inst, v),
                Value::Insitu(v) => sets.block(*inst, format, Type::U32, |w| w.u32(v)),
                Value::Block { ty, bytes } => sets.block(*inst, format, ty, |w| w.bytes(bytes)),
            }
        }
    }
    sets.finish();
}

/// A writer of replies to fetches; it keeps its buffers, so that it stops allocating once they have grown.
#[derive(Debug, Default)]
pub struct ResultWriter {
    blocks: Vec<u8>,
    pointers: Vec<Pointers>,
}

/// A run of values with blocks in a set: offset of the first index, and their number.
#[derive(Debug)]
struct Pointers {
    at: usize,
    count: usize,
}

/// Size of a value in a set: instance and index, in bytes.
const VALUE: usize = 8;
/// Size of the block of a 64-bit number, in bytes.
const NUMBER: usize = 12;

impl ResultWriter {
    /// Makes a writer with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a RESULT with `sets` value sets to `out`. `stamp` holds the state-change bits, 0 if there is no change.
    pub fn begin<'w>(&'w mut self, out: &'w mut Vec<u8>, from: i32, stamp: u32, sets: usize) -> ResultBuilder<'w> {
        let mut w = Writer::pdu(out, PduType::RESULT, from);
        w.u32(stamp);
        w.u32(0);
        let count_at = w.at();
        w.count(sets);
        ResultBuilder { sets: self.sets(w), count_at, promised: sets }
    }

    fn sets<'w>(&'w mut self, w: Writer<'w>) -> Sets<'w> {
        self.blocks.clear();
        self.pointers.clear();
        let blocks = Writer::new(&mut self.blocks);
        Sets { w, blocks, pointers: &mut self.pointers, count: 0, set: Open { numval: -1, ..Open::default() } }
    }
}

/// A RESULT being written: for each metric `metric`, then either `value` for each instance or `fail`.
pub struct ResultBuilder<'w> {
    sets: Sets<'w>,
    count_at: usize,
    promised: usize,
}

impl ResultBuilder<'_> {
    /// Starts the next value set, without values at first.
    pub fn metric(&mut self, pmid: Pmid) {
        self.sets.open(pmid);
    }

    /// Adds a value; [`crate::pcp::IN_NULL`] is the instance of a single one. A value too long for a block makes the
    /// metric fail with `PM_ERR_TOOBIG`, one of another format than the values before it with `PM_ERR_TYPE`.
    pub fn value(&mut self, inst: InstId, value: &Atom<'_>) {
        let ty = value.ty();
        match *value {
            Atom::I32(v) => self.sets.word(inst, v as u32),
            Atom::U32(v) => self.sets.word(inst, v),
            Atom::Event(records) => self.sets.block(inst, POINTER_STATIC, ty, |w| events(w, records, false)),
            Atom::HighresEvent(records) => self.sets.block(inst, POINTER_STATIC, ty, |w| events(w, records, true)),
            Atom::Str(v) => self.sets.block(inst, POINTER, ty, |w| {
                w.bytes(v);
                w.u8(0);
            }),
            _ => self.sets.block(inst, POINTER, ty, |w| plain(w, value)),
        }
    }

    /// Adds 64-bit numbers, as [`ResultBuilder::value`] adds one.
    pub fn numbers(&mut self, numbers: &[(InstId, u64)]) {
        self.sets.numbers(numbers);
    }

    /// Sets the reason why the metric has no values; ignored if it has one.
    pub fn fail(&mut self, code: PmErr) {
        self.sets.fail(code.sendable());
    }

    /// Appends the blocks to the sets and fills in lengths and indexes.
    pub fn finish(mut self) {
        let count = self.sets.count;
        debug_assert_eq!(count, self.promised, "pmcd drops an agent that answers with another number of metrics");
        self.sets.w.patch(self.count_at, count as u32);
        self.sets.finish();
    }
}

/// Value sets at the end of a PDU, and their blocks.
struct Sets<'w> {
    w: Writer<'w>,
    blocks: Writer<'w>,
    /// Places of the indexes of blocks in `w`; they count from the first block until its offset is known.
    pointers: &'w mut Vec<Pointers>,
    count: usize,
    set: Open,
}

/// The set being written, and the state to return to if it fails.
#[derive(Default)]
struct Open {
    at: usize,
    blocks_at: usize,
    pointers_at: usize,
    format: i32,
    /// Number of values as on the wire: negative once the set has failed, and before the first one is started.
    numval: i32,
}

impl Sets<'_> {
    fn open(&mut self, pmid: Pmid) {
        self.set = Open {
            at: self.w.at(),
            blocks_at: self.blocks.at(),
            pointers_at: self.pointers.len(),
            format: INSITU,
            numval: 0,
        };
        self.count += 1;
        self.w.u32(pmid.0);
        self.w.i32(0);
    }

    fn word(&mut self, inst: InstId, v: u32) {
        if self.next(inst, INSITU) {
            self.w.u32(v);
        }
    }

    fn block(&mut self, inst: InstId, format: i32, ty: Type, content: impl FnOnce(&mut Writer<'_>)) {
        if !self.next(inst, format) {
            return;
        }
        let at = self.blocks.at();
        self.point(self.w.at(), 1);
        self.w.count(at / 4);
        self.blocks.u32(0);
        content(&mut self.blocks);
        let len = self.blocks.at() - at;
        if len > MAX_BLOCK || self.blocks.at() + self.w.at() > MAX_PDU {
            return self.abandon(PmErr::TOOBIG);
        }
        self.blocks.patch(at, tag(ty, len));
        self.blocks.pad(len);
    }

    /// Adds a block for each number.
    fn numbers(&mut self, numbers: &[(InstId, u64)]) {
        if numbers.is_empty() || !self.more(numbers.len(), POINTER) {
            return;
        }
        let mut index = (self.blocks.at() / 4) as u32;
        if self.blocks.at() + self.w.at() + numbers.len() * (VALUE + NUMBER) > MAX_PDU {
            return self.abandon(PmErr::TOOBIG);
        }
        self.point(self.w.at() + 4, numbers.len());
        let values = self.w.room(numbers.len() * VALUE).chunks_exact_mut(VALUE);
        let blocks = self.blocks.room(numbers.len() * NUMBER).chunks_exact_mut(NUMBER);
        let tag = tag(Type::U64, NUMBER);
        for ((value, block), (inst, number)) in values.zip(blocks).zip(numbers) {
            value.copy_from_slice(&(u64::from(*inst) << 32 | u64::from(index)).to_be_bytes());
            block[..4].copy_from_slice(&tag.to_be_bytes());
            block[4..].copy_from_slice(&number.to_be_bytes());
            index += (NUMBER / 4) as u32;
        }
    }

    /// Records where the indexes of a run of values are.
    fn point(&mut self, at: usize, count: usize) {
        match self.pointers.last_mut() {
            Some(last) if last.at + last.count * VALUE == at => last.count += count,
            _ => self.pointers.push(Pointers { at, count }),
        }
    }

    /// Makes room for the next value of the set, which must have this format; false if the set has failed.
    fn next(&mut self, inst: InstId, format: i32) -> bool {
        let has_place = self.more(1, format);
        if has_place {
            self.w.u32(inst);
        }
        has_place
    }

    /// Counts further values, which must have this format; false if the set has failed.
    fn more(&mut self, count: usize, format: i32) -> bool {
        if self.set.numval == 0 {
            self.w.i32(format);
            self.set.format = format;
        } else if self.set.numval > 0 && self.set.format != format {
            self.abandon(PmErr::TYPE);
        }
        if self.set.numval < 0 {
            return false;
        }
        self.set.numval += count as i32;
        self.w.patch(self.set.at + 4, self.set.numval as u32);
        true
    }

    fn fail(&mut self, code: PmErr) {
        if self.set.numval == 0 {
            self.abandon(code);
        }
    }

    /// Turns the set into an error and drops its values.
    fn abandon(&mut self, code: PmErr) {
        self.w.truncate(self.set.at + 8);
        self.blocks.truncate(self.set.blocks_at);
        self.pointers.truncate(self.set.pointers_at);
        self.set.numval = code.0;
        self.w.patch(self.set.at + 4, code.0 as u32);
    }

    fn finish(mut self) {
        let first = (self.w.at() / 4) as u32;
        for Pointers { at, count } in self.pointers.iter() {
            for place in (0..*count).map(|number| at + number * VALUE) {
                let index = self.w.word_at(place);
                self.w.patch(place, first + index);
            }
        }
        self.w.bytes(self.blocks.written());
        self.w.finish();
    }
}

/// Returns the first word of a value block or an event parameter.
fn tag(ty: Type, len: usize) -> u32 {
    (ty.0 as u32) << 24 | len as u32
}

/// Writes the content of a block or an event parameter; a string without NUL.
fn plain(w: &mut Writer<'_>, value: &Atom<'_>) {
    match *value {
        Atom::I32(v) => w.i32(v),
        Atom::U32(v) => w.u32(v),
        Atom::I64(v) => w.i64(v),
        Atom::U64(v) => w.u64(v),
        Atom::Float(v) => w.u32(v.to_bits()),
        Atom::Double(v) => w.u64(v.to_bits()),
        Atom::Str(v) | Atom::Aggregate(v) => w.bytes(v),
        // Event arrays do not nest.
        Atom::Event(_) | Atom::HighresEvent(_) => {}
    }
}

/// Writes an event array. The C library drops the count of missed records in a high-resolution array and pads
/// parameters with zeros (`libpcp/src/events.c`); so does this.
fn events(w: &mut Writer<'_>, records: &[EventRecord<'_>], highres: bool) {
    w.count(records.len());
    for record in records {
        if highres {
            w.i64(record.sec);
            w.i64(record.subsec);
        } else {
            w.i32(record.sec as i32);
            w.i32(record.subsec as i32);
        }
        w.u32(record.flags);
        if record.flags & MISSED != 0 {
            w.i32(if highres { 0 } else { record.missed });
            continue;
        }
        w.count(record.params.len());
        for param in record.params {
            w.u32(param.pmid.0);
            let at = w.at();
            w.u32(0);
            plain(w, &param.value);
            let len = w.at() - at;
            // A parameter too long for its length field makes the block too long too, and the metric fails.
            w.patch(at, tag(param.value.ty(), len));
            w.zeros(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::IN_NULL;

    fn words(out: &[u8]) -> Vec<u32> {
        out.chunks(4).map(|b| u32::from_be_bytes(b.try_into().expect("whole words"))).collect()
    }

    #[test]
    fn blocks_follow_the_sets_and_are_indexed_from_the_pdu() {
        let (mut writer, mut out) = (ResultWriter::new(), vec![0; 5]);
        let mut b = writer.begin(&mut out, 0, 8, 3);
        b.metric(Pmid(1));
        b.value(3, &Atom::Str(b"a"));
        b.value(4, &Atom::Str(b"a"));
        b.metric(Pmid(2));
        b.value(IN_NULL, &Atom::I32(-1));
        b.metric(Pmid(3));
        b.fail(PmErr(0));
        b.finish();
        #[rustfmt::skip]
        let expected = [
            96, 0x7001, 0, 8, 0, 3,
            1, 2, 1, 3, 20, 4, 22,
            2, 1, 0, u32::MAX, u32::MAX,
            3, PmErr::GENERIC.0 as u32,
            0x0600_0006, 0x6100_7e7e, 0x0600_0006, 0x6100_7e7e,
        ];
        assert_eq!(words(&out[5..]), expected);
    }

    #[test]
    fn a_block_beyond_24_bits_costs_its_metric_and_no_other() {
        let (mut writer, mut out) = (ResultWriter::new(), Vec::new());
        let longest = vec![0; MAX_BLOCK - 4];
        let mut b = writer.begin(&mut out, 0, 0, 2);
        b.metric(Pmid(1));
        b.value(0, &Atom::U64(7));
        b.value(1, &Atom::Str(&longest));
        b.value(2, &Atom::U64(7));
        b.metric(Pmid(2));
        b.value(0, &Atom::Aggregate(&longest));
        b.finish();
        let head = words(&out[..48]);
        assert_eq!(head[6..], [1, PmErr::TOOBIG.0 as u32, 2, 1, 1, 0]);
        assert_eq!(words(&out[48..56]), [13, 0x07ff_ffff]);
        assert_eq!(out.len(), 52 + MAX_BLOCK + 1);
    }

    #[test]
    fn values_of_two_formats_in_one_set_fail_the_set() {
        let (mut writer, mut out) = (ResultWriter::new(), Vec::new());
        let mut b = writer.begin(&mut out, 0, 0, 1);
        b.metric(Pmid(1));
        b.value(0, &Atom::U64(7));
        b.value(1, &Atom::U32(7));
        b.value(2, &Atom::U64(7));
        b.finish();
        assert_eq!(words(&out), [32, 0x7001, 0, 0, 0, 1, 1, PmErr::TYPE.0 as u32]);
    }

    #[test]
    fn numbers_at_once_are_what_they_are_one_by_one() {
        let numbers: Vec<(InstId, u64)> =
            (0..200).map(|number| (number * 3, u64::MAX / (u64::from(number) + 1))).collect();
        let written = |at_once: usize| {
            let (mut writer, mut out) = (ResultWriter::new(), Vec::new());
            let mut b = writer.begin(&mut out, 0, 0, 4);
            for (set, numbers) in [&numbers[..], &numbers[..1], &[], &numbers[9..]].into_iter().enumerate() {
                b.metric(Pmid(set as u32));
                b.numbers(&[]);
                for run in numbers.chunks(at_once) {
                    match at_once {
                        1 => b.value(run[0].0, &Atom::U64(run[0].1)),
                        _ => b.numbers(run),
                    }
                }
            }
            b.finish();
            out
        };
        assert_eq!(words(&written(7)), words(&written(1)));
        assert_eq!(words(&written(200)), words(&written(1)));
    }

    #[test]
    fn numbers_among_values_of_another_format_fail_the_set() {
        let (mut writer, mut out) = (ResultWriter::new(), Vec::new());
        let mut b = writer.begin(&mut out, 0, 0, 2);
        b.metric(Pmid(1));
        b.value(0, &Atom::U32(7));
        b.numbers(&[(1, 7), (2, 8)]);
        b.metric(Pmid(2));
        b.numbers(&[(1, 7)]);
        b.finish();
        let numbers = [2, 1, POINTER as u32, 1, 13, 0x0300_000c, 0, 7];
        assert_eq!(words(&out)[6..], [&[1, PmErr::TYPE.0 as u32][..], &numbers].concat());
    }

    #[test]
    fn nothing_is_allocated_once_the_buffers_have_grown() {
        let (mut writer, mut out) = (ResultWriter::new(), Vec::new());
        let mut grown = None;
        for round in 0..4 {
            out.clear();
            let mut b = writer.begin(&mut out, 0, 0, 50);
            for item in 0..50 {
                b.metric(Pmid::new(149, 0, item));
                for inst in 0..20 {
                    b.value(inst, &Atom::U64(u64::from(inst * round)));
                }
            }
            b.finish();
            let now = (out.capacity(), writer.blocks.capacity(), writer.pointers.capacity());
            assert_eq!(*grown.get_or_insert(now), now);
        }
    }
}
