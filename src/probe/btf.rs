//! Functions in the kernel's BTF: their identifiers, for fentry and fexit, and the widths of their return values.

use libbpf_rs::btf::types::{Enum, Enum64, Func, Int};
use libbpf_rs::btf::{Btf, BtfKind, BtfType};
use libbpf_rs::btf::{HasSize, TypeId};
use std::cell::OnceCell;

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its type's identifier.
    pub id: u32,
    /// Bits of its return value; 0 if it has none.
    pub bits: u32,
}

/// The functions of the kernel, parsed when the first is looked for: it takes ten milliseconds.
#[derive(Default)]
pub struct Functions {
    btf: OnceCell<Option<Btf<'static>>>,
}

impl Functions {
    /// A function of the kernel itself; those of modules are not looked for.
    pub fn find(&self, name: &str) -> Option<Function> {
        let btf = self.btf.get_or_init(|| Btf::from_vmlinux().ok()).as_ref()?;
        if name.contains('\0') {
            return None;
        }
        // A type can have the name of a function.
        let function = btf.type_by_name::<Func<'_>>(name).or_else(|| {
            let mut all = (1..btf.len() as u32).filter_map(|id| btf.type_by_id::<Func<'_>>(TypeId::from(id)));
            all.find(|function| function.name().is_some_and(|known| known == name))
        })?;
        let prototype = function.next_type()?;
        Some(Function { id: function.type_id().into(), bits: prototype.next_type().map_or(0, width) })
    }
}

/// Bits of a value of a type.
fn width(ty: BtfType<'_>) -> u32 {
    let ty = ty.skip_mods_and_typedefs();
    let size = match ty.kind() {
        BtfKind::Void => 0,
        BtfKind::Int => Int::try_from(ty).map_or(8, |int| int.size()),
        BtfKind::Enum => Enum::try_from(ty).map_or(8, |int| int.size()),
        BtfKind::Enum64 => Enum64::try_from(ty).map_or(8, |int| int.size()),
        _ => 8,
    };
    size as u32 * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widths_of_return_values_are_those_of_their_types() {
        let functions = Functions::default();
        if functions.find("vfs_read").is_none() {
            println!("skipped: the_widths_of_return_values_are_those_of_their_types: a kernel with BTF");
            return;
        }
        let bits = |name| functions.find(name).map(|function| function.bits);
        assert_eq!(bits("vfs_read"), Some(64));
        assert_eq!(bits("vfs_open"), Some(32));
        assert_eq!(bits("kfree"), Some(0));
        assert_eq!(bits("no_such_function"), None);
    }
}
