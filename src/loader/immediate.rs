//! Constants of programs (`const volatile`) as immediates. The verifier knows their values and removes the branches
//! that depend on them, but not the loads. Constants are set once, before loading, so the loads are not needed.

use libbpf_rs::libbpf_sys::{bpf_insn, BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, BPF_PSEUDO_MAP_VALUE};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd};

/// `BPF_LD | BPF_IMM | BPF_DW`: a 64-bit constant in two instructions.
pub const LOAD_64: u8 = 0x18;
/// `BPF_JMP | BPF_JA`: with offset 0 a no-op, which the verifier removes.
const GOTO: u8 = 0x05;
/// `BPF_JMP32 | BPF_JA`: a jump whose distance is in `imm`.
const GOTO_FAR: u8 = 0x06;
/// `BPF_JEQ` and `BPF_JNE`, comparing with an immediate.
const JUMP_EQUAL: u8 = 0x15;
const JUMP_UNEQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `BPF_MOV` of a register or an immediate, of 64 bits and of 32.
const MOVES: [u8; 4] = [0xb7, 0xbf, 0xb4, 0xbc];
/// Classes of instructions, in the lowest three bits of the code: `BPF_LDX`, `BPF_JMP`, `BPF_JMP32`.
const LOAD: u8 = 1;
const JUMP: u8 = 5;
const JUMP_32: u8 = 6;

/// Constants of an object, and the map that its programs load them from.
pub struct Constants {
    /// Descriptor of the map, which the instructions contain before they are loaded.
    map: i32,
    bytes: Vec<u8>,
}

impl Constants {
    /// Reads the constants among the maps of an object; `None` if it has none.
    pub fn of(maps: &[MapHandle]) -> Option<Constants> {
        let map = maps.iter().find(|map| map.name().to_string_lossy().ends_with(".rodata"))?;
        let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten()?;
        Some(Constants { map: map.as_fd().as_raw_fd(), bytes })
    }

    /// Replaces the address of a constant and the load through it by the constant where nothing else uses the address:
    ///
    /// ```text
    /// r1 = address ll            r1 = constant ll
    /// r1 = *(u32 *)(r1 + 0)      goto +0
    /// ```
    ///
    /// Then removes unreachable instructions, which the kernel would have to walk through first.
    pub fn write_into(&self, code: &mut Vec<bpf_insn>) {
        let targets = targets(code);
        let (mut written, mut decided) = (Vec::new(), BTreeMap::new());
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
            written.push(at);
            if let (Some(jumps), false) = (jumps(code.get(at + 3), value, constant), targets.contains(&(at + 3))) {
                decided.insert(at + 3, jumps);
            }
        }
        if let Some(shorter) = without_dead(code, &written, &decided) {
            *code = shorter;
        }
    }

    /// Returns the constant whose address the instruction loads, if the next instruction loads from that address.
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

/// Returns the targets of jumps and the starts of functions of the object.
fn targets(code: &[bpf_insn]) -> BTreeSet<usize> {
    code.iter().enumerate().filter_map(|(at, insn)| target(at, insn)).collect()
}

fn target(at: usize, insn: &bpf_insn) -> Option<usize> {
    let distance = match (insn.code & 7, insn.code) {
        _ if is_function(insn) => insn.imm,
        (_, GOTO_FAR) => insn.imm,
        (_, CALL | EXIT) => return None,
        (JUMP | JUMP_32, _) => i32::from(insn.off),
        _ => return None,
    };
    usize::try_from(at as i64 + 1 + i64::from(distance)).ok()
}

/// True if an instruction calls a function of the object or loads its address.
fn is_function(insn: &bpf_insn) -> bool {
    matches!((insn.code, u32::from(insn.src_reg())), (CALL, BPF_PSEUDO_CALL) | (LOAD_64, BPF_PSEUDO_FUNC))
}

/// True if an instruction jumps when this register has this value; `None` if it does not depend on the register alone.
fn jumps(insn: Option<&bpf_insn>, register: u8, value: u64) -> Option<bool> {
    let insn = insn.filter(|insn| insn.dst_reg() == register)?;
    let is_equal = value == i64::from(insn.imm) as u64;
    match insn.code {
        JUMP_EQUAL => Some(is_equal),
        JUMP_UNEQUAL => Some(!is_equal),
        _ => None,
    }
}

