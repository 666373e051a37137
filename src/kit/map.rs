//! Maps of the BPF object: how a module declares one.

use std::marker::PhantomData;

/// A map of the BPF object that the agent reads or sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// Its name in the object, at most 15 characters (`BPF_OBJ_NAME_LEN`).
    pub name: &'static str,
    /// What kind it is.
    pub kind: MapKind,
    /// Bytes of a value; for a ring, of a record.
    pub value_size: usize,
    /// Rows per CPU, where the module is [`super::Declared`].
    pub per_cpu: usize,
    /// The word of a row, by its offset, that is not 0 while somebody has the row.
    pub taken: Option<usize>,
    /// What found no place here: the map of counters that counts it, and the counter's offset.
    pub lost: Option<(&'static str, usize)>,
    /// The map in which programs mark parts of this one with rows in use (bpf/shared/claim.bpf.h): only these are mapped.
    pub marks: Option<&'static str>,
}

/// Rows per CPU of a map of counters by key (bpf/shared/keys.bpf.h).
pub const KEYS: usize = 64;

/// What a map is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// An array of counters that the agent maps into its memory: no system call reads it.
    Rows,
    /// An array that only the programs use.
    Private,
    /// A ring buffer of records.
    Ring,
    /// A hash that only the programs use.
    Hash,
}

impl MapDef {
    /// An array of `T` that only the programs use; [`crate::maps!`] calls it.
    pub const fn private<T>(name: &'static str) -> MapDef {
        MapDef::of::<T>(name, MapKind::Private)
    }

    /// A map of `T`; [`crate::maps!`] calls it.
    pub const fn of<T>(name: &'static str, kind: MapKind) -> MapDef {
        MapDef { name, kind, value_size: size_of::<T>(), per_cpu: 1, taken: None, lost: None, marks: None }
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

/// Declares a module's maps: a constant per line and `MAPS`. `rows` are counters the agent reads, `private` and a `hash` are the
/// programs' own, a `ring` carries records. Of a table that fills up a line says which field shows that a row is taken, and of
/// what can overflow, which field of which other map counts what was lost. `keyed` are counters by CPU and key
/// (bpf/shared/keys.bpf.h), of which both follow. Of a large table that is mostly
/// empty a line says which other map the programs mark rows in that are in use.
///
/// ```text
/// maps! { rows ROWS: runq_row = "runq_rows"; private TASKS: runq_task = "runq_tasks"; }
/// maps! { rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats"; }
/// maps! { rows ROWS: bio_row = "bio_rows", taken disk, marked in "bio_marks"; rows MARKS: mark = "bio_marks"; }
/// ```
#[macro_export]
macro_rules! maps {
    (@kind rows) => { $crate::kit::MapKind::Rows };
    (@kind private) => { $crate::kit::MapKind::Private };
    (@kind ring) => { $crate::kit::MapKind::Ring };
    (@kind hash) => { $crate::kit::MapKind::Hash };
    (@def keyed $ty:ty, $name:literal) => {
        $crate::kit::MapDef {
            per_cpu: $crate::kit::KEYS,
            taken: Some(<$ty>::key.offset()),
            lost: Some(($name, <$ty>::lost.offset())),
            ..$crate::kit::MapDef::of::<$ty>($name, $crate::kit::MapKind::Rows)
        }
    };
    (@def $kind:ident $ty:ty, $name:literal) => {
        $crate::kit::MapDef::of::<$ty>($name, $crate::maps!(@kind $kind))
    };
    (@const keyed $id:ident $ty:ty, $name:literal) => {
        $crate::maps!(@const rows $id $ty, $name);
    };
    (@const rows $id:ident $ty:ty, $name:literal) => {
        const $id: $crate::kit::Rows<$ty> = $crate::kit::Rows::new($name);
    };
    (@const $kind:ident $id:ident $ty:ty, $name:literal) => {
        const $id: $crate::kit::MapDef = $crate::kit::MapDef::of::<$ty>($name, $crate::maps!(@kind $kind));
    };
    ($(
        $kind:ident $id:ident: $ty:ty = $name:literal $(, taken $taken:ident)? $(, lost $stat:ident.$lost:ident in $stats:literal)?
        $(, marked in $marks:literal)?;
    )*) => {
        $($crate::maps!(@const $kind $id $ty, $name);)*
        const MAPS: &[$crate::kit::MapDef] = &[$({
            #[allow(unused_mut)]
            let mut def = $crate::maps!(@def $kind $ty, $name);
            $(def.taken = Some(<$ty>::$taken.offset());)?
            $(def.lost = Some(($stats, <$stat>::$lost.offset()));)?
            $(def.marks = Some($marks);)?
            def
        }),*];
    };
}
