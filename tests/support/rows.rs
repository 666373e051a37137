//! The metrics of the six modules as the Python agent has them (its published names, identifiers, types, semantics and
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

pub fn rows() -> impl Iterator<Item = Row> {
    TABLE.iter().map(|&(name, module, cluster, item, ty, sem, units)| Row {
        name,
        module,
        cluster,
        item,
        ty,
        sem,
        units,
        instances: module != "sysfork",
    })
}

/// The instance domains, by serial.
pub const INDOMS: [u32; 5] = [0, 3, 4, 13, 40];
/// Those of histograms.
pub const HISTOGRAMS: [u32; 2] = [0, 4];

impl Row {
    pub fn pmid(&self) -> Pmid {
        Pmid::new(DOMAIN, self.cluster, self.item)
    }

    pub fn desc(&self) -> Desc {
        let units = match self.units {
            "microsec" => 0x0100_1000,
            "count" => 0x0010_0000,
            "byte" => 0x1000_0000,
            _ => 0,
        };
        let indom = if self.instances { Indom::new(DOMAIN, self.cluster) } else { Indom::NULL };
        Desc { pmid: self.pmid(), ty: self.ty, indom, sem: self.sem, units: Units(units) }
    }
}
