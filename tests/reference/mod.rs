//! The reference agent (domain 400): fixed values of every type, three instances, stores, labels and notifications. The
//! captured conversations in `tests/vectors` were held with an agent of this description.

#![allow(dead_code)] // each test program uses a part of this

pub mod pmcd;

use corebcc::{
    agent::{Changes, Client, Label, LabelValue, Selected, Source, Subject},
    pcp::{Atom, Desc, EventParam, EventRecord, Indom, InstId, PmErr, Pmid, Sem, Space, Time, Type, Units, IN_NULL},
};
use std::borrow::Cow;
use std::cell::Cell;

pub const DOMAIN: u32 = 400;
/// Domain with the instances `bin-100`, `sda 8:0`, `last`.
pub const THREE: Indom = Indom::new(DOMAIN, 0);
/// Domain without instances.
pub const EMPTY: Indom = Indom::new(DOMAIN, 1);
/// Largest instance number.
pub const LAST: InstId = 0x7fff_ffff;

const INSTANCES: [(InstId, &[u8]); 3] = [(0, b"bin-100"), (5, b"sda 8:0"), (LAST, b"last")];

pub const fn pmid(cluster: u32, item: u32) -> Pmid {
    Pmid::new(DOMAIN, cluster, item)
}

/// Metrics: names, cluster, item, type, domain, semantics, units.
#[rustfmt::skip]
const METRICS: [(&str, u32, u32, Type, Indom, Sem, Units); 26] = [
    ("capt.v.i32",          0, 0,  Type::I32,           Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.alias.i32",      0, 0,  Type::I32,           Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.v.u32",          0, 1,  Type::U32,           Indom::NULL, Sem::DISCRETE, Units::NONE),
    ("capt.v.i64",          0, 2,  Type::I64,           Indom::NULL, Sem::INSTANT,  Units::NONE.space(1, Space::Mbyte).time(-1, Time::Sec)),
    ("capt.v.u64",          0, 3,  Type::U64,           Indom::NULL, Sem::COUNTER,  Units::COUNT),
    ("capt.v.float",        0, 4,  Type::FLOAT,         Indom::NULL, Sem::INSTANT,  Units::NONE.time(1, Time::Hour).count(-1, 6)),
    ("capt.v.double",       0, 5,  Type::DOUBLE,        Indom::NULL, Sem::INSTANT,  Units::NONE.count(1, -3)),
    ("capt.v.str0",         0, 6,  Type::STRING,        Indom::NULL, Sem::DISCRETE, Units::NONE),
    ("capt.v.str1",         0, 7,  Type::STRING,        Indom::NULL, Sem::DISCRETE, Units::NONE),
    ("capt.v.str3",         0, 8,  Type::STRING,        Indom::NULL, Sem::DISCRETE, Units::NONE),
    ("capt.v.str4",         0, 9,  Type::STRING,        Indom::NULL, Sem::DISCRETE, Units::NONE),
    ("capt.v.aggr",         0, 10, Type::AGGREGATE,     Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.v.nosupport",    0, 11, Type::NOSUPPORT,     Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.inst.u64",       1, 0,  Type::U64,           THREE,       Sem::COUNTER,  Units::BYTE),
    ("capt.inst.str",       1, 1,  Type::STRING,        THREE,       Sem::DISCRETE, Units::NONE),
    ("capt.inst.partial",   1, 2,  Type::U32,           THREE,       Sem::INSTANT,  Units::NONE),
    ("capt.inst.novalue",   1, 3,  Type::U32,           THREE,       Sem::INSTANT,  Units::NONE),
    ("capt.err.appversion", 1, 4,  Type::U32,           Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.err.again",      1, 5,  Type::U32,           Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.empty",          2, 0,  Type::U32,           EMPTY,       Sem::INSTANT,  Units::NONE),
    ("capt.ctl.wr",         3, 0,  Type::I32,           Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.ctl.str",        3, 1,  Type::STRING,        Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.ctl.u64",        3, 2,  Type::U64,           Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.ctl.dbl",        3, 3,  Type::DOUBLE,        Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.ev.low",         4, 0,  Type::EVENT,         Indom::NULL, Sem::INSTANT,  Units::NONE),
    ("capt.ev.high",        4, 1,  Type::HIGHRES_EVENT, Indom::NULL, Sem::INSTANT,  Units::NONE),
];

/// Values of the reference agent, and a record of its notifications.
pub struct Reference {
    pub wr: i32,
    pub string: Vec<u8>,
    pub u64: u64,
    pub double: f64,
    /// Names served besides the table's, all for 400.0.0.
    pub more_names: Vec<String>,
    /// Instances served besides the table's.
    pub more_instances: Vec<(InstId, Vec<u8>)>,
    pub changes: Changes,
    /// Attributes in force, by client.
    pub attributes: Vec<(Client, u32, Vec<u8>)>,
    pub refreshed: Vec<Pmid>,
    /// Number of values read since the last refresh.
    pub reads: Cell<usize>,
}

