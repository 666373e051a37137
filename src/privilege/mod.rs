//! Least privilege: what the agent holds while it loads, and what it keeps afterwards.
//!
//! The agent is a program that reads what untrusted processes choose. So once its modules are loaded it gives up what they do not
//! need any more: capabilities, the right to gain others, and system calls that it never makes.

mod calls;
mod capabilities;

pub use calls::limit_calls;
pub use capabilities::{capabilities, hold, to_load, to_run, to_write};

use caps::CapsHashSet;

/// Names of capabilities as capabilities(7) has them, in its order; "none" without any.
pub fn names(capabilities: &CapsHashSet) -> String {
    let mut sorted: Vec<_> = capabilities.iter().collect();
    sorted.sort_by_key(|capability| capability.index());
    match sorted.is_empty() {
        true => "none".into(),
        false => sorted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
