//! The modules on the running kernel, each against an independent count: /proc, fio, bpftrace, or work of known size. Needs root.
//! Other load on the machine does not disturb: counts of the whole machine are bracketed by two reads of the independent source, and
//! counts by process or name belong to this test only.

#![allow(clippy::unwrap_used)] // in helpers too, which clippy.toml does not cover

#[path = "../support/mod.rs"]
mod common;

mod agents;
mod bashreadline;
mod biolatency;
mod bioperpid;
mod biotop;
mod bpfstat;
mod cachestat;
mod cgroup_net;
mod cgroups;
mod disks;
mod dns;
mod execsnoop;
mod exectop;
mod exitsnoop;
mod files;
mod filter;
mod fine;
mod fsslower;
mod function_times;
mod hardirqs;
mod hits;
mod klockstat;
mod kvm;
mod late_disks;
mod llcstat;
mod logins;
mod mountsnoop;
mod netdrops;
mod netproc;
mod nfs;
mod offcpu;
mod oncpu;
mod oomkill;
mod opensnoop;
mod quantiles;
mod refusals;
mod runqlat;
mod softirqs;
mod stalls;
mod statsnoop;
mod support;
mod syscount;
mod sysfork;
mod tcpconnect;
mod tcplife;
mod tcpperpid;
mod tcpretrans;
mod tcprtt;
mod tcptop;
mod tty;
mod usdt;
mod vfsstat;
