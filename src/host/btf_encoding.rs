//! Encoding of the kernel's types (Documentation/bpf/btf.rst): what every reader of them needs.

/// File with the types of a kernel built with CONFIG_DEBUG_INFO_BTF.
pub const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Kinds of types (linux/btf.h).
#[allow(missing_docs)]
pub mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// Returns the size in bytes of a type without the common three words; `None` for unknown kinds.
pub fn body(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match info >> 24 & 31 {
        kind::PTR | kind::FWD | kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT => 0,
        kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::ENUM | kind::FUNC_PROTO => 8 * count,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
        _ => return None,
    })
}

/// Returns the word at an offset in bytes; `None` beyond the end.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

/// A type, as the kernel's file has it.
pub struct EncodedType<'a> {
    /// Its kind, as in [`kind`].
    pub kind: u32,
    /// Bytes behind its three common words.
    pub body: &'a [u8],
    name: u32,
    /// Strings of the types that these refer to, before its own.
    base: &'a [u8],
    strings: &'a [u8],
}

impl<'a> EncodedType<'a> {
    /// Returns its name.
    pub fn name(&self) -> &'a [u8] {
        self.text(self.name)
    }

    /// Returns the string at an offset; empty beyond the end.
    pub fn text(&self, at: u32) -> &'a [u8] {
        let at = at as usize;
        let text = match at.checked_sub(self.base.len()) {
            Some(at) => self.strings.get(at..),
            None => self.base.get(at..),
        };
        text.unwrap_or_default().split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

/// Iterates over the types of a file such as [`KERNEL_TYPES`], whose identifiers are their numbers from 1 on. It ends where the file is cut
/// short or has an unknown kind of type; `None` if it is not such a file.
pub fn encoded_types(bytes: &[u8]) -> Option<impl Iterator<Item = EncodedType<'_>>> {
    types_after(&[], bytes)
}

/// Returns the offset in bytes of a member of a structure, which is among the types of a kernel module or, if the kernel has it too, among
/// those of the kernel. `None` if there is no such member, or it does not begin at a byte.
pub fn member_offset(kernel: &[u8], module: &[u8], structure: &str, member: &str) -> Option<u32> {
    let is_it = |of: &EncodedType<'_>| of.kind == kind::STRUCT && of.name() == structure.as_bytes();
    let (_, strings) = parts(kernel)?;
    let of_module = types_after(strings, module).and_then(|mut types| types.find(is_it));
    let of = of_module.or_else(|| encoded_types(kernel)?.find(is_it))?;
    let mut members = of.body.chunks_exact(12);
    let found = members.find(|each| word(each, 0).is_some_and(|name| of.text(name) == member.as_bytes()))?;
    let bits = word(found, 8)?;
    (bits % 8 == 0 && bits >> 24 == 0).then_some(bits / 8)
}

/// Returns types and strings of such a file.
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // Magic, version and flags; then the length of the header, and where types and strings are in what follows.
    let header = |nth: usize| word(bytes, 4 * nth).map(|word| word as usize);
    let after = bytes.get(header(1)?..)?;
    let (types, strings) = (after.get(header(2)?..)?, after.get(header(4)?..)?);
    Some((types.get(..header(3)?)?, strings.get(..header(5)?)?))
}

fn types_after<'a>(base: &'a [u8], bytes: &'a [u8]) -> Option<impl Iterator<Item = EncodedType<'a>>> {
    let (mut left, strings) = parts(bytes)?;
    Some(std::iter::from_fn(move || {
        let (name, info) = (word(left, 0)?, word(left, 4)?);
        let end = body(info)?.checked_add(12)?;
        let body = left.get(12..end)?;
        left = &left[end..];
        Some(EncodedType { kind: info >> 24 & 31, body, name, base, strings })
    }))
}

/// Returns the enumerators of an enumeration of 32 bits: value and name. Empty if the types have none of this name.
pub fn enumerators(types: &[u8], enumeration: &str) -> Vec<(u32, String)> {
    let is_it = |of: &EncodedType<'_>| of.kind == kind::ENUM && of.name() == enumeration.as_bytes();
    let Some(found) = encoded_types(types).and_then(|mut types| types.find(is_it)) else { return Vec::new() };
    let each = found.body.chunks_exact(8).filter_map(|each| {
        let name = String::from_utf8_lossy(found.text(word(each, 0)?)).into_owned();
        Some((word(each, 4)?, name))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes types from words, and strings.
    fn types(words: &[u32], strings: &str) -> Vec<u8> {
        let (types, strings) = (words.len() as u32 * 4, strings.as_bytes());
        let header = [0x1_eb9f, 24, 0, types, types, strings.len() as u32];
        let words = header.iter().chain(words).flat_map(|word| word.to_ne_bytes());
        words.chain(strings.iter().copied()).collect()
    }

    #[test]
    fn an_enumeration_is_found_by_its_name() {
        let words = [
            [1, kind::INT << 24, 4, 32].as_slice(),
            &[5, kind::ENUM << 24 | 2, 4, 11, 7, 13, u32::MAX],
            &[15, kind::ENUM << 24 | 1, 4, 13, 1],
        ];
        let types = types(&words.concat(), "\0int\0first\0A\0B\0second\0");
        assert_eq!(enumerators(&types, "first"), [(7, "A".into()), (u32::MAX, "B".into())]);
        assert_eq!(enumerators(&types, "second"), [(1, "B".into())]);
        assert_eq!(enumerators(&types, "third"), []);
        for length in 0..types.len() {
            enumerators(&types[..length], "second");
        }
        assert_eq!(enumerators(&types[..types.len() - 1], "int"), []);
    }

    #[test]
    fn a_member_of_a_module_has_names_of_both() {
        let base = types(&[1, kind::INT << 24, 4, 32], "\0int\0task\0");
        // Behind the ten bytes of the base: the structure's name is there, those of its members are here.
        let words = [5, kind::STRUCT << 24 | 3, 24, 11, 1, 0, 17, 1, 128, 23, 1, 131];
        let module = types(&words, "\0first\0other\0bits\0");
        let offset = |structure, member| member_offset(&base, &module, structure, member);
        assert_eq!([offset("task", "first"), offset("task", "other")], [Some(0), Some(16)]);
        assert_eq!([offset("task", "bits"), offset("task", "none"), offset("int", "first")], [None; 3]);
        assert_eq!(member_offset(&[], &module, "task", "first"), None);
        let kernel = types(&[1, kind::STRUCT << 24 | 1, 8, 6, 1, 64], "\0call\0name\0");
        assert_eq!([&module, &[][..]].map(|module| member_offset(&kernel, module, "call", "name")), [Some(8); 2]);
    }
}
