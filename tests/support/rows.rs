//! The metrics of the six modules, and the agent's own, written out. The former are as the Python agent has them (its published names, identifiers, types, semantics and
//! units), written out: what clients rely on must not follow a change of the declarations.

use corebcc::pcp::{Desc, Indom, Pmid, Sem, Type, Units};

pub const DOMAIN: u32 = 149;

/// One metric.
pub struct Row {
    pub name: &'static str,
    pub module: &'static str,
    pub cluster: u32,
    pub item: u32,
    pub ty: Type,
    pub sem: Sem,
    /// As pminfo(1) prints them.
    pub units: &'static str,
    /// Whether the metric has instances; the serial of their domain is the cluster.
    pub instances: bool,
}

#[rustfmt::skip]
const TABLE: [(&str, &str, u32, u32, Type, Sem, &str); 21] = [
    ("bcc.disk.all.latency",         "biolatency", 0,  0, Type::U64,    Sem::COUNTER, "microsec"),
    ("bcc.proc.sysfork",             "sysfork",    2,  0, Type::U64,    Sem::COUNTER, "count"),
    ("bcc.proc.io.net.tcp.pid",      "tcplife",    3,  0, Type::U32,    Sem::INSTANT, "none"),
    ("bcc.proc.io.net.tcp.comm",     "tcplife",    3,  1, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.io.net.tcp.laddr",    "tcplife",    3,  2, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.io.net.tcp.lport",    "tcplife",    3,  3, Type::U32,    Sem::INSTANT, "none"),
    ("bcc.proc.io.net.tcp.daddr",    "tcplife",    3,  4, Type::STRING, Sem::INSTANT, "none"),
    ("bcc.proc.io.net.tcp.dport",    "tcplife",    3,  5, Type::U32,    Sem::INSTANT, "none"),
    ("bcc.proc.io.net.tcp.tx",       "tcplife",    3,  6, Type::U64,    Sem::INSTANT, "byte"),
    ("bcc.proc.io.net.tcp.rx",       "tcplife",    3,  7, Type::U64,    Sem::INSTANT, "byte"),
    ("bcc.proc.io.net.tcp.duration", "tcplife",    3,  8, Type::U32,    Sem::INSTANT, "microsec"),
    ("bcc.runq.latency",             "runqlat",    4,  0, Type::U64,    Sem::COUNTER, "microsec"),
    ("bcc.proc.exec.count",          "exectop",    13, 0, Type::U64,    Sem::COUNTER, "count"),
    ("bcc.proc.net.tcp.send.calls",  "netproc",    40, 0, Type::U64,    Sem::COUNTER, "count"),
    ("bcc.proc.net.tcp.send.bytes",  "netproc",    40, 1, Type::U64,    Sem::COUNTER, "byte"),
    ("bcc.proc.net.tcp.recv.calls",  "netproc",    40, 2, Type::U64,    Sem::COUNTER, "count"),
    ("bcc.proc.net.tcp.recv.bytes",  "netproc",    40, 3, Type::U64,    Sem::COUNTER, "byte"),
    ("bcc.proc.net.udp.send.calls",  "netproc",    40, 4, Type::U64,    Sem::COUNTER, "count"),
    ("bcc.proc.net.udp.send.bytes",  "netproc",    40, 5, Type::U64,    Sem::COUNTER, "byte"),
    ("bcc.proc.net.udp.recv.calls",  "netproc",    40, 6, Type::U64,    Sem::COUNTER, "count"),
    ("bcc.proc.net.udp.recv.bytes",  "netproc",    40, 7, Type::U64,    Sem::COUNTER, "byte"),
];

/// The agent's own metrics, which no module has and which are always there.
#[rustfmt::skip]
const OWN: [(&str, &str, u32, u32, Type, Sem, &str); 29] = [
    ("bcc.agent.version",              "", 300, 0, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.kernel.release",       "", 300, 1, Type::STRING, Sem::DISCRETE, "none"),
    ("bcc.agent.load.time",            "", 300, 2, Type::U64,    Sem::DISCRETE, "millisec"),
    ("bcc.agent.uptime",               "", 300, 3, Type::U64,    Sem::INSTANT,  "sec"),
    ("bcc.agent.memory.resident",      "", 300, 4, Type::U64,    Sem::INSTANT,  "byte"),
    ("bcc.agent.fetches",              "", 300, 5, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.module.state",         "", 301, 0, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.module.status",        "", 301, 1, Type::STRING, Sem::INSTANT,  "none"),
    ("bcc.agent.module.up",            "", 301, 2, Type::U32,    Sem::INSTANT,  "none"),
    ("bcc.agent.module.refresh.count", "", 301, 3, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.module.refresh.time",  "", 301, 4, Type::U64,    Sem::COUNTER,  "nanosec"),
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
    ("bcc.agent.lost.events",          "", 304, 0, Type::U64,    Sem::COUNTER,  "count"),
    ("bcc.agent.kernel.feature",       "", 305, 0, Type::U32,    Sem::DISCRETE, "none"),
];

/// What the six modules have.
pub fn rows() -> impl Iterator<Item = Row> {
    TABLE.iter().map(Row::new)
}

/// What the agent has of its own.
pub fn own() -> impl Iterator<Item = Row> {
    OWN.iter().map(Row::new)
}

/// Everything below `bcc`.
pub fn all() -> impl Iterator<Item = Row> {
    rows().chain(own())
}

/// The instance domains, by serial.
pub const INDOMS: [u32; 10] = [0, 3, 4, 13, 40, 301, 302, 303, 304, 305];
/// Those of histograms.
pub const HISTOGRAMS: [u32; 2] = [0, 4];

impl Row {
    fn new(
        &(name, module, cluster, item, ty, sem, units): &(
            &'static str,
            &'static str,
            u32,
            u32,
            Type,
            Sem,
            &'static str,
        ),
    ) -> Row {
        Row { name, module, cluster, item, ty, sem, units, instances: cluster != 2 && cluster != 300 }
    }

    pub fn pmid(&self) -> Pmid {
        Pmid::new(DOMAIN, self.cluster, self.item)
    }

    pub fn desc(&self) -> Desc {
        let units = match self.units {
            "nanosec" => 0x0100_0000,
            "microsec" => 0x0100_1000,
            "millisec" => 0x0100_2000,
            "sec" => 0x0100_3000,
            "count" => 0x0010_0000,
            "byte" => 0x1000_0000,
            _ => 0,
        };
        let indom = if self.instances { Indom::new(DOMAIN, self.cluster) } else { Indom::NULL };
        Desc { pmid: self.pmid(), ty: self.ty, indom, sem: self.sem, units: Units(units) }
    }
}