/// Returns the reachable instructions. `decided` has the jumps whose outcome is known; constants in `written` that are
/// not used are removed. `None` if there is more than one function, or a jump leaves the program.
fn without_dead(code: &[bpf_insn], written: &[usize], decided: &BTreeMap<usize, bool>) -> Option<Vec<bpf_insn>> {
    if code.iter().any(is_function) {
        return None;
    }
    let mut kept = reached(code, decided)?;
    for (at, insn) in code.iter().enumerate() {
        let is_nothing = insn.code == GOTO && insn.off == 0;
        kept[at] &= !is_nothing && decided.get(&at) != Some(&false);
    }
    for &at in written {
        if is_unused(code, at, decided) {
            kept[at] = false;
            kept[at + 1] = false;
        }
    }
    let mut places = Vec::with_capacity(code.len() + 1);
    let mut place = 0;
    for &kept in &kept {
        places.push(place);
        place += i64::from(kept);
    }
    places.push(place);
    let mut shorter = Vec::with_capacity(usize::try_from(place).ok()?);
    for (at, insn) in code.iter().enumerate().filter(|(at, _)| kept[*at]) {
        let mut insn = *insn;
        if let Some(target) = target(at, &insn) {
            let distance = places.get(target)? - places[at] - 1;
            match insn.code {
                GOTO_FAR => insn.imm = i32::try_from(distance).ok()?,
                _ => insn.off = i16::try_from(distance).ok()?,
            }
            if decided.contains_key(&at) {
                insn = bpf_insn { code: GOTO, off: insn.off, ..Default::default() };
            }
        }
        shorter.push(insn);
    }
    Some(shorter)
}

/// Marks the reachable instructions, both halves of a 64-bit constant included; `None` if a path leaves the program.
fn reached(code: &[bpf_insn], decided: &BTreeMap<usize, bool>) -> Option<Vec<bool>> {
    let mut reached = vec![false; code.len()];
    let mut next = vec![0];
    while let Some(at) = next.pop() {
        if std::mem::replace(reached.get_mut(at)?, true) {
            continue;
        }
        let insn = &code[at];
        let jumps = decided.get(&at).copied();
        if jumps != Some(false) {
            next.extend(target(at, insn));
        }
        match insn.code {
            EXIT | GOTO | GOTO_FAR => {}
            _ if jumps == Some(true) => {}
            LOAD_64 => {
                *reached.get_mut(at + 1)? = true;
                next.push(at + 2);
            }
            _ => next.push(at + 1),
        }
    }
    Some(reached)
}

/// True if the register of a constant is overwritten before it is used, as far as visible before the next undecided
/// jump.
fn is_unused(code: &[bpf_insn], at: usize, decided: &BTreeMap<usize, bool>) -> bool {
    let register = code[at].dst_reg();
    let mut next = at + 2;
    // Each step goes on in the program or along one of the jumps in it: so many steps end, whatever the program.
    for _ in 0..code.len() {
        let Some(insn) = code.get(next) else { return false };
        match (decided.get(&next), insn.code) {
            (Some(true), _) | (None, GOTO) => match target(next, insn) {
                Some(target) => next = target,
                None => return false,
            },
            (Some(false), _) => next += 1,
            (None, _) => match sets(insn, register) {
                Some(sets) => return sets,
                None => next += if insn.code == LOAD_64 { 2 } else { 1 },
            },
        }
    }
    false
}

/// True if these instructions overwrite a register before they use it, as far as visible before the next jump or call.
fn overwrites(code: &[bpf_insn], register: u8) -> bool {
    code.iter().find_map(|insn| sets(insn, register)).unwrap_or(false)
}

