//! How a module is declared: metrics, maps, options, hooks. Everything else about it (names, descriptors, instance domains,
//! help, default configuration, checks of the BPF object) follows from the [`Spec`].

use super::{Hook, Log2, Module, OptionDef, Setup, SetupError};
use crate::pcp::{Atom, Sem, Type, Units};
use std::marker::PhantomData;

/// The kind of a module. A section of the configuration makes an instance of it.
pub struct Spec {
    /// The stem of its files and the default name of its section.
    pub name: &'static str,
    /// What the option `module` says: the name, with the directory it had in the Python agent (`fs.ext4dist`).
    pub path: &'static str,
    /// One line: what it shows.
    pub summary: &'static str,
    /// Default PMID cluster, and serial of the instance domain.
    pub cluster: u32,
    /// The instance domain.
    pub shape: Shape,
    /// The metrics, in the order of their items.
    pub metrics: &'static [MetricDef],
    /// What it has beyond the Python agent's metrics: others with a cluster and an instance domain of their own, from 310 on.
    pub addition: Option<&'static Spec>,
    /// The options of its section.
    pub options: &'static [OptionDef],
    /// Where it attaches, for the table of hooks; an instance may want only some of them.
    pub hooks: &'static [&'static Hook],
    /// The maps of the BPF object that it owns or shares. A map is created only if a module that is on names it.
    pub maps: &'static [MapDef],
    /// Reads the section and makes the module.
    pub make: fn(&Setup<'_>) -> Result<Box<dyn Module + Send>, SetupError>,
}

impl Spec {
    /// Metrics that no section of a configuration asks for: they come with a module, or with the agent.
    pub const fn unasked(
        name: &'static str,
        summary: &'static str,
        cluster: u32,
        shape: Shape,
        metrics: &'static [MetricDef],
    ) -> Spec {
        Spec {
            name,
            path: name,
            summary,
            cluster,
            shape,
            metrics,
            addition: None,
            options: &[],
            hooks: &[],
            maps: &[],
            make: |setup| Err(setup.section.reject("module", "expected a module that can be enabled")),
        }
    }

    /// A section for the module with these lines, and with examples of what has to be given and is not in them.
    pub fn section(&self, lines: &str) -> String {
        let mut text = format!("[{}]\nmodule = {}\ncluster = {}\n{lines}\n", self.name, self.path, self.cluster);
        for (name, example) in self.options.iter().filter_map(|option| Some((option.name, option.example?))) {
            if !lines.lines().any(|line| line.split('=').next().is_some_and(|key| key.trim() == name)) {
                text += &format!("{name} = {example}\n");
            }
        }
        text
    }
}

/// An instance domain's shape: it owns naming, identifiers, persistence, trimming and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No instance domain.
    Single,
    /// Powers of two: `0-1`, `2-3`, `4-7`, ... up to the highest that ever counted; the identifier is the slot.
    Log2(Log2),
    /// Rows `0` to n-1, most recent or highest first; the identifier is the row. The option named here says how many.
    Rows {
        /// The option that holds the number of rows.
        count: &'static str,
        /// Which row comes first, for the documents.
        order: &'static str,
    },
    /// Any names, at most `max`: identifiers are handed out once and kept over restarts.
    Named {
        /// Names beyond it are refused, and counted.
        max: usize,
    },
    /// As [`Shape::Named`], but the first word of a name alone gets the identifier and is kept. What follows it may change.
    Words {
        /// Words beyond it are refused, and counted.
        max: usize,
    },
    /// Processes: the identifier is the process id.
    Pids,
    /// Numbers that have names: the identifier is the number.
    Numbered,
}

/// One metric of a module.
pub struct MetricDef {
    /// The PMID item: written out, so that no metric's identifier moves when a line is inserted.
    pub item: u32,
    /// The name below the prefix.
    pub name: &'static str,
    /// Complete names it has as well where the section asks for them: see [`BPF_NAMES`].
    pub also: &'static [&'static str],
    /// From the Rust type.
    pub ty: Type,
    /// Semantics.
    pub sem: Sem,
    /// Units.
    pub units: Units,
    /// One line of help.
    pub oneline: &'static str,
}

/// The option by which a section asks for the names that PCP's pmdabpf has for the same metrics.
pub const BPF_NAMES: &str = "bpf_names";

/// A metric as a module names it when it sets values; `T` is what a value is.
pub struct Metric<T: ?Sized> {
    /// Its column in the module's table: its place among the metrics.
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
    /// The metric in this column; [`crate::metrics!`] calls it.
    pub const fn new(column: usize) -> Self {
        Metric { column, ty: PhantomData }
    }
}

