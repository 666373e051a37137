//! PCP's protocol data units. Only the framing so far, for the transport to be built on; the codec brings its own.

use thiserror::Error;

/// The type word of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduType(pub i32);

/// One PDU as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it is.
    pub ty: PduType,
    /// The client slot, or a process id.
    pub from: i32,
    /// What follows the header of 12 bytes.
    pub body: &'a [u8],
}

/// Why a stream cannot be cut any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Shorter than a header or longer than [`Deframer::MAX`].
    #[error("bad PDU length {0}")]
    Length(i32),
    /// Negative.
    #[error("bad PDU type {0}")]
    Type(i32),
}

/// Cuts a byte stream into frames; no descriptor in sight.
#[derive(Debug, Default)]
pub struct Deframer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Deframer {
    /// pmcd passes on requests of clients, which it limits to 64 KiB by default; this is far more than any real one.
    pub const MAX: usize = 16 << 20;
    const HEADER: usize = 12;
    const READ: usize = 4096;

    /// An empty one.
    pub fn new() -> Deframer {
        Deframer::default()
    }

    /// Room to read into.
    pub fn spare(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() - self.end < Self::READ {
            self.buffer.resize(self.end + Self::READ, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// `n` bytes were read into what [`Deframer::spare`] gave.
    pub fn filled(&mut self, n: usize) {
        self.end = (self.end + n).min(self.buffer.len());
    }

    /// The next whole frame; `None` if more bytes are needed.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let held = &self.buffer[self.start..self.end];
        let word = |at: usize| held.get(at..at + 4)?.try_into().ok().map(i32::from_be_bytes);
        let (Some(len), Some(ty), Some(from)) = (word(0), word(4), word(8)) else {
            return Ok(None);
        };
        let size = usize::try_from(len).ok().filter(|size| (Self::HEADER..=Self::MAX).contains(size));
        let size = size.ok_or(FrameError::Length(len))?;
        if ty < 0 {
            return Err(FrameError::Type(ty));
        }
        if held.len() < size {
            return Ok(None);
        }
        let body = self.start + Self::HEADER..self.start + size;
        self.start += size;
        Ok(Some(Frame { ty: PduType(ty), from, body: &self.buffer[body] }))
    }

    /// Whether no half frame is held.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}
