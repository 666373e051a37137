//! Constants of programs (`const volatile`) as immediates. The kernel's verifier knows their values and removes the branches that depend on
//! them, but leaves the loads. What is set once, before loading, need not be loaded each time.

use libbpf_rs::libbpf_sys::{bpf_insn, BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, BPF_PSEUDO_MAP_VALUE};
use libbpf_rs::{MapCore, MapFlags, Object};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};

/// `BPF_LD | BPF_IMM | BPF_DW`: a 64-bit constant in two instructions.
pub const LOAD_64: u8 = 0x18;
/// `BPF_JMP | BPF_JA`: with offset 0 it does nothing, and the verifier removes it.
const GOTO: u8 = 0x05;
/// `BPF_JMP32 | BPF_JA`: its distance is in `imm`.
const GOTO_FAR: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `BPF_MOV` of a register or a number, of 64 bits and of 32.
const MOVES: [u8; 4] = [0xb7, 0xbf, 0xb4, 0xbc];
/// Classes of instructions, their lowest three bits: `BPF_LDX`, `BPF_JMP`, `BPF_JMP32`.
const LOAD: u8 = 1;
const JUMP: u8 = 5;
const JUMP_32: u8 = 6;

/// The constants of an object, and the map that its programs load them from.
pub struct Constants {
    /// The map's descriptor, which is what the programs say before they are loaded.
    map: i32,
    bytes: Vec<u8>,
}

impl Constants {
    /// Those of an object whose maps exist; `None` if it has none.
    pub fn of(object: &Object) -> Option<Constants> {
        let map = object.maps().find(|map| map.name().to_string_lossy().ends_with(".rodata"))?;
        let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten()?;
        Some(Constants { map: map.as_fd().as_raw_fd(), bytes })
    }

    /// Replaces the address of a constant and the load through it by the constant where nothing else uses the address:
    ///
    /// ```text
    /// r1 = address ll            r1 = constant ll
    /// r1 = *(u32 *)(r1 + 0)      goto +0
    /// ```
    pub fn write_into(&self, code: &mut [bpf_insn]) {
        let targets = targets(code);
        for at in 0..code.len().saturating_sub(2) {
            let Some(constant) = self.loaded_at(code, at) else { continue };
            let (address, value) = (code[at].dst_reg(), code[at + 2].dst_reg());
            let is_used = address != value && !overwrites(&code[at + 3..], address);
            if is_used || targets.contains(&(at + 2)) {
                continue;
            }
            code[at].set_dst_reg(value);
            code[at].set_src_reg(0);
            (code[at].imm, code[at + 1].imm) = (constant as i32, (constant >> 32) as i32);
            code[at + 2] = bpf_insn { code: GOTO, ..Default::default() };
        }
    }

    /// The constant whose address the instruction loads, if the one behind it loads the constant.
    fn loaded_at(&self, code: &[bpf_insn], at: usize) -> Option<u64> {
        let [address, high, load] = code.get(at..at + 3)? else { return None };
        let is_address =
            address.code == LOAD_64 && u32::from(address.src_reg()) == BPF_PSEUDO_MAP_VALUE && address.imm == self.map;
        // `BPF_LDX | BPF_MEM` and a width.
        let width = match load.code {
            0x71 => 1,
            0x69 => 2,
            0x61 => 4,
            0x79 => 8,
            _ => return None,
        };
        if !is_address || load.src_reg() != address.dst_reg() {
            return None;
        }
        let start = usize::try_from(i64::from(high.imm) + i64::from(load.off)).ok()?;
        let bytes = self.bytes.get(start..start.checked_add(width)?)?;
        let extended = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(match cfg!(target_endian = "big") {
            true => bytes.iter().fold(0, extended),
            false => bytes.iter().rev().fold(0, extended),
        })
    }
}

