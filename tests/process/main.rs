//! The finished binary, with tests in pmcd's place: the statements of the conformance checklist (docs/protocol.md) that need a
//! process, by their numbers, and faults of its surroundings. They load BPF programs, and print that they are skipped where that is
//! not possible.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod arrivals;
mod blocked;
mod changes;
mod command_line;
mod config;
mod connection;
mod endpoints;
mod examples;
mod faults;
mod host;
mod hostile;
mod hostile_processes;
mod machine;
mod metrics;
mod options;
mod own;
mod pair_format;
mod pairs;
mod peer;
mod pin;
mod privileges;
mod scripts;
mod show;
mod statistics;
mod stream;
mod walks;