impl Default for Reference {
    fn default() -> Self {
        Reference {
            wr: 7,
            string: Vec::new(),
            u64: 0,
            double: 0.0,
            more_names: Vec::new(),
            more_instances: Vec::new(),
            changes: Changes::empty(),
            attributes: Vec::new(),
            refreshed: Vec::new(),
            reads: Cell::new(0),
        }
    }
}

impl Reference {
    fn all_instances(&self) -> impl Iterator<Item = (InstId, &[u8])> {
        INSTANCES.into_iter().chain(self.more_instances.iter().map(|(id, name)| (*id, name.as_slice())))
    }

    fn single(&self, pmid: Pmid, out: &mut dyn FnMut(InstId, Atom<'_>)) -> Result<(), PmErr> {
        let mut value = |atom| {
            out(IN_NULL, atom);
            Ok(())
        };
        match (pmid.cluster(), pmid.item()) {
            (0, 0) => value(Atom::I32(-1)),
            (0, 1) => value(Atom::U32(0xdead_beef)),
            (0, 2) => value(Atom::I64(-2)),
            (0, 3) => value(Atom::U64(0x0123_4567_89ab_cdef)),
            (0, 4) => value(Atom::Float(1.5)),
            (0, 5) => value(Atom::Double(std::f64::consts::PI)),
            (0, 6) => value(Atom::Str(b"")),
            (0, 7) => value(Atom::Str(b"a")),
            (0, 8) => value(Atom::Str(b"abc")),
            (0, 9) => value(Atom::Str(b"abcd")),
            (0, 10) => value(Atom::Aggregate(&[1, 2, 3, 4, 5])),
            (0, 11) | (1, 4) => Err(PmErr::APPVERSION),
            (1, 5) => Err(PmErr::AGAIN),
            (3, 0) => value(Atom::I32(self.wr)),
            (3, 1) => value(Atom::Str(&self.string)),
            (3, 2) => value(Atom::U64(self.u64)),
            (3, 3) => value(Atom::Double(self.double)),
            (4, 0) => {
                let params = [
                    EventParam { pmid: self::pmid(0, 0), value: Atom::I32(-1) },
                    EventParam { pmid: self::pmid(0, 8), value: Atom::Str(b"abc") },
                    EventParam { pmid: self::pmid(0, 5), value: Atom::Double(std::f64::consts::PI) },
                ];
                value(Atom::Event(&[
                    EventRecord { sec: 1_700_000_000, subsec: 123_456, flags: 1, missed: 0, params: &params },
                    EventRecord { sec: 1_700_000_000, subsec: 123_456, flags: 1 << 31, missed: 4, params: &[] },
                ]))
            }
            (4, 1) => {
                let params = [EventParam { pmid: self::pmid(0, 8), value: Atom::Str(b"ab") }];
                value(Atom::HighresEvent(&[
                    EventRecord { sec: 1_700_000_000, subsec: 123_456_789, flags: 2 | 8, missed: 0, params: &params },
                    EventRecord { sec: 1_700_000_000, subsec: 123_456_789, flags: 1 << 31, missed: 4, params: &[] },
                ]))
            }
            _ => Err(PmErr::PMID),
        }
    }
}

impl Source for Reference {
    fn domain(&self) -> u32 {
        DOMAIN
    }

    fn names(&self) -> Vec<(String, Pmid)> {
        let table = METRICS.iter().map(|&(name, cluster, item, ..)| (name.to_string(), pmid(cluster, item)));
        table.chain(self.more_names.iter().map(|name| (name.clone(), pmid(0, 0)))).collect()
    }

    fn desc(&self, pmid: Pmid) -> Result<Desc, PmErr> {
        let row = METRICS.iter().find(|row| self::pmid(row.1, row.2) == pmid);
        let &(_, _, _, ty, indom, sem, units) = row.ok_or(PmErr::PMID)?;
        Ok(Desc { pmid, ty, indom, sem, units })
    }

    fn refresh(&mut self, pmids: &mut dyn Iterator<Item = Pmid>) {
        self.refreshed.clear();
        self.refreshed.extend(pmids);
        self.reads.set(0);
    }