/// Where jumps lead, and where functions of the object begin.
fn targets(code: &[bpf_insn]) -> BTreeSet<usize> {
    let target = |(at, insn): (usize, &bpf_insn)| {
        let distance = match (insn.code & 7, insn.code, u32::from(insn.src_reg())) {
            (_, CALL, BPF_PSEUDO_CALL) | (_, LOAD_64, BPF_PSEUDO_FUNC) | (_, GOTO_FAR, _) => insn.imm,
            (_, CALL | EXIT, _) => return None,
            (JUMP | JUMP_32, ..) => i32::from(insn.off),
            _ => return None,
        };
        usize::try_from(at as i64 + 1 + i64::from(distance)).ok()
    };
    code.iter().enumerate().filter_map(target).collect()
}

/// Whether these instructions set a register before they use it, as far as that shows before the next jump or call.
fn overwrites(code: &[bpf_insn], register: u8) -> bool {
    for insn in code {
        let is_dst = insn.dst_reg() == register;
        let is_src = insn.src_reg() == register && insn.code != LOAD_64;
        let sets = is_dst && (insn.code == LOAD_64 || insn.code & 7 == LOAD || MOVES.contains(&insn.code));
        if sets || is_src || is_dst || matches!(insn.code & 7, JUMP | JUMP_32) {
            return sets && !is_src;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: i32 = 7;

    fn insn(bytes: [u8; 8]) -> bpf_insn {
        let [code, registers, off @ .., a, b, c, d] = bytes;
        let mut insn = bpf_insn {
            code,
            off: i16::from_le_bytes(off),
            imm: i32::from_le_bytes([a, b, c, d]),
            ..Default::default()
        };
        insn.set_dst_reg(registers & 15);
        insn.set_src_reg(registers >> 4);
        insn
    }

    fn bytes(insn: &bpf_insn) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (insn.off.to_le_bytes(), insn.imm.to_le_bytes());
        [insn.code, insn.dst_reg() | insn.src_reg() << 4, a, b, c, d, e, f]
    }

    /// What becomes of a program whose constants are the bytes 0x80, 0x81, 0x82 ... of map 7.
    fn written(program: &[[u8; 8]]) -> Vec<[u8; 8]> {
        let mut code: Vec<bpf_insn> = program.iter().copied().map(insn).collect();
        Constants { map: MAP, bytes: (0x80..0x90).collect() }.write_into(&mut code);
        code.iter().map(bytes).collect()
    }

    /// `r1 = address of the constant at 4 ll`
    const ADDRESS: [[u8; 8]; 2] = [[0x18, 0x21, 0, 0, 7, 0, 0, 0], [0, 0, 0, 0, 4, 0, 0, 0]];
    /// `r1 = *(u32 *)(r1 + 0)`
    const LOAD_R1: [u8; 8] = [0x61, 0x11, 0, 0, 0, 0, 0, 0];
    /// `r2 = *(u32 *)(r1 + 0)`
    const LOAD_R2: [u8; 8] = [0x61, 0x12, 0, 0, 0, 0, 0, 0];
    const NOTHING: [u8; 8] = [0x05, 0, 0, 0, 0, 0, 0, 0];
    const END: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn a_constant_of_each_width_is_written_into_the_program() {
        let widths = [(0x71, 0x86), (0x69, 0x8786), (0x61, 0x8988_8786), (0x79, 0x8d8c_8b8a_8988_8786_u64)];
        for (load, value) in widths {
            let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
            let constant = [[0x18, 1, 0, 0, a, b, c, d], [0, 0, 0, 0, e, f, g, h], NOTHING, END];
            // at 4 + 2
            let program = [ADDRESS[0], ADDRESS[1], [load, 0x11, 2, 0, 0, 0, 0, 0], END];
            assert_eq!(written(&program), constant, "{load:#x}");
        }
    }

    #[test]
    fn an_address_in_another_register_must_not_be_used_again() {
        let constant = [[0x18, 2, 0, 0, 0x84, 0x85, 0x86, 0x87], [0; 8], NOTHING];
        let then = |more: &[[u8; 8]]| written(&[&[ADDRESS[0], ADDRESS[1], LOAD_R2], more, &[END]].concat());
        let add = [0x0f, 0x32, 0, 0, 0, 0, 0, 0]; // r2 += r3
        for sets in
            [[0xb7, 1, 0, 0, 0, 0, 0, 0], [0xbf, 0x31, 0, 0, 0, 0, 0, 0], [0x79, 0x61, 0, 0, 0, 0, 0, 0], ADDRESS[0]]
        {
            assert_eq!(then(&[add, sets])[..3], constant, "{sets:x?} sets r1");
        }
        let uses = [
            [0xbf, 0x13, 0, 0, 0, 0, 0, 0], // r3 = r1
            [0x79, 0x11, 0, 0, 0, 0, 0, 0], // r1 = *(u64 *)(r1 + 0)
            [0x0f, 0x31, 0, 0, 0, 0, 0, 0], // r1 += r3
            [0x7b, 0x1a, 0, 0, 0, 0, 0, 0], // *(u64 *)(r10 + 0) = r1
            [0x85, 0, 0, 0, 1, 0, 0, 0],    // a call, whose argument it may be
            [0x15, 2, 0, 0, 0, 0, 0, 0],    // a jump
            NOTHING,
        ];
        for used in uses {
            assert_eq!(then(&[used, [0xb7, 1, 0, 0, 0, 0, 0, 0]])[..3], [ADDRESS[0], ADDRESS[1], LOAD_R2], "{used:x?}");
        }
        assert_eq!(then(&[])[..3], [ADDRESS[0], ADDRESS[1], LOAD_R2], "nothing sets it");
    }

    #[test]
    fn what_is_no_load_of_a_constant_stays() {
        let [low, high] = ADDRESS;
        let stays = |program: &[[u8; 8]]| assert_eq!(written(program), program);
        stays(&[[0x18, 0x21, 0, 0, 8, 0, 0, 0], high, LOAD_R1, END]); // another map
        stays(&[[0x18, 0x11, 0, 0, 7, 0, 0, 0], high, LOAD_R1, END]); // the map itself
        stays(&[[0x18, 0x01, 0, 0, 7, 0, 0, 0], high, LOAD_R1, END]); // a number
        stays(&[low, high, [0x61, 0x31, 0, 0, 0, 0, 0, 0], END]); // through another register
        stays(&[low, high, [0xbf, 0x13, 0, 0, 0, 0, 0, 0], LOAD_R1, END]); // not the next
        stays(&[low, [0, 0, 0, 0, 13, 0, 0, 0], LOAD_R1, END]); // over the end
        stays(&[low, high, [0x61, 0x11, 0xfb, 0xff, 0, 0, 0, 0], END]); // before the beginning
        stays(&[low, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f], LOAD_R1, END]);
        stays(&[low, high]);
        stays(&[low]);
    }

    #[test]
    fn a_load_that_a_jump_or_a_call_leads_to_stays() {
        let [low, high] = ADDRESS;
        for (jump, is_target) in [
            ([0x15, 3, 2, 0, 0, 0, 0, 0], true),    // if r3 == 0 goto +2
            ([0x16, 3, 2, 0, 0, 0, 0, 0], true),    // if w3 == 0 goto +2
            ([0x05, 0, 2, 0, 0, 0, 0, 0], true),    // goto +2
            ([0x06, 0, 0, 0, 2, 0, 0, 0], true),    // gotol +2
            ([0x85, 0x10, 0, 0, 2, 0, 0, 0], true), // a call of a function in the object
            ([0x85, 0, 0, 0, 2, 0, 0, 0], false),   // of a helper
            ([0x15, 3, 3, 0, 0, 0, 0, 0], false),
        ] {
            let becomes = written(&[jump, low, high, LOAD_R1, END]);
            assert_eq!(becomes[3] == LOAD_R1, is_target, "{jump:x?}");
        }
    }
}
