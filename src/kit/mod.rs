//! What a module file imports, and the registry that serves modules to the agent.

mod source;

pub use source::{Changes, Client, Label, LabelValue, Source, Subject, Wanted};
