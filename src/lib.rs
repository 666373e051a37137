//! `corebcc`: the `bcc.*` metrics of Performance Co-Pilot from CO-RE BPF programs.
//!
//! ```text
//! main -> serve -> transport -> pdu -> pcp          the protocol: bytes, frames, requests
//!               -> agent <- catalog -> kit, state   a request in, a reply out; what is served
//!               -> collector -> loader -> bpf       the modules at work, and the kernel
//!      modules -> kit, host, process                what is measured
//!      user -> kit, catalog, loader                 programs of a site's own, as modules
//!      -> check, show                               the modules without pmcd
//!      -> new                                       sources to begin with
//!      serve -> site                                what files and orders say that there is to be
//!      serve, show -> privilege                     what is given up after loading
//! ```
//!
//! docs/design.md describes each room; tests/layers.rs enforces which room may use which.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent;
pub mod bpf;
pub mod catalog;
pub mod check;
pub mod cli;
pub mod collector;
pub mod config;
pub mod host;
pub mod kit;
pub mod loader;
pub mod logging;
pub mod modules;
pub mod new;
pub mod pcp;
pub mod pcpconf;
pub mod pdu;
pub mod privilege;
pub mod process;
pub mod reference;
pub mod script;
pub mod serve;
pub mod show;
mod site;
pub mod state;
pub mod transport;
pub mod user;
