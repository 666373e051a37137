//! The metrics of the Python agent, from its own tables (tests/data/bcc-metrics.tsv), and the agent's own: clients rely
//! on them, so they must not follow a change of the declarations.

use corebcc::pcp::{Desc, Indom, Pmid, Sem, Space, Time, Type, Units};
use std::sync::LazyLock;

pub const DOMAIN: u32 = 149;

/// A metric, a line of the table.
pub struct Row {
    pub name: &'static str,
    pub module: &'static str,
    /// Value of the option `module`.
    pub path: &'static str,
    pub cluster: u32,
    pub item: u32,
    pub ty: Type,
    pub sem: Sem,
    /// Units as printed by pminfo(1).
    pub units: &'static str,
    /// True if the metric has instances; the serial of their domain is the cluster.
    pub instances: bool,
    /// Form of the instance names; `-` without instances.
    pub form: &'static str,
    /// Rule for the instance identifiers; `-` without instances.
    pub rule: &'static str,
}

/// Metrics whose semantics were corrected on purpose, to *instant*; docs/compatibility.md has the reasons.
pub const CORRECTED: [&str; 2] = ["bcc.mem.vmstat.buffers", "bcc.mem.vmstat.cached"];

/// Iterates over all metrics of the Python agent.
pub fn original() -> impl Iterator<Item = Row> {
    include_str!("../data/bcc-metrics.tsv").lines().skip(1).map(|line| Row::new(&line.split('\t').collect::<Vec<_>>()))
}

/// Iterates over the metrics of the six modules that [`super::ALL`] enables.
pub fn rows() -> impl Iterator<Item = Row> {
    const MODULES: [&str; 6] = ["biolatency", "sysfork", "tcplife", "runqlat", "exectop", "netproc"];
    original().filter(|row| MODULES.contains(&row.module))
}

