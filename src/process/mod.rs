//! The service behind every `process` option: which processes are meant, and probes in them.

mod automaton;
mod filter;
mod probes;

pub use automaton::Automaton;
pub use filter::{Filters, ProcessSlots};
pub use probes::{NoProbes, ProcessProbes, Site, Sites};
