//! Events sent by a pair's programs: a perf event array, whose buffers the agent creates, or a ring buffer.

use super::{held, page};
use libbpf_rs::{MapCore, MapType, PerfBuffer, PerfBufferBuilder, RingBuffer, RingBufferBuilder};
use std::sync::{Arc, Mutex};

/// Highest number of events read from a ring at once, since its programs may write without pause.
const AT_ONCE: usize = 1 << 16;

/// Events that were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// First bytes of each event, concatenated.
    pub bytes: Vec<u8>,
    /// Number of events.
    pub count: usize,
    /// Number of events that were too short.
    pub short: u64,
    /// Number of events dropped because a perf buffer was full.
    pub lost: u64,
}

impl Events {
    fn push(&mut self, event: &[u8], size: usize) {
        match event.get(..size) {
            Some(event) => {
                self.bytes.extend(event);
                self.count += 1;
            }
            None => self.short += 1,
        }
    }
}

/// A map of events that is being read.
pub struct EventReader {
    source: Source,
    events: Arc<Mutex<Events>>,
}

enum Source {
    Perf(PerfBuffer<'static>),
    Ring(RingBuffer<'static>),
}

impl EventReader {
    /// Starts reading the first `size` bytes of each event of a map. A perf event array gets a buffer of `room` bytes
    /// for each CPU, a power of two.
    pub fn new(map: &impl MapCore, size: usize, room: usize) -> libbpf_rs::Result<EventReader> {
        let events = Arc::new(Mutex::new(Events::default()));
        let (sink, losses) = (Arc::clone(&events), Arc::clone(&events));
        let source = if map.map_type() == MapType::RingBuf {
            let mut ring = RingBufferBuilder::new();
            ring.add(map, move |event| {
                held(&sink).push(event, size);
                0
            })?;
            Source::Ring(ring.build()?)
        } else {
            let pages = (room / page().unwrap_or(4096)).max(1).next_power_of_two();
            let perf = PerfBufferBuilder::new(map).pages(pages);
            let perf = perf.sample_cb(move |_, event| held(&sink).push(event, size));
            let perf = perf.lost_cb(move |_, lost| held(&losses).lost += lost);
            Source::Perf(perf.build()?)
        };
        Ok(EventReader { source, events })
    }

    /// Returns the events since the last call.
    pub fn read(&self) -> Events {
        match &self.source {
            // What stops it half way is there at the next look.
            Source::Perf(perf) => drop(perf.consume()),
            Source::Ring(ring) => drop(ring.consume_raw_n(AT_ONCE)),
        }
        std::mem::take(&mut *held(&self.events))
    }
}
