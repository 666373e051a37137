//! The modules on the running kernel, each against an independent count: /proc, fio, bpftrace, or work of a known amount.
//! Needs root. Other load on the machine does not disturb: what a module counts machine-wide is bracketed by two reads of
//! the independent source, and what it counts by process or name belongs to this test alone.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

#[path = "../support/mod.rs"]
mod common;

mod agents;
mod biolatency;
mod bioperpid;
mod biotop;
mod cachestat;
mod cgroups;
mod disks;
mod execsnoop;
mod exectop;
mod files;
mod filter;
mod fine;
mod hits;
mod klockstat;
mod late_disks;
mod netproc;
mod quantiles;
mod refusals;
mod runqlat;
mod support;
mod syscount;
mod sysfork;
mod tcplife;
mod tcpperpid;
mod tcpretrans;
mod tcptop;
mod tracers;
mod usdt;
