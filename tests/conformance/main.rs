//! The conformance checklist of the agent protocol (docs/protocol.md), one test per statement, named by its number.
//! Here are the tests for agents in memory: the reference agent and the product. Tests that need a process, pmcd or
//! dbpmda are in `tests/process` and `tests/pmcd`.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

#[path = "../reference/mod.rs"]
mod reference;

mod connection;
mod labels;
mod metadata;
mod names;
mod product;
mod profile;
mod served;
mod state;
mod values;

use corebcc::pcp::Desc;
use reference::Reference;

/// Returns the descriptors of all metrics of the reference agent, without aliases.
fn descs() -> Vec<Desc> {
    served::descs(&Reference::default())
}
