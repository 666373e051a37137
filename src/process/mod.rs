//! The service behind every `process` option: which processes are meant, and probes in them.

mod automaton;
mod filter;
mod probes;

pub use automaton::Automaton;
pub use filter::{Filters, Places};
pub use probes::{NoProbes, Site, Sites, Tracees};
