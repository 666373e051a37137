//! Properties of a map that a later agent compares before it reads the contents: kind, sizes, and the types of key and
//! value.

use crate::kit::Layout;
use libbpf_rs::btf::types::{Array, Composite, Int};
use libbpf_rs::btf::{BtfKind, BtfType, TypeId};
use libbpf_rs::{libbpf_sys, AsRawLibbpf, Btf, MapHandle, MapInfo, MapType, OpenMap, OpenObject};
use std::os::fd::AsFd;

/// Highest number of types in a description, so that no object makes it endless, or its nesting too deep for the stack.
const MOST_TYPES: usize = 1000;

/// A map as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapShape {
    /// Name.
    pub name: String,
    kind: MapType,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    /// Types of key and value, with names and offsets of members.
    types: String,
}

impl MapShape {
    /// Returns the shapes of an object's maps with these names, as they are to be created.
    pub fn of(object: &OpenObject, names: &[String]) -> Vec<MapShape> {
        // SAFETY: the object is open, and lives longer than its types.
        let btf = Btf::from_bpf_object(unsafe { object.as_libbpf_object().as_ref() }).ok().flatten();
        let maps = object.maps().filter(|map| names.iter().any(|name| map.name() == name.as_str()));
        maps.map(|map| MapShape::of_map(&map, btf.as_ref())).collect()
    }

    fn of_map(map: &OpenMap<'_>, btf: Option<&Btf<'_>>) -> MapShape {
        let raw = map.as_libbpf_object().as_ptr();
        // SAFETY: the map is one of an open object.
        let ids = unsafe { [libbpf_sys::bpf_map__btf_key_type_id(raw), libbpf_sys::bpf_map__btf_value_type_id(raw)] };
        let mut types = String::new();
        let mut left = MOST_TYPES;
        for id in ids {
            btf.iter().for_each(|btf| describe(btf, TypeId::from(id), &mut left, &mut types));
            types.push(';');
        }
        MapShape {
            name: map.name().to_string_lossy().into_owned(),
            kind: map.map_type(),
            key_size: map.key_size(),
            value_size: map.value_size(),
            entries: map.max_entries(),
            flags: map.map_flags(),
            types,
        }
    }

    /// Adds this map to a layout.
    pub fn add_to(&self, layout: Layout) -> Layout {
        let MapShape { name, kind, key_size, value_size, entries, flags, types } = self;
        layout.with(format_args!("{name} {} {key_size} {value_size} {entries} {flags} {types}", *kind as u32))
    }

    /// True if a map in the kernel has this shape, as far as the kernel tells.
    pub fn is_of(&self, map: &MapHandle) -> bool {
        MapInfo::new(map.as_fd()).is_ok_and(|info| {
            let sizes = (info.info.key_size, info.info.value_size, info.info.max_entries);
            info.map_type() == self.kind && sizes == (self.key_size, self.value_size, self.entries)
        })
    }
}

/// Describes a type by everything that gives bytes a meaning.
fn describe(btf: &Btf<'_>, id: TypeId, left: &mut usize, text: &mut String) {
    let Some(ty) = btf.type_by_id::<BtfType<'_>>(id) else { return };
    if *left == 0 {
        return;
    }
    *left -= 1;
    match ty.kind() {
        BtfKind::Typedef | BtfKind::Const | BtfKind::Volatile | BtfKind::Restrict | BtfKind::TypeTag => {
            ty.next_type().iter().for_each(|next| describe(btf, next.type_id(), left, text));
        }
        BtfKind::Struct | BtfKind::Union => {
            let Ok(composite) = Composite::try_from(ty) else { return };
            text.push('{');
            for member in composite.iter() {
                let name = member.name.unwrap_or_default().to_string_lossy();
                *text += &format!("{name} {:?} ", member.attr);
                describe(btf, member.ty, left, text);
                text.push(',');
            }
            text.push('}');
        }
        BtfKind::Array => {
            let Ok(array) = Array::try_from(ty) else { return };
            *text += &format!("[{}]", array.capacity());
            describe(btf, array.ty(), left, text);
        }
        BtfKind::Int => {
            let int = Int::try_from(ty).map(|int| (int.bits, format!("{:?}", int.encoding)));
            *text += &format!("{int:?}");
        }
        kind => *text += &format!("{kind:?} {:?}", ty.name().unwrap_or_default()),
    }
}
