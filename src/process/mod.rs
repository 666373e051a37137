//! The service behind every `process` option: matching processes, and attaching probes in them.

mod automaton;
mod filter;
mod probes;

pub use automaton::Automaton;
pub use filter::{Filters, ProcessSlots};
pub use probes::{NoProbes, ProcessProbes, Site, Sites};
