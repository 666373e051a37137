//! Descriptors and values (`pmDesc`, `pmAtomValue`).

use super::{Indom, Pmid, Units};

/// `PM_TYPE_*`: type of a value. Unknown numbers are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type(pub i32);

#[allow(missing_docs)]
impl Type {
    pub const NOSUPPORT: Type = Type(-1);
    pub const I32: Type = Type(0);
    pub const U32: Type = Type(1);
    pub const I64: Type = Type(2);
    pub const U64: Type = Type(3);
    pub const FLOAT: Type = Type(4);
    pub const DOUBLE: Type = Type(5);
    pub const STRING: Type = Type(6);
    pub const AGGREGATE: Type = Type(7);
    pub const AGGREGATE_STATIC: Type = Type(8);
    pub const EVENT: Type = Type(9);
    pub const HIGHRES_EVENT: Type = Type(10);
    pub const UNKNOWN: Type = Type(255);
}

/// `PM_SEM_*`: relation of values over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sem(pub i32);

#[allow(missing_docs)]
impl Sem {
    pub const COUNTER: Sem = Sem(1);
    pub const INSTANT: Sem = Sem(3);
    pub const DISCRETE: Sem = Sem(4);
}

/// A metric descriptor (`pmDesc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// Metric.
    pub pmid: Pmid,
    /// Type of its values.
    pub ty: Type,
    /// Instance domain, or [`Indom::NULL`].
    pub indom: Indom,
    /// Semantics.
    pub sem: Sem,
    /// Units.
    pub units: Units,
}

/// One value (`pmAtomValue`). Strings are bytes without a terminating NUL: kernel names need not be UTF-8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Atom<'a> {
    /// `PM_TYPE_32`
    I32(i32),
    /// `PM_TYPE_U32`
    U32(u32),
    /// `PM_TYPE_64`
    I64(i64),
    /// `PM_TYPE_U64`
    U64(u64),
    /// `PM_TYPE_FLOAT`
    Float(f32),
    /// `PM_TYPE_DOUBLE`
    Double(f64),
    /// `PM_TYPE_STRING`
    Str(&'a [u8]),
    /// `PM_TYPE_AGGREGATE`
    Aggregate(&'a [u8]),
    /// `PM_TYPE_EVENT`: time stamps in seconds and microseconds.
    Event(&'a [EventRecord<'a>]),
    /// `PM_TYPE_HIGHRES_EVENT`: time stamps in seconds and nanoseconds.
    HighresEvent(&'a [EventRecord<'a>]),
}

impl Atom<'_> {
    /// Returns the type of this value.
    pub const fn ty(&self) -> Type {
        match self {
            Atom::I32(_) => Type::I32,
            Atom::U32(_) => Type::U32,
            Atom::I64(_) => Type::I64,
            Atom::U64(_) => Type::U64,
            Atom::Float(_) => Type::FLOAT,
            Atom::Double(_) => Type::DOUBLE,
            Atom::Str(_) => Type::STRING,
            Atom::Aggregate(_) => Type::AGGREGATE,
            Atom::Event(_) => Type::EVENT,
            Atom::HighresEvent(_) => Type::HIGHRES_EVENT,
        }
    }
}

/// A record of an event array (`pmEventRecord`, `pmHighResEventRecord`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventRecord<'a> {
    /// Seconds since 1970.
    pub sec: i64,
    /// Microseconds, or nanoseconds in a high-resolution array.
    pub subsec: i64,
    /// `PM_EVENT_FLAG_*`: 1 point, 2 start, 4 end, 8 has id, 16 has parent, 0x80000000 missed.
    pub flags: u32,
    /// Number of missed records, in a "missed" record.
    pub missed: i32,
    /// Parameters; none in a "missed" record.
    pub params: &'a [EventParam<'a>],
}

/// One parameter of an event record (`pmEventParameter`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventParam<'a> {
    /// Metric that describes the parameter.
    pub pmid: Pmid,
    /// Value; not an event array.
    pub value: Atom<'a>,
}