/// A Rust type that a metric's values can have.
pub trait MetricType {
    /// The PCP type.
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

impl MetricType for str {
    const TYPE: Type = Type::STRING;
}

/// The `Atom` of a number.
pub trait Number: MetricType + Copy {
    /// The value as PCP sees it.
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

/// A map of the BPF object that the agent reads or sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// Its name in the object, at most 15 characters (`BPF_OBJ_NAME_LEN`).
    pub name: &'static str,
    /// What kind it is.
    pub kind: MapKind,
    /// Bytes of a value; for a ring, of a record.
    pub value_size: usize,
    /// The word of a row, by its offset, that is not 0 while somebody has the row.
    pub taken: Option<usize>,
    /// What found no place here: the map of counters that counts it, and the counter's offset.
    pub lost: Option<(&'static str, usize)>,
}

/// What a map is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// An array of counters that the agent maps into its memory: no system call reads it.
    Rows,
    /// An array that only the programs use.
    Slots,
    /// A ring buffer of records.
    Ring,
    /// A hash that only the programs use.
    Hash,
}

impl MapDef {
    /// An array of `T` that only the programs use; [`crate::maps!`] calls it.
    pub const fn slots<T>(name: &'static str) -> MapDef {
        MapDef::of::<T>(name, MapKind::Slots)
    }

    /// A map of `T`; [`crate::maps!`] calls it.
    pub const fn of<T>(name: &'static str, kind: MapKind) -> MapDef {
        MapDef { name, kind, value_size: size_of::<T>(), taken: None, lost: None }
    }
}

/// A map of counters: rows of `T`, a C struct of 64-bit words whose Rust form the BPF object's own type information yields.
pub struct Rows<T> {
    /// Its declaration.
    pub def: MapDef,
    row: PhantomData<fn() -> T>,
}

impl<T> Clone for Rows<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<T> {}

impl<T> Rows<T> {
    /// [`crate::maps!`] calls it.
    pub const fn new(name: &'static str) -> Self {
        Rows { def: MapDef::of::<T>(name, MapKind::Rows), row: PhantomData }
    }
}

/// Declares a module's metrics: a typed constant per line and `METRICS`.
///
/// ```text
/// metrics! { LATENCY: u64 = 0 "disk.all.latency" COUNTER USEC "block I/O latency distribution"; }
/// ```
///
/// A second, complete name follows the first after a `|`.
#[macro_export]
macro_rules! metrics {
    (@columns $column:expr;) => {};
    (@columns $column:expr; $id:ident: $ty:ty, $($rest:tt)*) => {
        const $id: $crate::kit::Metric<$ty> = $crate::kit::Metric::new($column);
        $crate::metrics!(@columns $column + 1; $($rest)*);
    };
    ($($id:ident: $ty:ty = $item:literal $name:literal $(| $also:literal)? $sem:ident $units:ident $oneline:literal;)*) => {
        $crate::metrics!(@columns 0; $($id: $ty,)*);
        const METRICS: &[$crate::kit::MetricDef] = &[$($crate::kit::MetricDef {
            item: $item,
            name: $name,
            also: &[$($also)?],
            ty: <$ty as $crate::kit::MetricType>::TYPE,
            sem: $crate::pcp::Sem::$sem,
            units: $crate::pcp::Units::$units,
            oneline: $oneline,
        },)*];
    };
}

/// Declares a module's maps: a constant per line and `MAPS`. `rows` are counters the agent reads, `slots` and a `hash` are the
/// programs' own, a `ring` carries records. Of a table that fills up a line says which field shows that a row is taken, and of
/// what can overflow, which field of which other map counts what was lost.
///
/// ```text
/// maps! { rows ROWS: runq_row = "runq_rows"; slots DELAYS: runq_delay = "runq_delays"; }
/// maps! { rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats"; }
/// ```
#[macro_export]
macro_rules! maps {
    (@kind rows) => { $crate::kit::MapKind::Rows };
    (@kind slots) => { $crate::kit::MapKind::Slots };
    (@kind ring) => { $crate::kit::MapKind::Ring };
    (@kind hash) => { $crate::kit::MapKind::Hash };
    (@const rows $id:ident $ty:ty, $name:literal) => {
        const $id: $crate::kit::Rows<$ty> = $crate::kit::Rows::new($name);
    };
    (@const $kind:ident $id:ident $ty:ty, $name:literal) => {
        const $id: $crate::kit::MapDef = $crate::kit::MapDef::of::<$ty>($name, $crate::maps!(@kind $kind));
    };
    ($(
        $kind:ident $id:ident: $ty:ty = $name:literal $(, taken $taken:ident)? $(, lost $stat:ident.$lost:ident in $stats:literal)?;
    )*) => {
        $($crate::maps!(@const $kind $id $ty, $name);)*
        const MAPS: &[$crate::kit::MapDef] = &[$({
            #[allow(unused_mut)]
            let mut def = $crate::kit::MapDef::of::<$ty>($name, $crate::maps!(@kind $kind));
            $(def.taken = Some(std::mem::offset_of!($ty, $taken));)?
            $(def.lost = Some(($stats, std::mem::offset_of!($stat, $lost)));)?
            def
        }),*];
    };
}
