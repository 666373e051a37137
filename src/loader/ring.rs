//! Reading a BPF ring buffer (`kernel/bpf/ringbuf.c`): a page with the consumer's position, a page with the producer's, then
//! the data twice in a row, so that a record never wraps.

use super::mapping::Mapping;
use super::{held, page};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::Mutex;

const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
/// Size of the header before each record, in bytes: length and page offset.
const HEADER: usize = 8;

/// A ring buffer map.
pub struct Ring {
    fd: OwnedFd,
    consumer: Mapping,
    producer: Mapping,
    /// Mapping of the data, only while records come: it counts as resident memory of twice the ring's size.
    data: Mutex<Option<Mapping>>,
    page: usize,
    size: usize,
}

impl Ring {
    /// Maps the ring of a map's descriptor; `size` is its size in bytes, a power of two.
    pub fn new(fd: OwnedFd, size: usize) -> nix::Result<Ring> {
        let page = page()?;
        let consumer = Mapping::new(fd.as_fd(), page, 0, true)?;
        let producer = Mapping::new(fd.as_fd(), page, page, false)?;
        Ok(Ring { fd, consumer, producer, data: Mutex::default(), page, size })
    }

    /// Returns the descriptor, readable when a program requested a wake-up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the number of waiting bytes, headers included.
    pub fn waiting(&self) -> u64 {
        let at = |mapping: &Mapping| mapping.words().first().map_or(0, |position| position.load(Acquire));
        let consumed = at(&self.consumer);
        at(&self.producer).saturating_sub(consumed)
    }

    /// Passes each finished record to `each`, then frees its space. Stops at one that is still being written.
    pub fn drain(&self, each: &mut dyn FnMut(&[u8])) {
        let (Some(consumed), Some(produced)) = (self.consumer.words().first(), self.producer.words().first()) else {
            return;
        };
        let mut at = consumed.load(Acquire);
        let mut data = held(&self.data);
        if at >= produced.load(Acquire) {
            *data = None;
            return;
        }
        if data.is_none() {
            // With no memory left to map it in the records stay until there is, or are dropped and counted.
            *data = Mapping::new(self.fd.as_fd(), 2 * self.size, 2 * self.page, false).ok();
        }
        let Some(data) = &*data else { return };
        while at < produced.load(Acquire) {
            let offset = at as usize & (self.size - 1);
            let Some(header) = data.words().get(offset / 8) else { return };
            let length = header.load(Acquire).to_ne_bytes();
            let length = u32::from_ne_bytes([length[0], length[1], length[2], length[3]]);
            if length & BUSY != 0 {
                return;
            }
            let bytes = (length & !DISCARD) as usize;
            if length & DISCARD == 0 {
                each(data.bytes(offset + HEADER, bytes));
            }
            at += (HEADER + bytes).next_multiple_of(8) as u64;
            consumed.store(at, Release);
        }
    }
}
