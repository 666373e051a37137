//! The finished binary under a real pmcd of the test, used by PCP's tools: pminfo, pmval, pmprobe, pmstore, pmlogger, pmproxy and
//! dbpmda; and its behaviour when pmcd or the agent ends.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

#[path = "../support/mod.rs"]
mod support;

mod archive;
mod clients;
mod consumers;
mod control;
mod dashboards;
mod dbpmda;
mod fleet;
mod groups;
mod instance;
mod lifecycle;
mod metadata;
mod profile;
mod prometheus;
mod proxy;
mod python;
mod rules;
mod shipped;
mod slow_disk;
mod subcommands;
mod tools;
