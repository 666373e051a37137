//! The only place that parses and builds bytes: `Reader` takes words, strings and counts off a PDU body, `Writer`
//! appends a PDU to a buffer. Everything is big-endian; strings are padded to four bytes (`libpcp/src/p_*.c`).

use byteorder::{BigEndian, ByteOrder};
use thiserror::Error;

use super::types::PduType;
use crate::pcp::{Desc, Indom, InstId, PmErr, Pmid, Sem, Type, Units};

/// Length of the header: PDU length, type, sender.
pub(super) const HEADER: usize = 12;

/// Padding as written by the C library; receivers ignore it. The same bytes here make captured PDUs comparable.
const PAD: &[u8] = b"~~~";

/// A reason why a body does not match its type. The names are those of the fields being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The PDU ends inside a field.
    #[error("{0}: the pdu ends inside it")]
    Short(&'static str),
    /// Bytes follow the last field.
    #[error("{0}: {1} bytes follow the last field")]
    Trailing(&'static str, usize),
    /// A count that is negative or larger than what the remaining bytes can hold.
    #[error("{what}: {count} of them cannot be in the {left} bytes left")]
    Count {
        /// Name of the counted items.
        what: &'static str,
        /// Count as received.
        count: i32,
        /// Number of bytes left.
        left: usize,
    },
    /// A number the protocol does not allow in this place.
    #[error("{0}: {1} is not allowed here")]
    Illegal(&'static str, i32),
}

/// Returns the first big-endian word of `bytes`, which holds at least four.
pub(super) fn word(bytes: &[u8]) -> u32 {
    BigEndian::read_u32(bytes)
}

/// Returns the number of padding bytes up to the next multiple of four.
pub(super) const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Returns an error code for a field where a count would be: a code that is not negative would be taken for the count.
pub(super) fn negative(code: PmErr) -> PmErr {
    if code.0 < 0 {
        code
    } else {
        PmErr::GENERIC
    }
}

/// An element of lists: decode and encode in the same order.
pub(super) trait Wire<'a>: Sized {
    /// Smallest encoded size in bytes; bounds a count before anything is allocated for it.
    const MIN: usize;
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
    fn encode(&self, w: &mut Writer<'_>);
}

/// Takes fields off the front of a body; every read names its field.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads a PDU body, the bytes after the header.
    pub fn body(body: &'a [u8]) -> Self {
        Reader { rest: body, at: HEADER }
    }

    /// Returns the offset of the next byte from the start of the PDU, header included.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn left(&self) -> usize {
        self.rest.len()
    }

    pub fn bytes(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Short(what))?;
        self.rest = rest;
        self.at += n;
        Ok(taken)
    }

    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.bytes(1, what).map(|b| b[0])
    }

    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.bytes(2, what).map(BigEndian::read_u16)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.bytes(4, what).map(BigEndian::read_u32)
    }

    pub fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        self.bytes(4, what).map(BigEndian::read_i32)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.bytes(8, what).map(BigEndian::read_u64)
    }

    pub fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        self.bytes(8, what).map(BigEndian::read_i64)
    }

    /// Reads a count of elements of at least `min` bytes each, all of which follow.
    pub fn count(&mut self, min: usize, what: &'static str) -> Result<usize, DecodeError> {
        let count = self.i32(what)?;
        self.bound(count, min, what)
    }

    /// Returns `count` as a number of elements of at least `min` bytes, if the rest of the body can hold as many.
    pub fn bound(&self, count: i32, min: usize, what: &'static str) -> Result<usize, DecodeError> {
        let left = self.left();
        match usize::try_from(count) {
            Ok(n) if n <= left / min => Ok(n),
            _ => Err(DecodeError::Count { what, count, left }),
        }
    }

    /// Reads a list whose count was bounded by [`Reader::count`].
    pub fn list<T: Wire<'a>>(&mut self, n: usize) -> Result<Vec<T>, DecodeError> {
        (0..n).map(|_| T::decode(self)).collect()
    }

    /// Reads `n` bytes and the padding after them.
    pub fn padded(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let taken = self.bytes(n, what)?;
        self.bytes(padding(n), what)?;
        Ok(taken)
    }

    /// Reads a length, that many bytes, padding.
    pub fn string(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let n = self.count(1, what)?;
        self.padded(n, what)
    }

    /// Reads everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = std::mem::take(&mut self.rest);
        self.at += rest.len();
        rest
    }

    /// Returns an error if anything is left.
    pub fn finish(&self, what: &'static str) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            n => Err(DecodeError::Trailing(what, n)),
        }
    }
}

/// Appends fields to a buffer that may hold earlier PDUs; lengths and indexes are patched in afterwards.
pub(super) struct Writer<'w> {
    out: &'w mut Vec<u8>,
    start: usize,
}

