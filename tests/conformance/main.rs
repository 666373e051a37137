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
mod state;
mod values;

use corebcc::{
    agent::Source,
    pcp::{Desc, Pmid},
};
use reference::Reference;

/// Returns the descriptors of all metrics of the reference agent, without aliases.
fn descs() -> Vec<Desc> {
    let source = Reference::default();
    let mut pmids: Vec<Pmid> = source.names().into_iter().map(|(_, pmid)| pmid).collect();
    pmids.sort();
    pmids.dedup();
    pmids.into_iter().map(|pmid| source.desc(pmid).unwrap()).collect()
}