/// The agent's own metrics, which always exist and belong to no module.
#[rustfmt::skip]
const OWN: [Beside; 67] = [
    ("bcc.agent.summary.version",         "", 306, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.summary.modules.running", "", 306, 1, Type::U32,    Sem::INSTANT,  "count"),
    ("bcc.agent.summary.modules.failed",  "", 306, 2, Type::U32,    Sem::INSTANT,  "count"),
    ("bcc.agent.summary.modules.off",     "", 306, 3, Type::U32,    Sem::INSTANT,  "count"),
    ("bcc.agent.summary.losses",          "", 306, 4, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.summary.memory.kernel",   "", 306, 5, Type::U64,    Sem::INSTANT,  "byte"),
    ("bcc.agent.summary.cpu.agent",       "", 306, 6, Type::U64,    Sem::COUNTER,  "microsec"),
    ("bcc.agent.summary.cpu.programs",    "", 306, 7, Type::U64,    Sem::COUNTER,  "microsec"),
    ("bcc.agent.summary.configuration",   "", 306, 8, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.version",              "", 300, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.kernel.release",       "", 300, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.load.time",            "", 300, 2, Type::U64,    Sem::DISCRETE, "millisec"),
    ("bcc.agent.uptime",               "", 300, 3, Type::U64,    Sem::INSTANT,  "sec"),
    ("bcc.agent.memory.resident",      "", 300, 4, Type::U64,    Sem::INSTANT,  "byte"),
    ("bcc.agent.fetches",              "", 300, 5, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.restarts",             "", 300, 6, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.crashes",              "", 300, 7, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.configuration.status", "", 300, 8, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.configuration.errors", "", 300, 9, Type::U32,    Sem::DISCRETE, "count"),
    ("bcc.agent.program.stats",        "", 300, 10, Type::U32,   Sem::INSTANT,  "none"),
    ("bcc.agent.control",              "", 300, 11, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.agent.metric.status",        "", 307, 0, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.module.state",         "", 301, 0, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.module.status",        "", 301, 1, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.module.up",            "", 301, 2, Type::U32,    Sem::INSTANT,  "none"),
    ("bcc.agent.module.refresh.count", "", 301, 3, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.module.refresh.time",  "", 301, 4, Type::U64,    Sem::COUNTER,  "nanosec"),
    ("bcc.agent.module.targets.attached", "", 301, 5, Type::U64, Sem::INSTANT,  "count"),
    ("bcc.agent.module.targets.missing",  "", 301, 6, Type::U64, Sem::INSTANT,  "count"),
    ("bcc.agent.module.control",       "", 301, 7, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.program.hook",         "", 302, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.program.kind",         "", 302, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.program.modules",      "", 302, 2, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.program.attached",     "", 302, 3, Type::U32,    Sem::INSTANT,  "none"),
    ("bcc.agent.program.runs",         "", 302, 4, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.program.time",         "", 302, 5, Type::U64,    Sem::COUNTER,  "nanosec"),
    ("bcc.agent.program.misses",       "", 302, 6, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.map.kind",             "", 303, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.map.modules",          "", 303, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.map.entries.capacity", "", 303, 2, Type::U64,    Sem::DISCRETE, "count"),
    ("bcc.agent.map.entries.used",     "", 303, 3, Type::U64,    Sem::INSTANT,  "count"),
    ("bcc.agent.map.key.size",         "", 303, 4, Type::U64,    Sem::DISCRETE, "byte"),
    ("bcc.agent.map.value.size",       "", 303, 5, Type::U64,    Sem::DISCRETE, "byte"),
    ("bcc.agent.map.memory",           "", 303, 6, Type::U64,    Sem::INSTANT,  "byte"),
    ("bcc.agent.map.ring.size",        "", 303, 7, Type::U64,    Sem::DISCRETE, "byte"),
    ("bcc.agent.map.ring.used",        "", 303, 8, Type::U64,    Sem::INSTANT,  "byte"),
    ("bcc.agent.map.lost",             "", 303, 9, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.lost.events",          "", 304, 0, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.lost.reason",          "", 304, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.kernel.feature",       "", 305, 0, Type::U32,    Sem::DISCRETE, "none"),
    ("bcc.agent.kernel.status",        "", 305, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.state.since",          "", 309, 0, Type::U64,    Sem::DISCRETE, "sec"),
    ("bcc.agent.state.pinned",         "", 309, 1, Type::U32,    Sem::INSTANT,  "none"),
    ("bcc.agent.state.discarded",      "", 309, 2, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.state.status",         "", 309, 3, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.scripts",              "", 319, 0, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.tracepoints",          "", 329, 0, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.user.status.state",           "", 308, 0, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.user.status.error",           "", 308, 1, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.user.status.programs",        "", 308, 2, Type::U32, Sem::INSTANT, "count"),
    ("bcc.user.status.attached",        "", 308, 3, Type::U32, Sem::INSTANT, "count"),
    ("bcc.user.status.maps",            "", 308, 4, Type::U32, Sem::INSTANT, "count"),
    ("bcc.user.status.memory",          "", 308, 5, Type::U64, Sem::INSTANT, "byte"),
    ("bcc.user.status.load_time",       "", 308, 6, Type::U64, Sem::DISCRETE, "microsec"),
    ("bcc.user.status.loaded_at",       "", 308, 7, Type::U64, Sem::DISCRETE, "sec"),
    ("bcc.user.status.runs",            "", 308, 8, Type::U64, Sem::COUNTER,  "count"),
    ("bcc.user.status.time",            "", 308, 9, Type::U64, Sem::COUNTER,  "nanosec"),
];

/// Metrics of modules beyond those of the Python agent.
static ADDED: [Beside; 359] = [
    ("bcc.bpf.prog.name", "bpfstat", 478, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.prog.type", "bpfstat", 478, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.prog.tag", "bpfstat", 478, 2, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.prog.owner", "bpfstat", 478, 3, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.prog.id", "bpfstat", 478, 4, Type::U32, Sem::DISCRETE, "none"),
    ("bcc.bpf.prog.own", "bpfstat", 478, 5, Type::U32, Sem::DISCRETE, "none"),
    ("bcc.bpf.prog.runs.count", "bpfstat", 478, 6, Type::U64, Sem::COUNTER, "count"),
    ("bcc.bpf.prog.run.time", "bpfstat", 478, 7, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.bpf.prog.misses.count", "bpfstat", 478, 8, Type::U64, Sem::COUNTER, "count"),
    ("bcc.bpf.prog.memory", "bpfstat", 478, 9, Type::U64, Sem::INSTANT, "byte"),
    ("bcc.bpf.prog.loaded", "bpfstat", 478, 10, Type::U64, Sem::DISCRETE, "millisec"),
    ("bcc.bpf.map.name", "bpfstat", 479, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.map.type", "bpfstat", 479, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.map.entries.capacity", "bpfstat", 479, 2, Type::U64, Sem::DISCRETE, "count"),
    ("bcc.bpf.map.entries.used", "bpfstat", 479, 3, Type::U64, Sem::INSTANT, "count"),
    ("bcc.bpf.map.memory", "bpfstat", 479, 4, Type::U64, Sem::INSTANT, "byte"),
    ("bcc.bpf.map.owner", "bpfstat", 479, 5, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.link.type", "bpfstat", 480, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.link.target", "bpfstat", 480, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.link.prog", "bpfstat", 480, 2, Type::U32, Sem::DISCRETE, "none"),
    ("bcc.bpf.link.owner", "bpfstat", 480, 3, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.bpf.total.progs", "bpfstat", 481, 0, Type::U64, Sem::INSTANT, "count"),
    ("bcc.bpf.total.maps", "bpfstat", 481, 1, Type::U64, Sem::INSTANT, "count"),
    ("bcc.bpf.total.memory", "bpfstat", 481, 2, Type::U64, Sem::INSTANT, "byte"),
    ("bcc.bpf.total.run.time", "bpfstat", 481, 3, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.nfs.rpc.name", "nfs", 487, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.kvm.exits.count", "kvm", 490, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.kvm.exits.time", "kvm", 490, 1, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.kvm.user.all.count", "kvm", 490, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.kvm.user.all.time", "kvm", 490, 3, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.kvm.name", "kvm", 490, 4, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.kvm.user.count", "kvm", 491, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.kvm.user.name", "kvm", 491, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.dns.queries.count", "dns", 473, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.answers.count", "dns", 473, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.errors.servfail.count", "dns", 473, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.errors.nxdomain.count", "dns", 473, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.errors.refused.count", "dns", 473, 4, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.errors.other.count", "dns", 473, 5, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.dns.queries", "dns", 475, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.dns.answers", "dns", 475, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.dns.time", "dns", 475, 2, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.dns.timeouts", "dns", 475, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.dns.name", "dns", 475, 4, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.dns.server.queries", "dns", 476, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.server.count", "dns", 476, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.server.time", "dns", 476, 2, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.net.dns.server.timeouts", "dns", 476, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.dns.server.name", "dns", 476, 4, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.dns.timeouts.count", "dns", 2015, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.file.stat.pid", "statsnoop", 496, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.file.stat.uid", "statsnoop", 496, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.file.stat.comm", "statsnoop", 496, 2, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.stat.path", "statsnoop", 496, 3, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.stat.ret", "statsnoop", 496, 4, Type::I32, Sem::INSTANT, "none"),
    ("bcc.file.stat.err", "statsnoop", 496, 5, Type::I32, Sem::INSTANT, "none"),
    ("bcc.file.stat.time", "statsnoop", 496, 6, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.file.stat.seq", "statsnoop", 496, 7, Type::U64, Sem::INSTANT, "none"),
    ("bcc.file.stat.cgroup_path", "statsnoop", 496, 8, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.stats.all.count", "statsnoop", 2012, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.file.stats.failed.count", "statsnoop", 2012, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.file.stats.lost.count", "statsnoop", 2012, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.fs.mount.pid", "mountsnoop", 497, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.fs.mount.tid", "mountsnoop", 497, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.fs.mount.uid", "mountsnoop", 497, 2, Type::U32, Sem::INSTANT, "none"),
    ("bcc.fs.mount.comm", "mountsnoop", 497, 3, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.op", "mountsnoop", 497, 4, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.source", "mountsnoop", 497, 5, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.target", "mountsnoop", 497, 6, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.fs", "mountsnoop", 497, 7, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.flags", "mountsnoop", 497, 8, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.data", "mountsnoop", 497, 9, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.ret", "mountsnoop", 497, 10, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.lat", "mountsnoop", 497, 11, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.fs.mount.mnt_ns", "mountsnoop", 497, 12, Type::U32, Sem::INSTANT, "none"),
    ("bcc.fs.mount.call", "mountsnoop", 497, 13, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mount.time", "mountsnoop", 497, 14, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.fs.mount.seq", "mountsnoop", 497, 15, Type::U64, Sem::INSTANT, "none"),
    ("bcc.fs.mount.cgroup_path", "mountsnoop", 497, 16, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.fs.mounts.all.count", "mountsnoop", 2013, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.fs.mounts.failed.count", "mountsnoop", 2013, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.fs.mounts.lost.count", "mountsnoop", 2013, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.shell.bash.pid", "bashreadline", 498, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.shell.bash.uid", "bashreadline", 498, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.shell.bash.comm", "bashreadline", 498, 2, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.shell.bash.line", "bashreadline", 498, 3, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.shell.bash.time", "bashreadline", 498, 4, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.shell.bash.seq", "bashreadline", 498, 5, Type::U64, Sem::INSTANT, "none"),
    ("bcc.shell.bash.cgroup_path", "bashreadline", 498, 6, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.shell.bash.lines.count", "bashreadline", 2014, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.shell.bash.lost.count", "bashreadline", 2014, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.irq.soft.name", "softirqs", 458, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.irq.hard.unhandled.count", "hardirqs", 461, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.irq.hard.name", "hardirqs", 461, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.cgroup.stall.direct.count", "stalls", 456, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.stall.direct.time", "stalls", 456, 1, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.stall.memcg.count", "stalls", 456, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.stall.memcg.time", "stalls", 456, 3, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.stall.compact.count", "stalls", 456, 4, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.stall.compact.time", "stalls", 456, 5, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.stall.dirty.count", "stalls", 456, 6, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.stall.dirty.time", "stalls", 456, 7, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.stall.name", "stalls", 456, 8, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.tcp.rtt.untimed.count", "tcprtt", 465, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.peer.sessions.count", "tcprtt", 467, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.peer.retrans.count", "tcprtt", 467, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.peer.name", "tcprtt", 467, 2, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.drop.count", "netdrops", 470, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.drop.name", "netdrops", 470, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.udp.drop.count", "netdrops", 471, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.udp.drop.name", "netdrops", 471, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.tcp.resets.sent.count", "netdrops", 472, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.resets.received.count", "netdrops", 472, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.stacks", "profile", 310, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.net.tcp.send.calls", "cgroup_net", 464, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.net.tcp.send.bytes", "cgroup_net", 464, 1, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.cgroup.net.tcp.recv.calls", "cgroup_net", 464, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.net.tcp.recv.bytes", "cgroup_net", 464, 3, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.cgroup.net.udp.send.calls", "cgroup_net", 464, 4, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.net.udp.send.bytes", "cgroup_net", 464, 5, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.cgroup.net.udp.recv.calls", "cgroup_net", 464, 6, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.net.udp.recv.bytes", "cgroup_net", 464, 7, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.cgroup.net.name", "cgroup_net", 464, 8, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.cgroup.net.packets.in.count", "cgroup_net", 464, 9, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.net.packets.in.bytes", "cgroup_net", 464, 10, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.cgroup.net.packets.out.count", "cgroup_net", 464, 11, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.net.packets.out.bytes", "cgroup_net", 464, 12, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.proc.execs.comm", "execsnoop", 312, 0, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.execs.pid", "execsnoop", 312, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.execs.ppid", "execsnoop", 312, 2, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.execs.ret", "execsnoop", 312, 3, Type::I32, Sem::INSTANT, "none"),
    ("bcc.proc.execs.args", "execsnoop", 312, 4, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.execs.uid", "execsnoop", 312, 5, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.execs.time", "execsnoop", 312, 6, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.proc.execs.seq", "execsnoop", 312, 7, Type::U64, Sem::INSTANT, "none"),
    ("bcc.proc.execs.cgroup_path", "execsnoop", 312, 8, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.execs.lost.count", "execsnoop", 2006, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.exit.pid", "exitsnoop", 403, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.tid", "exitsnoop", 403, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.ppid", "exitsnoop", 403, 2, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.uid", "exitsnoop", 403, 3, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.comm", "exitsnoop", 403, 4, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.exit.exit_code", "exitsnoop", 403, 5, Type::I32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.sig", "exitsnoop", 403, 6, Type::I32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.coredump", "exitsnoop", 403, 7, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.killer_pid", "exitsnoop", 403, 8, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.exit.killer_comm", "exitsnoop", 403, 9, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.exit.age", "exitsnoop", 403, 10, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.proc.exit.cpu", "exitsnoop", 403, 11, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.proc.exit.time", "exitsnoop", 403, 12, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.proc.exit.seq", "exitsnoop", 403, 13, Type::U64, Sem::INSTANT, "none"),
    ("bcc.proc.exit.cgroup_path", "exitsnoop", 403, 14, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.exits.all.count", "exitsnoop", 404, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.exits.failed.count", "exitsnoop", 404, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.exits.signalled.count", "exitsnoop", 404, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.exits.coredumped.count", "exitsnoop", 404, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.exits.threads.count", "exitsnoop", 404, 4, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.exits.lost.count", "exitsnoop", 404, 5, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.exits.signal.count", "exitsnoop", 405, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.exits.all.count", "exitsnoop", 406, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.exits.failed.count", "exitsnoop", 406, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.exits.signalled.count", "exitsnoop", 406, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.exits.cpu.time", "exitsnoop", 406, 3, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.exits.name", "exitsnoop", 406, 4, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.mem.oom.fpid", "oomkill", 407, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.mem.oom.fcomm", "oomkill", 407, 1, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.mem.oom.tpid", "oomkill", 407, 2, Type::U32, Sem::INSTANT, "none"),
    ("bcc.mem.oom.tcomm", "oomkill", 407, 3, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.mem.oom.uid", "oomkill", 407, 4, Type::U32, Sem::INSTANT, "none"),
    ("bcc.mem.oom.pages", "oomkill", 407, 5, Type::U64, Sem::INSTANT, "none"),
    ("bcc.mem.oom.limited", "oomkill", 407, 6, Type::U32, Sem::INSTANT, "none"),
    ("bcc.mem.oom.rss", "oomkill", 407, 7, Type::U64, Sem::INSTANT, "Kbyte"),
    ("bcc.mem.oom.time", "oomkill", 407, 8, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.mem.oom.seq", "oomkill", 407, 9, Type::U64, Sem::INSTANT, "none"),
    ("bcc.mem.oom.cgroup_path", "oomkill", 407, 10, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.mem.oom.kills.count", "oomkill", 408, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.mem.oom.lost.count", "oomkill", 408, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.oom.kills.count", "oomkill", 409, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.oom.name", "oomkill", 409, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.file.open.pid", "opensnoop", 410, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.file.open.uid", "opensnoop", 410, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.file.open.fd", "opensnoop", 410, 2, Type::I32, Sem::INSTANT, "none"),
    ("bcc.file.open.err", "opensnoop", 410, 3, Type::I32, Sem::INSTANT, "none"),
    ("bcc.file.open.flags", "opensnoop", 410, 4, Type::I32, Sem::INSTANT, "none"),
    ("bcc.file.open.comm", "opensnoop", 410, 5, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.open.fname", "opensnoop", 410, 6, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.open.time", "opensnoop", 410, 7, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.file.open.seq", "opensnoop", 410, 8, Type::U64, Sem::INSTANT, "none"),
    ("bcc.file.open.cgroup_path", "opensnoop", 410, 9, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.opens.all.count", "opensnoop", 411, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.file.opens.failed.count", "opensnoop", 411, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.file.opens.lost.count", "opensnoop", 411, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.opens.all.count", "opensnoop", 412, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.opens.failed.count", "opensnoop", 412, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connect.pid", "tcpconnect", 413, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.uid", "tcpconnect", 413, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.comm", "tcpconnect", 413, 2, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.ipversion", "tcpconnect", 413, 3, Type::U32, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.saddr", "tcpconnect", 413, 4, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.lport", "tcpconnect", 413, 5, Type::U32, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.daddr", "tcpconnect", 413, 6, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.dport", "tcpconnect", 413, 7, Type::U32, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.err", "tcpconnect", 413, 8, Type::I32, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.lat", "tcpconnect", 413, 9, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.net.tcp.connect.time", "tcpconnect", 413, 10, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.net.tcp.connect.seq", "tcpconnect", 413, 11, Type::U64, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connect.cgroup_path", "tcpconnect", 413, 12, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.net.tcp.connects.all.count", "tcpconnect", 414, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connects.refused.count", "tcpconnect", 414, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connects.timedout.count", "tcpconnect", 414, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connects.unreachable.count", "tcpconnect", 414, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connects.other.count", "tcpconnect", 414, 4, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connects.lost.count", "tcpconnect", 414, 5, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connect.peer.failed.count", "tcpconnect", 417, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.connect.peer.name", "tcpconnect", 417, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.net.tcp.accept.closed.count", "tcpconnect", 419, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.net.tcp.accept.name", "tcpconnect", 419, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.proc.connects.all.count", "tcpconnect", 416, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.connects.failed.count", "tcpconnect", 416, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.login.pid", "logins", 484, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.login.uid", "logins", 484, 1, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.login.user", "logins", 484, 2, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.login.loginuid", "logins", 484, 3, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.login.session", "logins", 484, 4, Type::U32, Sem::INSTANT, "none"),
    ("bcc.proc.login.tty", "logins", 484, 5, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.login.comm", "logins", 484, 6, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.login.parent", "logins", 484, 7, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.login.remote", "logins", 484, 8, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.login.time", "logins", 484, 9, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.proc.login.seq", "logins", 484, 10, Type::U64, Sem::INSTANT, "none"),
    ("bcc.proc.login.cgroup_path", "logins", 484, 11, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.logins.all.count", "logins", 2004, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.logins.lost.count", "logins", 2004, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.logins.tty.count", "logins", 485, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.logins.other.count", "logins", 485, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.logins.name", "logins", 485, 2, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.kprobe.time.nested.count", "kprobe_hits", 313, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.uprobe.time.nested.count", "uprobe_hits", 315, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.sched.switches.voluntary.count", "oncpu", 450, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.sched.switches.involuntary.count", "oncpu", 450, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.sched.migrations.count", "oncpu", 450, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.oncpu.time", "oncpu", 452, 0, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.switches.voluntary.count", "oncpu", 452, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.switches.involuntary.count", "oncpu", 452, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.migrations.count", "oncpu", 452, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.preempted.self.count", "oncpu", 452, 4, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.preempted.other.count", "oncpu", 452, 5, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.oncpu.name", "oncpu", 452, 6, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.proc.offcpu.runq.time", "offcpu", 441, 0, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.disk.time", "offcpu", 441, 2, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.fault.time", "offcpu", 441, 4, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.file.time", "offcpu", 441, 6, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.net.time", "offcpu", 441, 8, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.pipe.time", "offcpu", 441, 10, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.tty.time", "offcpu", 441, 12, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.stop.time", "offcpu", 441, 14, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.lock.time", "offcpu", 441, 16, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.cond.time", "offcpu", 441, 18, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.poll.time", "offcpu", 441, 20, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.timer.time", "offcpu", 441, 22, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.child.time", "offcpu", 441, 24, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.kernel.time", "offcpu", 441, 26, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.other.time", "offcpu", 441, 28, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.offcpu.runq.count", "offcpu", 441, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.disk.count", "offcpu", 441, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.fault.count", "offcpu", 441, 5, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.file.count", "offcpu", 441, 7, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.net.count", "offcpu", 441, 9, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.pipe.count", "offcpu", 441, 11, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.tty.count", "offcpu", 441, 13, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.stop.count", "offcpu", 441, 15, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.lock.count", "offcpu", 441, 17, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.cond.count", "offcpu", 441, 19, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.poll.count", "offcpu", 441, 21, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.timer.count", "offcpu", 441, 23, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.child.count", "offcpu", 441, 25, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.kernel.count", "offcpu", 441, 27, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.offcpu.other.count", "offcpu", 441, 29, Type::U64, Sem::COUNTER, "count"),
    ("bcc.sched.offcpu.slowest.time", "offcpu", 445, 0, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.sched.offcpu.slowest.ended", "offcpu", 445, 1, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.sched.offcpu.slowest.pid", "offcpu", 445, 2, Type::U32, Sem::INSTANT, "none"),
    ("bcc.sched.offcpu.slowest.comm", "offcpu", 445, 3, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.sched.offcpu.slowest.call", "offcpu", 445, 4, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.sched.offcpu.slowest.stack", "offcpu", 445, 5, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.locks.count", "offcpu", 446, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.locks.time", "offcpu", 446, 1, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.locks.max", "offcpu", 446, 2, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.sched.waits.count", "offcpu", 447, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.sched.waits.time", "offcpu", 447, 1, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.waits.stacks", "offcpu", 448, 0, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.waits.profile", "offcpu", 2001, 0, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.cgroup.offcpu.runq.time", "offcpu", 444, 0, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.disk.time", "offcpu", 444, 2, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.fault.time", "offcpu", 444, 4, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.file.time", "offcpu", 444, 6, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.net.time", "offcpu", 444, 8, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.pipe.time", "offcpu", 444, 10, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.tty.time", "offcpu", 444, 12, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.stop.time", "offcpu", 444, 14, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.lock.time", "offcpu", 444, 16, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.cond.time", "offcpu", 444, 18, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.poll.time", "offcpu", 444, 20, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.timer.time", "offcpu", 444, 22, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.child.time", "offcpu", 444, 24, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.kernel.time", "offcpu", 444, 26, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.other.time", "offcpu", 444, 28, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.cgroup.offcpu.runq.count", "offcpu", 444, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.disk.count", "offcpu", 444, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.fault.count", "offcpu", 444, 5, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.file.count", "offcpu", 444, 7, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.net.count", "offcpu", 444, 9, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.pipe.count", "offcpu", 444, 11, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.tty.count", "offcpu", 444, 13, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.stop.count", "offcpu", 444, 15, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.lock.count", "offcpu", 444, 17, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.cond.count", "offcpu", 444, 19, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.poll.count", "offcpu", 444, 21, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.timer.count", "offcpu", 444, 23, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.child.count", "offcpu", 444, 25, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.kernel.count", "offcpu", 444, 27, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.other.count", "offcpu", 444, 29, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.offcpu.name", "offcpu", 444, 30, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.tty.read.count", "tty", 486, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.tty.read.bytes", "tty", 486, 1, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.tty.write.count", "tty", 486, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.tty.write.bytes", "tty", 486, 3, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.tty.name", "tty", 486, 4, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.file.slow.pid", "fsslower", 422, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.file.slow.comm", "fsslower", 422, 1, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.slow.file_op", "fsslower", 422, 2, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.slow.fs", "fsslower", 422, 3, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.slow.filename", "fsslower", 422, 4, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.slow.bytes", "fsslower", 422, 5, Type::U64, Sem::INSTANT, "byte"),
    ("bcc.file.slow.offset", "fsslower", 422, 6, Type::I64, Sem::INSTANT, "byte"),
    ("bcc.file.slow.err", "fsslower", 422, 7, Type::I32, Sem::INSTANT, "none"),
    ("bcc.file.slow.lat", "fsslower", 422, 8, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.file.slow.time", "fsslower", 422, 9, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.file.slow.seq", "fsslower", 422, 10, Type::U64, Sem::INSTANT, "none"),
    ("bcc.file.slow.cgroup_path", "fsslower", 422, 11, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.file.slow.all.count", "fsslower", 2005, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.file.slow.lost.count", "fsslower", 2005, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.vfs.create.count", "vfsstat", 492, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.vfs.unlink.count", "vfsstat", 492, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.vfs.mkdir.count", "vfsstat", 492, 2, Type::U64, Sem::COUNTER, "count"),
    ("bcc.vfs.rmdir.count", "vfsstat", 492, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.vfs.read.bytes", "vfsstat", 492, 4, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.vfs.write.bytes", "vfsstat", 492, 5, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.proc.vfs.read.count", "vfsstat", 494, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.vfs.read.bytes", "vfsstat", 494, 1, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.proc.vfs.read.time", "vfsstat", 494, 2, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.proc.vfs.write.count", "vfsstat", 494, 3, Type::U64, Sem::COUNTER, "count"),
    ("bcc.proc.vfs.write.bytes", "vfsstat", 494, 4, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.proc.vfs.write.time", "vfsstat", 494, 5, Type::U64, Sem::COUNTER, "nanosec"),
    ("bcc.vfs.read.size", "vfsstat", 2000, 0, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.vfs.write.size", "vfsstat", 2000, 1, Type::U64, Sem::COUNTER, "byte"),
    ("bcc.hw.llc.references.count", "llcstat", 482, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.hw.llc.misses.count", "llcstat", 482, 1, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.hw.llc.references.count", "llcstat", 483, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.cgroup.hw.llc.misses.count", "llcstat", 483, 1, Type::U64, Sem::COUNTER, "count"),
];

const LATENCIES: [Histograms; 4] = [
    (
        "bcc.disk.dev",
        320,
        321,
        430,
        &[
            "read.total",
            "read.device",
            "read.queue",
            "write.total",
            "write.device",
            "write.queue",
            "flush.total",
            "discard.total",
        ],
    ),
    ("bcc.disk.all", 324, 323, 431, &["read.total", "write.total", "flush.total", "discard.total"]),
    ("bcc.disk.size", 325, 326, 432, &["read.total", "write.total"]),
    ("bcc.disk.stacked", 330, 347, 433, &["read.total", "write.total", "flush.total", "discard.total"]),
];
const WAITS: [Histograms; 2] = [("bcc.runq", 331, 340, 434, &["all"]), ("bcc.runq", 332, 341, 435, &["cpu"])];

/// Metrics of a histogram by series, with semantics and units.
const OF_SERIES: [(&str, Sem, &str); 7] = [
    ("count", Sem::COUNTER, "count"),
    ("sum", Sem::COUNTER, "nanosec"),
    ("p50", Sem::INSTANT, "microsec"),
    ("p90", Sem::INSTANT, "microsec"),
    ("p99", Sem::INSTANT, "microsec"),
    ("p999", Sem::INSTANT, "microsec"),
    ("max", Sem::INSTANT, "microsec"),
];

/// Metrics of a histogram for Prometheus, with types and units.
const FOR_PROMETHEUS: [(&str, Type, &str); 3] = [
    ("seconds_bucket", Type::U64, "count"),
    ("seconds_sum", Type::DOUBLE, "sec"),
    ("seconds_count", Type::U64, "count"),
];

/// Metrics of disks other than histograms.
#[rustfmt::skip]
const OF_DISKS: [Beside; 27] = [
    ("bcc.disk.dev.name",          "biolatency", 320, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.disk.dev.read.bytes",    "biolatency", 320, 1, Type::U64,    Sem::COUNTER,  "byte"),
    ("bcc.disk.dev.write.bytes",   "biolatency", 320, 2, Type::U64,    Sem::COUNTER,  "byte"),
    ("bcc.disk.dev.discard.bytes", "biolatency", 320, 3, Type::U64,    Sem::COUNTER,  "byte"),
    ("bcc.disk.slowest.time",      "biolatency", 337, 0, Type::U64,    Sem::INSTANT,  "microsec"),
    ("bcc.disk.slowest.device",    "biolatency", 337, 1, Type::U64,    Sem::INSTANT,  "microsec"),
    ("bcc.disk.slowest.ended",     "biolatency", 337, 2, Type::U64,    Sem::INSTANT,  "millisec"),
    ("bcc.disk.slowest.pid",       "biolatency", 337, 3, Type::U32,    Sem::INSTANT,  "none"),
    ("bcc.disk.slowest.command",   "biolatency", 337, 4, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.disk.slowest.operation", "biolatency", 337, 5, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.disk.slowest.bytes",     "biolatency", 337, 6, Type::U64,    Sem::INSTANT,  "byte"),
    ("bcc.disk.slowest.sector",    "biolatency", 337, 7, Type::U64,    Sem::INSTANT,  "none"),
    ("bcc.disk.slowest.cgroup",    "biolatency", 337, 8, Type::U64,    Sem::INSTANT,  "none"),
    ("bcc.disk.slowest.cgroup_path", "biolatency", 337, 9, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.disk.slow.pid", "biolatency", 311, 0, Type::U32, Sem::INSTANT, "none"),
    ("bcc.disk.slow.comm", "biolatency", 311, 1, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.disk.slow.disk", "biolatency", 311, 2, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.disk.slow.rwbs", "biolatency", 311, 3, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.disk.slow.bytes", "biolatency", 311, 4, Type::U32, Sem::INSTANT, "byte"),
    ("bcc.disk.slow.sector", "biolatency", 311, 5, Type::U64, Sem::INSTANT, "none"),
    ("bcc.disk.slow.lat", "biolatency", 311, 6, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.disk.slow.queue", "biolatency", 311, 7, Type::U64, Sem::INSTANT, "nanosec"),
    ("bcc.disk.slow.time", "biolatency", 311, 8, Type::U64, Sem::INSTANT, "millisec"),
    ("bcc.disk.slow.seq", "biolatency", 311, 9, Type::U64, Sem::INSTANT, "none"),
    ("bcc.disk.slow.cgroup_path", "biolatency", 311, 10, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.disk.slow.lost.count", "biolatency", 2007, 0, Type::U64, Sem::COUNTER, "count"),
    ("bcc.disk.stacked.name",      "biolatency", 330, 0, Type::STRING, Sem::DISCRETE, "none"),
];

/// Iterates over the latency metrics of disks and of the run queue, with quantiles.
pub fn latencies() -> impl Iterator<Item = Row> {
    static METRICS: LazyLock<Vec<Beside>> = LazyLock::new(|| {
        let of_disks = histograms("biolatency", &OF_DISKS, &LATENCIES);
        of_disks.into_iter().chain(histograms("runqlat", &[], &WAITS)).collect()
    });
    beside(&METRICS)
}

/// Iterates over the latency metrics by cgroup, with quantiles.
fn of_cgroups() -> impl Iterator<Item = Row> {
    static METRICS: LazyLock<Vec<Beside>> = LazyLock::new(|| {
        let disk = histograms("cgroup_disk", &OF_CGROUPS[..3], &[CGROUPS[0]]);
        disk.into_iter().chain(histograms("cgroup_runq", &OF_CGROUPS[3..], &[CGROUPS[1]])).collect()
    });
    beside(&METRICS)
}

/// Histograms of a module: name, the clusters of series, of buckets and of buckets for Prometheus, and the names
/// numbered from 1.
type Histograms = (&'static str, u32, u32, u32, &'static [&'static str]);

const CGROUPS: [Histograms; 2] = [
    ("bcc.cgroup.disk", 400, 327, 436, &["read.total", "read.queue", "write.total", "write.queue"]),
    ("bcc.cgroup", 401, 333, 437, &["runq"]),
];

#[rustfmt::skip]
const OF_CGROUPS: [Beside; 4] = [
    ("bcc.cgroup.disk.name",        "cgroup_disk", 400, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.cgroup.disk.read.bytes",  "cgroup_disk", 400, 1, Type::U64,    Sem::COUNTER,  "byte"),
    ("bcc.cgroup.disk.write.bytes", "cgroup_disk", 400, 2, Type::U64,    Sem::COUNTER,  "byte"),
    ("bcc.cgroup.runq.name",        "cgroup_runq", 401, 0, Type::STRING, Sem::DISCRETE, "none"),
];

/// Returns the metrics of histograms, after other metrics of their series.
fn histograms(module: &'static str, others: &[Beside], all: &[Histograms]) -> Vec<Beside> {
    let mut metrics = others.to_vec();
    for &(prefix, series, buckets, seconds, names) in all {
        for (name, number) in names.iter().zip(1..) {
            let full = |last: &str| -> &'static str { format!("{prefix}.{name}.{last}").leak() };
            for (item, (last, sem, units)) in (8 * number..).zip(OF_SERIES) {
                metrics.push((full(last), module, series, item, Type::U64, sem, units));
            }
            metrics.push((full("bucket"), module, buckets, number, Type::U64, Sem::COUNTER, "count"));
            for (item, (last, ty, units)) in (4 * number..).zip(FOR_PROMETHEUS) {
                metrics.push((full(last), module, seconds, item, ty, Sem::COUNTER, units));
            }
        }
    }
    metrics
}

/// Iterates over the times of file operations, connects, functions and turns on a CPU, with quantiles.
fn of_operations() -> impl Iterator<Item = Row> {
    const OPERATIONS: &[&str] = &["open", "read", "write", "fsync"];
    static METRICS: LazyLock<Vec<Beside>> = LazyLock::new(|| {
        let of =
            |module, name, series| histograms(module, &[], &[(name, series, series + 8, series + 104, OPERATIONS)]);
        let connects = [
            ("bcc.net.tcp", 414, 415, 421, &["connect"][..]),
            ("bcc.net.tcp", 417, 418, 2002, &["connect.peer"]),
            ("bcc.net.tcp", 419, 420, 2003, &["accept"]),
        ];
        const WAITS: &[&str] = &[
            "offcpu.runq",
            "offcpu.disk",
            "offcpu.fault",
            "offcpu.file",
            "offcpu.net",
            "offcpu.pipe",
            "offcpu.tty",
            "offcpu.stop",
            "offcpu.lock",
            "offcpu.cond",
            "offcpu.poll",
            "offcpu.timer",
            "offcpu.child",
            "offcpu.kernel",
            "offcpu.other",
        ];
        let soft = [("bcc.irq.soft", 458, 459, 460, &["run"][..]), ("bcc.irq.soft", 2008, 2009, 2010, &["wait"])];
        let round_trips =
            [("bcc.net.tcp", 465, 466, 469, &["rtt", "minrtt"][..]), ("bcc.net.tcp", 467, 468, 2011, &["rtt.peer"])];
        let calls = [("bcc.vfs", 492, 493, 495, &["read", "write", "fsync", "open"][..])];
        [
            histograms("kprobe_hits", &[], &[("bcc.kprobe", 313, 314, 345, &["time"])]),
            histograms("uprobe_hits", &[], &[("bcc.uprobe", 315, 316, 346, &["time"])]),
            histograms("tcpconnect", &[], &connects),
            histograms("oncpu", &[], &[("bcc.sched", 450, 451, 453, &["oncpu"])]),
            histograms("offcpu", &[], &[("bcc.sched", 442, 443, 449, WAITS)]),
            histograms("vfsstat", &[], &calls),
            histograms("softirqs", &[], &soft),
            histograms("hardirqs", &[], &[("bcc.irq.hard", 461, 462, 463, &["run"])]),
            histograms("stalls", &[], &[("bcc.mem.stall", 454, 455, 457, &["direct", "memcg", "compact", "dirty"])]),
            histograms("tcprtt", &[], &round_trips),
            histograms("nfs", &[], &[("bcc.nfs.rpc", 487, 488, 489, &["total", "rtt", "backlog"])]),
            histograms("dns", &[], &[("bcc.net", 473, 474, 477, &["dns"])]),
            of("ext4dist", "bcc.fs.ext4", 334),
            of("xfsdist", "bcc.fs.xfs", 335),
            of("zfsdist", "bcc.fs.zfs", 336),
            histograms("btrfsdist", &[], &[("bcc.fs.btrfs", 423, 424, 425, OPERATIONS)]),
            histograms("nfsdist", &[], &[("bcc.fs.nfs", 426, 427, 428, OPERATIONS)]),
        ]
        .concat()
    });
    beside(&METRICS)
}

/// Iterates over the metrics that modules have beyond the Python agent's.
pub fn added() -> impl Iterator<Item = Row> {
    beside(&ADDED).chain(latencies()).chain(of_cgroups()).chain(of_operations())
}

/// Iterates over the agent's own metrics that always exist.
pub fn own() -> impl Iterator<Item = Row> {
    beside(&OWN).filter(|row| row.cluster != PAIRS && !SCRIPTS.contains(&row.cluster))
}

/// Iterates over the agent's metrics about pairs.
pub fn of_pairs() -> impl Iterator<Item = Row> {
    beside(&OWN).filter(|row| row.cluster == PAIRS)
}

const PAIRS: u32 = 308;
/// Clusters of the agent's metrics that require a section `[scripts]`.
const SCRIPTS: [u32; 2] = [319, 329];

type Beside = (&'static str, &'static str, u32, u32, Type, Sem, &'static str);

fn beside(metrics: &'static [Beside]) -> impl Iterator<Item = Row> {
    metrics.iter().map(|&(name, module, cluster, item, ty, sem, units)| {
        let instances = ![
            300, 306, 319, 324, 329, 331, 334, 335, 336, 404, 408, 411, 414, 423, 426, 442, 450, 454, 465, 472, 473,
            481, 492, 2001, 2004, 2005, 2006, 2007, 2012, 2013, 2014, 2015,
        ]
        .contains(&cluster);
        Row {
            name,
            module,
            path: "",
            cluster,
            item,
            ty,
            sem,
            units,
            instances,
            form: if instances { "NAME" } else { "-" },
            rule: "-",
        }
    })
}

/// Iterates over all metrics below `bcc` with the six modules.
pub fn all() -> impl Iterator<Item = Row> {
    rows().chain(own()).chain(latencies())
}

/// Instance domains of all these metrics, by serial.
pub const INDOMS: [u32; 22] =
    [0, 3, 4, 13, 40, 301, 302, 303, 304, 305, 307, 320, 321, 323, 325, 326, 330, 332, 337, 340, 341, 347];
/// Instance domains of histograms, of all modules.
pub const HISTOGRAMS: [u32; 5] = [0, 4, 5, 6, 7];
/// Instance domains of histograms with an instance per series and bucket.
pub const BUCKETS_OF_SERIES: [u32; 6] = [321, 323, 326, 340, 341, 347];

impl Row {
    fn new(fields: &[&'static str]) -> Row {
        Row {
            name: fields[0],
            module: fields[1],
            path: fields[2],
            cluster: fields[3].parse().unwrap(),
            item: fields[4].parse().unwrap(),
            ty: match fields[6] {
                "32" => Type::I32,
                "U32" => Type::U32,
                "U64" => Type::U64,
                "STRING" => Type::STRING,
                other => panic!("type {other}"),
            },
            sem: match fields[7] {
                "counter" => Sem::COUNTER,
                "instant" => Sem::INSTANT,
                other => panic!("semantics {other}"),
            },
            units: fields[9],
            instances: fields[13] != "-",
            form: fields[13],
            rule: fields[14],
        }
    }

    pub fn pmid(&self) -> Pmid {
        Pmid::new(DOMAIN, self.cluster, self.item)
    }

    pub fn units(&self) -> Units {
        match self.units {
            "none" => Units::NONE,
            "count" => Units::COUNT,
            "byte" => Units::BYTE,
            "Kbyte" => Units::NONE.space(1, Space::Kbyte),
            "Mbyte" => Units::NONE.space(1, Space::Mbyte),
            "nanosec" => Units::NONE.time(1, Time::Nsec),
            "microsec" => Units::NONE.time(1, Time::Usec),
            "millisec" => Units::NONE.time(1, Time::Msec),
            "sec" => Units::NONE.time(1, Time::Sec),
            other => panic!("units {other}"),
        }
    }

    pub fn desc(&self) -> Desc {
        let indom = if self.instances { Indom::new(DOMAIN, self.cluster) } else { Indom::NULL };
        Desc { pmid: self.pmid(), ty: self.ty, indom, sem: self.sem, units: self.units() }
    }
}