    fn values(
        &self,
        _client: Client,
        pmid: Pmid,
        wanted: Selected<'_>,
        out: &mut dyn FnMut(InstId, Atom<'_>),
    ) -> Result<(), PmErr> {
        self.reads.set(self.reads.get() + 1);
        if self.desc(pmid)?.indom == Indom::NULL {
            return self.single(pmid, out);
        }
        let mut outcome = Ok(());
        if (pmid.cluster(), pmid.item()) == (2, 0) {
            return outcome; // no instances
        }
        for (inst, _) in self.all_instances().filter(|(inst, _)| wanted(*inst)) {
            outcome = Ok(());
            match pmid.item() {
                0 => out(inst, Atom::U64(1000 + u64::from(inst))),
                1 => out(
                    inst,
                    Atom::Str(match inst {
                        0 => b"zero",
                        5 => b"fivef",
                        _ => b"mx",
                    }),
                ),
                2 if inst == 5 => outcome = Err(PmErr::VALUE),
                2 => out(inst, Atom::U32(inst)),
                _ => {}
            }
        }
        outcome
    }

    fn instances(&mut self, indom: Indom, out: &mut dyn FnMut(InstId, &[u8])) -> Result<(), PmErr> {
        match indom {
            THREE => self.all_instances().for_each(|(inst, name)| out(inst, name)),
            EMPTY => {}
            _ => return Err(PmErr::INDOM),
        }
        Ok(())
    }

    fn text(&self, of: Subject, full: bool) -> Result<Cow<'_, str>, PmErr> {
        const I32: Pmid = pmid(0, 0);
        const U32: Pmid = pmid(0, 1);
        const I64: Pmid = pmid(0, 2);
        let text = match (of, full) {
            (Subject::Metric(I32), false) => "one liner",
            (Subject::Metric(I32), true) => "Full help text.\nSecond line.",
            (Subject::Metric(U32), false) => "only oneline",
            (Subject::Metric(I64), _) => "",
            (Subject::Indom(THREE), false) => "three things",
            (Subject::Indom(THREE), true) => "Three things, at length.",
            _ => return Err(PmErr::TEXT),
        };
        Ok(text.into())
    }

    fn labels(&mut self, of: Subject) -> Result<Vec<Label>, PmErr> {
        const I32: Pmid = pmid(0, 0);
        const AGAIN: Pmid = pmid(1, 5);
        Ok(match of {
            Subject::Domain => vec![label("agent", LabelValue::Str("capt".into()))],
            Subject::Indom(THREE) => vec![label("indom_name", LabelValue::Str("three".into()))],
            Subject::Cluster(1) => vec![label("cluster", LabelValue::Str("one".into()))],
            Subject::Metric(I32) => vec![
                label("zeta", LabelValue::Int(1)),
                label("alpha.b", LabelValue::Str("c".into())),
                Label { optional: true, ..label("note", LabelValue::Bool(true)) },
            ],
            Subject::Metric(AGAIN) => return Err(PmErr::NYI),
            _ => vec![],
        })
    }

    fn instance_labels(&mut self, indom: Indom, wanted: Selected<'_>, out: &mut dyn FnMut(InstId, Vec<Label>)) {
        if indom != THREE {
            return;
        }
        for (inst, _) in self.all_instances().filter(|(inst, _)| wanted(*inst)) {
            let slot = label("slot", LabelValue::Int(inst.into()));
            let kind = label("kind", LabelValue::Str("disk".into()));
            out(inst, if inst == LAST { vec![] } else { vec![slot, kind] });
        }
    }

    fn store(&mut self, _client: Client, pmid: Pmid, _inst: InstId, value: &Atom<'_>) -> Result<(), PmErr> {
        match (pmid.cluster(), pmid.item(), *value) {
            (3, 0, Atom::I32(v)) => {
                self.wr = v;
                self.changes |= match v {
                    1001 => Changes::LABELS,
                    1002 => Changes::NAMES,
                    1003 => Changes::LABELS | Changes::NAMES,
                    -1 => return Err(PmErr::BADSTORE),
                    _ => Changes::empty(),
                };
            }
            (3, 1, Atom::Str(v)) => self.string = v.to_vec(),
            (3, 2, Atom::U64(v)) => self.u64 = v,
            (3, 3, Atom::Double(v)) => self.double = v,
            _ => return Err(PmErr::PERMISSION),
        }
        Ok(())
    }

    fn attribute(&mut self, client: Client, attribute: u32, value: &[u8]) {
        self.attributes.retain(|(c, a, _)| (*c, *a) != (client, attribute));
        self.attributes.push((client, attribute, value.to_vec()));
    }

    fn client_gone(&mut self, client: Client) {
        self.attributes.retain(|(c, ..)| *c != client);
    }

    fn take_changes(&mut self) -> Changes {
        std::mem::replace(&mut self.changes, Changes::empty())
    }
}

fn label(name: &'static str, value: LabelValue) -> Label {
    Label { name: name.into(), value, optional: false }
}