/// True if an instruction sets a register without using it, false if it uses it or ends the search; `None` if it does
/// neither, and the next one decides.
fn sets(insn: &bpf_insn, register: u8) -> Option<bool> {
    let is_dst = insn.dst_reg() == register;
    let is_src = insn.src_reg() == register && insn.code != LOAD_64;
    let sets = is_dst && (insn.code == LOAD_64 || insn.code & 7 == LOAD || MOVES.contains(&insn.code));
    (is_dst || is_src || matches!(insn.code & 7, JUMP | JUMP_32)).then_some(sets && !is_src)
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

    /// Rewrites a program whose constants are the bytes 0x80, 0x81, 0x82 ... of map 7.
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
            let constant = [[0x18, 1, 0, 0, a, b, c, d], [0, 0, 0, 0, e, f, g, h], END];
            // at 4 + 2
            let program = [ADDRESS[0], ADDRESS[1], [load, 0x11, 2, 0, 0, 0, 0, 0], END];
            assert_eq!(written(&program), constant, "{load:#x}");
        }
    }

    #[test]
    fn an_address_in_another_register_must_not_be_used_again() {
        let constant = [[0x18, 2, 0, 0, 0x84, 0x85, 0x86, 0x87], [0; 8]];
        let then = |more: &[[u8; 8]]| written(&[&[ADDRESS[0], ADDRESS[1], LOAD_R2], more, &[END]].concat());
        let add = [0x0f, 0x32, 0, 0, 0, 0, 0, 0]; // r2 += r3
        for sets in
            [[0xb7, 1, 0, 0, 0, 0, 0, 0], [0xbf, 0x31, 0, 0, 0, 0, 0, 0], [0x79, 0x61, 0, 0, 0, 0, 0, 0], ADDRESS[0]]
        {
            assert_eq!(then(&[add, sets, END])[..2], constant, "{sets:x?} sets r1");
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
            assert_eq!(becomes.contains(&LOAD_R1), is_target, "{jump:x?}");
        }
    }

    /// `if r1 == 0 goto +1` and `if r1 != 0 goto +1`
    const IF_ZERO: [u8; 8] = [0x15, 1, 1, 0, 0, 0, 0, 0];
    const UNLESS_ZERO: [u8; 8] = [0x55, 1, 1, 0, 0, 0, 0, 0];
    /// `r0 = 5`, `r1 = 5` and `r0 = r1`
    const SET_R0: [u8; 8] = [0xb7, 0, 0, 0, 5, 0, 0, 0];
    const SET_R1: [u8; 8] = [0xb7, 1, 0, 0, 5, 0, 0, 0];
    const USE_R1: [u8; 8] = [0xbf, 0x10, 0, 0, 0, 0, 0, 0];

    #[test]
    fn what_a_constant_rules_out_is_left_out() {
        let [low, high] = ADDRESS;
        let [constant, rest] = [[0x18, 1, 0, 0, 0x84, 0x85, 0x86, 0x87], [0; 8]];
        assert_eq!(written(&[low, high, LOAD_R1, IF_ZERO, SET_R0, SET_R1, END]), [SET_R0, SET_R1, END]);
        let skips = written(&[low, high, LOAD_R1, UNLESS_ZERO, SET_R0, SET_R1, END]);
        assert_eq!(skips, [NOTHING, SET_R1, END], "the verifier removes the first");
        let used = written(&[low, high, LOAD_R1, UNLESS_ZERO, SET_R0, USE_R1, END]);
        assert_eq!(used, [constant, rest, NOTHING, USE_R1, END]);
        let other = [0x15, 2, 1, 0, 0, 0, 0, 0]; // if r2 == 0 goto +1
        assert_eq!(written(&[low, high, LOAD_R1, other, SET_R0, END]), [constant, rest, other, SET_R0, END]);
    }

    #[test]
    fn a_jump_to_a_decision_keeps_it() {
        let [low, high] = ADDRESS;
        let to_it = [0x15, 3, 3, 0, 0, 0, 0, 0]; // if r3 == 0 goto +3
        let kept = written(&[to_it, low, high, LOAD_R1, IF_ZERO, SET_R0, END]);
        assert_eq!(
            kept,
            [[0x15, 3, 2, 0, 0, 0, 0, 0], [0x18, 1, 0, 0, 0x84, 0x85, 0x86, 0x87], [0; 8], IF_ZERO, SET_R0, END]
        );
    }

    #[test]
    fn jumps_over_what_is_left_out_are_as_much_shorter() {
        let [low, high] = ADDRESS;
        let over = |by: u8| [0x15, 3, by, 0, 0, 0, 0, 0];
        let back = |by: i16| {
            let [a, b] = by.to_le_bytes();
            [0x55, 3, a, b, 0, 0, 0, 0]
        };
        let program = [over(7), SET_R0, low, high, LOAD_R1, IF_ZERO, SET_R1, back(-7), END];
        assert_eq!(written(&program), [over(3), SET_R0, SET_R1, back(-3), END]);
    }

    #[test]
    fn functions_and_wild_jumps_keep_their_length() {
        let [low, high] = ADDRESS;
        let (call, wild) = ([0x85, 0x10, 0, 0, 1, 0, 0, 0], [0x05, 0, 0x70, 0, 0, 0, 0, 0]);
        for more in [call, wild] {
            let program = [more, low, high, LOAD_R1, IF_ZERO, SET_R1, SET_R1, END];
            assert_eq!(written(&program).len(), program.len(), "{more:x?}");
        }
        let forever = [0x05, 0, 0xff, 0xff, 0, 0, 0, 0]; // goto -1
        assert_eq!(written(&[low, high, LOAD_R1, forever])[2..], [forever], "looking for a use of r1 ends");
    }
}