impl<'w> Writer<'w> {
    /// Appends to `out` without a header.
    pub fn new(out: &'w mut Vec<u8>) -> Self {
        let start = out.len();
        Writer { out, start }
    }

    /// Appends a header, whose length [`Writer::finish`] fills in.
    pub fn pdu(out: &'w mut Vec<u8>, ty: PduType, from: i32) -> Self {
        let mut w = Writer::new(out);
        w.u32(0);
        w.i32(ty.0);
        w.i32(from);
        w
    }

    /// Sets the length in the header.
    pub fn finish(self) {
        let mut w = self;
        w.patch(0, w.at() as u32);
    }

    /// Returns the number of bytes written so far, from the start of the PDU: the offset of the next one.
    pub fn at(&self) -> usize {
        self.out.len() - self.start
    }

    /// Returns the bytes written so far.
    pub fn written(&self) -> &[u8] {
        &self.out[self.start..]
    }

    /// Drops the bytes after `at`.
    pub fn truncate(&mut self, at: usize) {
        self.out.truncate(self.start + at);
    }

    /// Appends this many bytes and returns them, to be written to.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.out.len();
        self.out.resize(start + len, 0);
        &mut self.out[start..]
    }

    /// Returns the word written at `at`.
    pub fn word_at(&self, at: usize) -> u32 {
        word(&self.out[self.start + at..])
    }

    /// Overwrites the word written at `at`.
    pub fn patch(&mut self, at: usize, v: u32) {
        BigEndian::write_u32(&mut self.out[self.start + at..][..4], v);
    }

    pub fn u8(&mut self, v: u8) {
        self.out.push(v);
    }

    pub fn u16(&mut self, v: u16) {
        let mut b = [0; 2];
        BigEndian::write_u16(&mut b, v);
        self.bytes(&b);
    }

    pub fn u32(&mut self, v: u32) {
        let mut b = [0; 4];
        BigEndian::write_u32(&mut b, v);
        self.bytes(&b);
    }

    pub fn i32(&mut self, v: i32) {
        self.u32(v as u32);
    }

    pub fn u64(&mut self, v: u64) {
        let mut b = [0; 8];
        BigEndian::write_u64(&mut b, v);
        self.bytes(&b);
    }

    pub fn i64(&mut self, v: i64) {
        self.u64(v as u64);
    }

    /// Appends a count or a length. Those of the agent stay far below 2^31, since such a reply would not fit in memory
    /// twice.
    pub fn count(&mut self, n: usize) {
        self.u32(n as u32);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends the padding for `len` bytes.
    pub fn pad(&mut self, len: usize) {
        self.bytes(&PAD[..padding(len)]);
    }

    /// Appends the padding for `len` bytes as zeros.
    pub fn zeros(&mut self, len: usize) {
        self.bytes(&[0; 3][..padding(len)]);
    }

    /// Appends a length, the bytes, padding.
    pub fn string(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes(bytes);
        self.pad(bytes.len());
    }

    pub fn list<'a, T: Wire<'a>>(&mut self, list: &[T]) {
        for item in list {
            item.encode(self);
        }
    }
}

impl Wire<'_> for Pmid {
    const MIN: usize = 4;

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.u32("pmid").map(Pmid)
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.0);
    }
}

impl Wire<'_> for InstId {
    const MIN: usize = 4;

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.u32("instance")
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(*self);
    }
}

/// Five words: pmid, type, indom, semantics, units.
impl Wire<'_> for Desc {
    const MIN: usize = 20;

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Desc {
            pmid: Pmid(r.u32("pmid")?),
            ty: Type(r.i32("type")?),
            indom: Indom(r.u32("indom")?),
            sem: Sem(r.i32("semantics")?),
            units: Units(r.u32("units")?),
        })
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.pmid.0);
        w.i32(self.ty.0);
        w.u32(self.indom.0);
        w.i32(self.sem.0);
        w.u32(self.units.0);
    }
}

/// An instance and its name: id, length, padded name.
impl<'a> Wire<'a> for (InstId, &'a [u8]) {
    const MIN: usize = 8;

    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((r.u32("instance")?, r.string("instance name")?))
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.0);
        w.string(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_beyond_the_bytes_left_is_refused_before_reading() {
        let mut r = Reader::body(&[0x7f, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
        let count = DecodeError::Count { what: "things", count: i32::MAX, left: 4 };
        assert_eq!(r.count(4, "things"), Err(count));
        assert_eq!(count.to_string(), "things: 2147483647 of them cannot be in the 4 bytes left");
    }

    #[test]
    fn strings_are_padded_to_words_beyond_their_length() {
        let mut out = Vec::new();
        Writer::new(&mut out).string(b"abcde");
        assert_eq!(out, b"\0\0\0\x05abcde~~~");
        let mut r = Reader::body(&out);
        assert_eq!(r.string("name"), Ok(&b"abcde"[..]));
        assert_eq!(r.finish("pdu"), Ok(()));
    }
}
