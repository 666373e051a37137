//! Maps of the BPF object: how a module declares one.

use std::marker::PhantomData;

/// A map of the BPF object that the agent reads or sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// Name in the object, at most 15 characters (`BPF_OBJ_NAME_LEN`).
    pub name: &'static str,
    /// Kind.
    pub kind: MapKind,
    /// Size of a value in bytes; for a ring, of a record.
    pub value_size: usize,
    /// Number of rows per CPU, for a [`super::Declared`] module.
    pub per_cpu: usize,
    /// Offset in a row of the word that is not 0 while the row is in use.
    pub taken: Option<usize>,
    /// Counter of events dropped because this map is full: the map that holds it, and its offset there.
    pub lost: Option<(&'static str, usize)>,
    /// Map in which programs mark the parts of this one with rows in use (bpf/shared/owned.bpf.h); only these parts are
    /// mapped.
    pub marks: Option<&'static str>,
}

/// Joins lists of maps, of `N` maps in all.
pub const fn joined<const N: usize>(lists: &[&[MapDef]]) -> [MapDef; N] {
    let mut all = [lists[0][0]; N];
    let (mut list, mut at, mut total) = (0, 0, 0);
    while list < lists.len() {
        if at == lists[list].len() {
            (list, at) = (list + 1, 0);
        } else {
            all[total] = lists[list][at];
            (at, total) = (at + 1, total + 1);
        }
    }
    assert!(total == N);
    all
}

/// Number of rows per CPU in a map of counters by key (bpf/shared/keys.bpf.h).
pub const KEYS: usize = 64;

/// The kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// An array of counters that the agent maps into its memory and reads without a system call.
    Rows,
    /// An array that only the programs use.
    Private,
    /// Array by CPU that only the programs use.
    ByCpu,
    /// A ring buffer of records.
    Ring,
    /// A hash that only the programs use.
    Hash,
}

impl MapDef {
    /// Declares an array of `T` that only the programs use, for [`crate::maps!`].
    pub const fn private<T>(name: &'static str) -> MapDef {
        MapDef::of::<T>(name, MapKind::Private)
    }

    /// Declares a map of `T`, for [`crate::maps!`].
    pub const fn of<T>(name: &'static str, kind: MapKind) -> MapDef {
        MapDef { name, kind, value_size: size_of::<T>(), per_cpu: 1, taken: None, lost: None, marks: None }
    }
}

/// A map of counters with rows of `T`: a C struct of 64-bit words whose Rust form is generated from the BTF of the BPF
/// object.
pub struct Rows<T> {
    /// Declaration.
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
    /// Declares a map of counters, for [`crate::maps!`].
    pub const fn new(name: &'static str) -> Self {
        Rows { def: MapDef::of::<T>(name, MapKind::Rows), row: PhantomData }
    }
}

/// Declares a module's maps: a constant per line and `MAPS`. `rows` are counters the agent reads, `private` and `hash`
/// are used by the programs only, a `ring` carries records. `taken FIELD` names the field that is not 0 while a row is
/// in use; `lost FIELD in MAP` the counter of events dropped because the map was full; `marked in MAP` the map in which
/// programs mark the parts of a large, mostly empty table that have rows in use. `keyed` are counters by CPU and key
/// (bpf/shared/keys.bpf.h), which imply `taken` and `lost`.
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
    (@kind by_cpu) => { $crate::kit::MapKind::ByCpu };
    (@kind ring) => { $crate::kit::MapKind::Ring };
    (@kind hash) => { $crate::kit::MapKind::Hash };
    (@def keyed $ty:ty, $name:expr) => {
        $crate::kit::MapDef {
            per_cpu: $crate::kit::KEYS,
            taken: Some(<$ty>::key.offset()),
            lost: Some(($name, <$ty>::lost.offset())),
            ..$crate::kit::MapDef::of::<$ty>($name, $crate::kit::MapKind::Rows)
        }
    };
    (@def $kind:ident $ty:ty, $name:expr) => {
        $crate::kit::MapDef::of::<$ty>($name, $crate::maps!(@kind $kind))
    };
    (@const keyed $id:ident $ty:ty, $name:expr) => {
        $crate::maps!(@const rows $id $ty, $name);
    };
    (@const rows $id:ident $ty:ty, $name:expr) => {
        const $id: $crate::kit::Rows<$ty> = $crate::kit::Rows::new($name);
    };
    (@const $kind:ident $id:ident $ty:ty, $name:expr) => {
        const $id: $crate::kit::MapDef = $crate::kit::MapDef::of::<$ty>($name, $crate::maps!(@kind $kind));
    };
    ($(
        $kind:ident $id:ident: $ty:ty = $name:expr $(, taken $taken:ident)? $(, lost $stat:ident.$lost:ident in $stats:expr)?
        $(, marked in $marks:expr)?;
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
