//! Cuts the byte stream from a peer into frames: bytes in; whole PDUs, "need more" or an error out. No I/O.

use thiserror::Error;

use super::{
    codec::{word, HEADER},
    types::PduType,
};

/// A PDU that is not decoded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Type.
    pub ty: PduType,
    /// Sender. From pmcd: the slot of the client on whose behalf it asks; the process id in CREDS.
    pub from: i32,
    /// Bytes after the 12 bytes of header.
    pub body: &'a [u8],
}

/// A reason why the stream cannot be cut any further. The next PDU cannot be found, so the connection has to end, as in
/// `libpcp/src/pdu.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A length shorter than the header or larger than [`Deframer::MAX`].
    #[error("pdu length {0}: expected {HEADER} to {max}", max = Deframer::MAX)]
    Length(i32),
    /// A negative type.
    #[error("pdu type {0:#x}: expected a positive number")]
    Type(i32),
}

/// Collects bytes and hands out the frames in them.
#[derive(Debug, Default)]
pub struct Deframer {
    /// Buffer: `buf[start..end]` holds received bytes that are not yet consumed.
    buf: Vec<u8>,
    start: usize,
    end: usize,
    /// Length of the last returned frame, which the following call consumes.
    taken: usize,
}

impl Deframer {
    /// Longest accepted PDU in bytes: pmcd passes on requests of at most 64 KiB by default (`pmcd -L`), and one value
    /// block of a store holds at most 16 MiB.
    pub const MAX: usize = 16 << 20;
    /// Smallest room for one read, in bytes: most requests fit in it, with the profile before them.
    const SPARE: usize = 8 << 10;
    /// Largest empty buffer that is kept, in bytes.
    const KEEP: usize = 256 << 10;

    /// Makes an empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns room for the next read, at least 8 KiB. It grows with the bytes received, up to the size of the frame,
    /// so that a large claimed length costs nothing before its bytes arrive.
    pub fn spare(&mut self) -> &mut [u8] {
        self.consume();
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buf.len() - self.end < Self::SPARE {
            let wanted = if self.end < 4 { 0 } else { word(&self.buf) as usize };
            let len = wanted.min(2 * self.end).max(self.end + Self::SPARE);
            self.buf.resize(len, 0);
        }
        &mut self.buf[self.end..]
    }

    /// Takes over `n` bytes that were read into [`Deframer::spare`].
    pub fn filled(&mut self, n: usize) {
        debug_assert!(n <= self.buf.len() - self.end, "more bytes than there was room for");
        self.end = self.buf.len().min(self.end + n);
    }

    /// Returns the next whole frame; `None` if more bytes are needed. An error is permanent.
    #[allow(clippy::should_implement_trait)] // the frames borrow from the deframer, which no iterator can do
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        self.consume();
        let held = &self.buf[self.start..self.end];
        if held.len() < 4 {
            return Ok(None);
        }
        let len = match word(held) {
            len if (HEADER..=Self::MAX).contains(&(len as usize)) => len as usize,
            len => return Err(FrameError::Length(len as i32)),
        };
        if held.len() < HEADER {
            return Ok(None);
        }
        let ty = word(&held[4..]) as i32;
        if ty < 0 {
            return Err(FrameError::Type(ty));
        }
        if held.len() < len {
            return Ok(None);
        }
        self.taken = len;
        Ok(Some(Frame { ty: PduType(ty), from: word(&held[8..]) as i32, body: &held[HEADER..len] }))
    }

    /// True if no part of a frame is held: the end of the stream is a clean end here.
    pub fn is_empty(&self) -> bool {
        self.start + self.taken == self.end
    }

    fn consume(&mut self) {
        self.start += std::mem::take(&mut self.taken);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buf.len() > Self::KEEP {
                self.buf = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(d: &mut Deframer, bytes: &[u8]) {
        d.spare()[..bytes.len()].copy_from_slice(bytes);
        d.filled(bytes.len());
    }

    const ERROR: [u8; 16] = [0, 0, 0, 16, 0, 0, 0x70, 0, 0, 0, 0, 3, 0xff, 0xff, 0xcf, 0xba];

    #[test]
    fn a_frame_is_consumed_by_the_following_call() {
        let mut d = Deframer::new();
        feed(&mut d, &ERROR);
        assert!(!d.is_empty());
        let frame = d.next().expect("good length").expect("whole frame");
        assert_eq!((frame.ty, frame.from, frame.body), (PduType::ERROR, 3, &ERROR[12..]));
        assert!(d.is_empty());
        assert_eq!(d.next(), Ok(None));
        assert!(d.spare().len() >= Deframer::SPARE);
    }

    #[test]
    fn a_claimed_length_allocates_nothing() {
        let mut d = Deframer::new();
        feed(&mut d, &(Deframer::MAX as u32).to_be_bytes());
        assert_eq!(d.next(), Ok(None));
        assert!(d.spare().len() < 2 * Deframer::SPARE);
        assert!(d.buf.len() < 3 * Deframer::SPARE);
    }

    #[test]
    fn the_room_of_a_large_frame_is_given_back() {
        let mut d = Deframer::new();
        let mut left = 1 << 20;
        feed(&mut d, &(left as u32).to_be_bytes());
        left -= 4;
        while left > 0 {
            let n = d.spare().len().min(left);
            d.spare()[..n].fill(1);
            d.filled(n);
            left -= n;
        }
        let frame = d.next().expect("good length").expect("whole frame");
        assert_eq!(frame.body.len(), (1 << 20) - HEADER);
        assert!(d.buf.len() <= 1 << 20);
        d.spare();
        assert_eq!(d.buf.len(), Deframer::SPARE);
    }
}
