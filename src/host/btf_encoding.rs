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
