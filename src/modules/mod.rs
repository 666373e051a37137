//! The modules: one file each, and its line here. The agent knows those in `MODULES`.

use crate::kit::Spec;

mod bashreadline;
pub mod biolatency;
mod bioperpid;
mod biotop;
mod bpfstat;
mod btrfsdist;
mod cachestat;
mod cgroup_disk;
mod cgroup_net;
mod cgroup_runq;
mod dns;
mod execsnoop;
mod exectop;
mod exitsnoop;
mod ext4dist;
mod fsslower;
mod hardirqs;
mod klockstat;
mod kprobe_hits;
mod kvm;
mod llcstat;
mod logins;
mod mountsnoop;
mod netdrops;
mod netproc;
mod nfs;
mod nfsdist;
mod offcpu;
mod oncpu;
mod oomkill;
mod opensnoop;
mod profile;
mod runqlat;
pub(crate) mod shared;
mod softirqs;
mod stalls;
mod statsnoop;
mod syscount;
mod sysfork;
mod tcpconnect;
mod tcplife;
mod tcpperpid;
mod tcpretrans;
mod tcprtt;
mod tcptop;
mod tracepoint_hits;
mod tty;
mod ucalls;
mod uprobe_hits;
mod usdt_hits;
mod usdt_jvm_threads;
mod ustat;
mod vfsstat;
mod xfsdist;
mod zfsdist;

pub use shared::{cgroups, places};
pub use syscount::system_calls;

/// All modules.
pub const MODULES: &[&Spec] = &[
    &biolatency::SPEC,
    &bioperpid::SPEC,
    &sysfork::SPEC,
    &tcplife::SPEC,
    &runqlat::SPEC,
    &tcpretrans::SPEC,
    &tcpperpid::SPEC,
    &tcptop::SPEC,
    &exectop::SPEC,
    &exitsnoop::SPEC,
    &tracepoint_hits::SPEC,
    &uprobe_hits::SPEC,
    &usdt_hits::SPEC,
    &usdt_jvm_threads::SPEC,
    &ustat::SPEC,
    &ucalls::SPEC,
    &kprobe_hits::SPEC,
    &ext4dist::SPEC,
    &xfsdist::SPEC,
    &zfsdist::SPEC,
    &biotop::SPEC,
    &cachestat::SPEC,
    &klockstat::SPEC,
    &profile::SPEC,
    &netproc::SPEC,
    &oomkill::SPEC,
    &opensnoop::SPEC,
    &tcpconnect::SPEC,
    &execsnoop::SPEC,
    &syscount::SPEC,
    &cgroup_disk::SPEC,
    &cgroup_runq::SPEC,
    &llcstat::SPEC,
    &logins::SPEC,
    &cgroup_net::SPEC,
    &vfsstat::SPEC,
    &oncpu::SPEC,
    &offcpu::SPEC,
    &btrfsdist::SPEC,
    &nfsdist::SPEC,
    &fsslower::SPEC,
    &tty::SPEC,
    &softirqs::SPEC,
    &hardirqs::SPEC,
    &stalls::SPEC,
    &tcprtt::SPEC,
    &netdrops::SPEC,
    &dns::SPEC,
    &kvm::SPEC,
    &nfs::SPEC,
    &statsnoop::SPEC,
    &mountsnoop::SPEC,
    &bashreadline::SPEC,
    &bpfstat::SPEC,
];

/// Returns the module that `module = PATH` or `[NAME]` names.
pub fn find(path: &str) -> Option<&'static Spec> {
    MODULES.iter().copied().find(|spec| spec.is_named(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf;
    use crate::config::Config;
    use crate::kit::{Fake, Host, Plan, Setup};

    #[test]
    fn a_module_yields_exactly_the_tables_that_its_options_ask_for() {
        for (spec, all) in MODULES.iter().flat_map(|spec| [(spec, false), (spec, true)]) {
            let mut options: Vec<&str> = spec.tables.iter().flat_map(|table| table.options).copied().collect();
            options.sort_unstable();
            options.dedup();
            let value = |option: &&str| match spec.options.iter().find(|def| def.name == *option) {
                Some(def) if def.expected.starts_with("a number") => "1",
                Some(def) if (def.default)().is_empty() => "/",
                _ => "True",
            };
            let lines = options.iter().filter(|_| all).map(|option| format!("{option} = {}\n", value(option)));
            let lines: String = lines.collect();
            let config = Config::parse("test", spec.section(&lines).as_bytes()).unwrap();
            let section = config.section(spec.name).unwrap();
            let setup = Setup::new(&section);
            let mut module = (spec.make)(&setup).unwrap();
            module.plan(&Host::SMALL, &mut Plan::default(), &mut bpf::constants());
            let running = module.start(&Fake::new());
            for table in spec.tables {
                let is_asked_for = all || table.options.is_empty();
                assert_eq!(running.yields(table), is_asked_for, "{}: cluster {}: {lines}", spec.name, table.cluster);
            }
        }
    }
}
