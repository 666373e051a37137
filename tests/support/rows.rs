//! The metrics of the Python agent, from its own tables (tests/data/bcc-metrics.tsv): what clients rely on must not follow a
//! change of the declarations.

use corebcc::pcp::{Desc, Indom, Pmid, Sem, Space, Time, Type, Units};

pub const DOMAIN: u32 = 149;

/// One metric, as one line of the table.
pub struct Row {
    pub name: &'static str,
    pub module: &'static str,
    /// What the option `module` says.
    pub path: &'static str,
    pub cluster: u32,
    pub item: u32,
    pub ty: Type,
    pub sem: Sem,
    /// As pminfo(1) prints them.
    pub units: &'static str,
    /// Whether the metric has instances; the serial of their domain is the cluster.
    pub instances: bool,
    /// The form of their names; `-` without instances.
    pub form: &'static str,
}

/// Semantics that were corrected on purpose, to *instant*; docs/compatibility.md says why.
pub const CORRECTED: [&str; 2] = ["bcc.mem.vmstat.buffers", "bcc.mem.vmstat.cached"];

/// Every metric there was.
pub fn original() -> impl Iterator<Item = Row> {
    include_str!("../data/bcc-metrics.tsv").lines().skip(1).map(|line| Row::new(&line.split('\t').collect::<Vec<_>>()))
}

/// Those of the six modules that [`super::ALL`] enables.
pub fn rows() -> impl Iterator<Item = Row> {
    const MODULES: [&str; 6] = ["biolatency", "sysfork", "tcplife", "runqlat", "exectop", "netproc"];
    original().filter(|row| MODULES.contains(&row.module))
}

/// The instance domains of the six, by serial.
pub const INDOMS: [u32; 5] = [0, 3, 4, 13, 40];
/// Those of histograms, of all modules.
pub const HISTOGRAMS: [u32; 5] = [0, 4, 5, 6, 7];

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
            "Mbyte" => Units::NONE.space(1, Space::Mbyte),
            "nanosec" => Units::NONE.time(1, Time::Nsec),
            "microsec" => Units::NONE.time(1, Time::Usec),
            other => panic!("units {other}"),
        }
    }

    pub fn desc(&self) -> Desc {
        let indom = if self.instances { Indom::new(DOMAIN, self.cluster) } else { Indom::NULL };
        Desc { pmid: self.pmid(), ty: self.ty, indom, sem: self.sem, units: self.units() }
    }
}
