//! Metrics: their declaration, and the typed names by which a module sets their values.

use crate::pcp::{Atom, Sem, Type, Units};
use std::marker::PhantomData;

/// One metric of a module.
#[derive(Debug)]
pub struct MetricDef {
    /// PMID item: written out, so that no metric's identifier changes when a line is inserted.
    pub item: u32,
    /// Name below the prefix.
    pub name: &'static str,
    /// Further complete names, served if the section asks for them: see [`BPF_NAMES`].
    pub also: &'static [&'static str],
    /// Type, from the Rust type.
    pub ty: Type,
    /// Semantics.
    pub sem: Sem,
    /// Units.
    pub units: Units,
    /// One-line help text.
    pub oneline: &'static str,
}

/// Option with which a section asks for pmdabpf's names of the same metrics.
pub const BPF_NAMES: &str = "bpf_names";

/// A metric in the code of its module; `T` is the type of its values.
pub struct Metric<T: ?Sized> {
    /// Column in the module's table: the index among the metrics.
    pub column: usize,
    ty: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Clone for Metric<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Metric<T> {}

impl<T: ?Sized> Metric<T> {
    /// Returns the metric of this column, for [`crate::metrics!`].
    pub const fn new(column: usize) -> Self {
        Metric { column, ty: PhantomData }
    }
}

/// A Rust type that a metric's values can have.
pub trait MetricType {
    /// PCP type.
    const TYPE: Type;
}

impl MetricType for u64 {
    const TYPE: Type = Type::U64;
}

impl MetricType for u32 {
    const TYPE: Type = Type::U32;
}

impl MetricType for i32 {
    const TYPE: Type = Type::I32;
}

impl MetricType for i64 {
    const TYPE: Type = Type::I64;
}

impl Number for i64 {
    fn atom(self) -> Atom<'static> {
        Atom::I64(self)
    }
}

impl MetricType for str {
    const TYPE: Type = Type::STRING;
}

/// A number type of metric values.
pub trait Number: MetricType + Copy {
    /// Returns the value as an [`Atom`].
    fn atom(self) -> Atom<'static>;
}

impl Number for u64 {
    fn atom(self) -> Atom<'static> {
        Atom::U64(self)
    }
}

impl Number for u32 {
    fn atom(self) -> Atom<'static> {
        Atom::U32(self)
    }
}

impl Number for i32 {
    fn atom(self) -> Atom<'static> {
        Atom::I32(self)
    }
}

impl MetricType for f64 {
    const TYPE: Type = Type::DOUBLE;
}

impl Number for f64 {
    fn atom(self) -> Atom<'static> {
        Atom::Double(self)
    }
}

/// Declares a module's metrics: a typed constant per line and `METRICS`.
///
/// ```text
/// metrics! { LATENCY: u64 = 0 "disk.all.latency" COUNTER USEC "block I/O latency distribution"; }
/// ```
///
/// A second, complete name follows the first after a `|`. A module that sets its metrics by column writes `_` for the constants.
#[macro_export]
macro_rules! metrics {
    (@columns $column:expr;) => {};
    (@columns $column:expr; $id:tt: $ty:ty, $($rest:tt)*) => {
        const $id: $crate::kit::Metric<$ty> = $crate::kit::Metric::new($column);
        $crate::metrics!(@columns $column + 1; $($rest)*);
    };
    ($($id:tt: $ty:ty = $item:literal $name:literal $(| $also:literal)* $sem:ident $units:ident $oneline:literal;)*) => {
        $crate::metrics!(@columns 0; $($id: $ty,)*);
        const METRICS: &[$crate::kit::MetricDef] = &[$($crate::kit::MetricDef {
            item: $item,
            name: $name,
            also: &[$($also),*],
            ty: <$ty as $crate::kit::MetricType>::TYPE,
            sem: $crate::pcp::Sem::$sem,
            units: $crate::pcp::Units::$units,
            oneline: $oneline,
        },)*];
    };
}
