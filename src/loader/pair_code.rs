//! Checks of a pair's object before libbpf opens it: calls of helpers that change processes, and locations of
//! variables.

use super::excerpt::{number, Section, Sections, REL};
use super::refusal::Refusal;
use libbpf_rs::libbpf_sys;
use nix::libc;

/// Helpers that a pair may call only if the configuration allows it, by number.
const HELPERS: [(u32, &str); 4] = [
    (libbpf_sys::BPF_FUNC_probe_write_user, "bpf_probe_write_user"),
    (libbpf_sys::BPF_FUNC_override_return, "bpf_override_return"),
    (libbpf_sys::BPF_FUNC_send_signal, "bpf_send_signal"),
    (libbpf_sys::BPF_FUNC_send_signal_thread, "bpf_send_signal_thread"),
];

/// Kernel functions, called by name, that a pair may call only if the configuration allows it.
const FUNCTIONS: [&str; 1] = ["bpf_send_signal_task"];

/// Iterates over the names that the option `allow_helpers` accepts.
pub fn guarded_helpers() -> impl Iterator<Item = &'static str> {
    HELPERS.iter().map(|(_, name)| *name).chain(FUNCTIONS)
}

/// A call of a helper that changes processes.
#[derive(Debug, PartialEq, Eq)]
struct Call<'a> {
    /// Function that contains the call: a program, or one that programs call.
    function: &'a str,
    helper: &'static str,
}

/// Returns a refusal if a program calls a helper that is not allowed, or the code cannot be read.
pub fn may_not(object: &[u8], allowed: &[String]) -> Option<Refusal> {
    let Some(calls) = calls(object) else {
        let reason = "expected a BPF object, an ELF file of 64 bits in the byte order of this machine";
        return Some(Refusal::new(libc::ENOEXEC, reason));
    };
    let call = calls.iter().find(|call| !allowed.iter().any(|allowed| allowed == call.helper))?;
    let Call { function, helper } = call;
    Some(Refusal::new(
        libc::EPERM,
        format!(
            "program {function} calls {helper}, and pairs may not change processes; if it is meant to, set `allow_helpers = {helper}` in \
             [pmda]"
        ),
    ))
}

/// Finds the calls in all code, including functions that programs call. `None` if it cannot be read.
fn calls(object: &[u8]) -> Option<Vec<Call<'_>>> {
    const CALL: u8 = 0x85;
    const WIDE: u8 = 0x18;
    let sections = Sections::read(object)?;
    let symbols = sections.symbols()?;
    if !(0..sections.count()).all(|place| sections.at(place).is_some_and(|section| has_text(&section))) {
        return None;
    }
    let mut calls = Vec::new();
    for place in 0..sections.count() {
        let section = sections.at(place)?;
        let function = |place: usize, at: usize| {
            let holds = |symbol: &&super::excerpt::Symbol<'_>| {
                symbol.is_function && symbol.section == place && at.wrapping_sub(symbol.value) < symbol.size
            };
            symbols.iter().find(holds).map_or(section.name, |symbol| symbol.name)
        };
        if section.is_code() {
            let (instructions, _) = section.bytes.as_chunks::<8>();
            let mut instructions = instructions.iter().enumerate();
            while let Some((i, [code, registers, _, _, value @ ..])) = instructions.next() {
                let number = u32::from_ne_bytes(*value);
                let helper = HELPERS.iter().find(|(helper, _)| *helper == number);
                match (*code, registers >> 4, helper) {
                    (CALL, 0, Some((_, helper))) => calls.push(Call { function: function(place, 8 * i), helper }),
                    (WIDE, ..) => drop(instructions.next()),
                    _ => {}
                }
            }
        }
        // A function of the kernel is a symbol that is not defined, which the code has relocations for.
        if section.kind == REL {
            for entry in section.bytes.chunks_exact(16) {
                let symbol = symbols.get(number(entry, 12..16)?)?;
                let stem = symbol.name.split("___").next().unwrap_or_default();
                if let (0, Some(helper)) = (symbol.section, FUNCTIONS.iter().find(|name| **name == stem)) {
                    calls.push(Call { function: function(section.info, number(entry, 0..8)?), helper });
                }
            }
        }
    }
    Some(calls)
}

/// True if the strings of a section, if any, are UTF-8: other bytes cannot be names.
fn has_text(section: &Section<'_>) -> bool {
    const STRTAB: u64 = 3;
    let texts = match section.name {
        ".BTF" => {
            let place = |at: usize| number(section.bytes, at..at + 4);
            let texts = place(4).zip(place(16)).zip(place(20));
            texts.and_then(|((header, start), size)| {
                let start = header.checked_add(start)?;
                section.bytes.get(start..start.checked_add(size)?)
            })
        }
        "license" => Some(section.bytes),
        _ if section.kind == STRTAB => Some(section.bytes),
        _ => return true,
    };
    texts.is_some_and(|texts| std::str::from_utf8(texts).is_ok())
}

/// Returns the section of an 8-byte variable, and its offset there.
pub fn variable<'a>(object: &'a [u8], name: &str) -> Option<(&'a str, usize)> {
    let sections = Sections::read(object)?;
    let symbols = sections.symbols()?;
    let symbol = symbols.iter().find(|symbol| symbol.name == name && symbol.size == 8 && !symbol.is_function)?;
    Some((sections.at(symbol.section).filter(|_| symbol.section != 0)?.name, symbol.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_own_programs_call_none_of_the_guarded_helpers() {
        assert_eq!(calls(crate::bpf::OBJECT.bytes), Some(Vec::new()));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let object = crate::bpf::OBJECT.bytes;
        for bytes in [&b"not an object"[..], &[], &object[..object.len() - 1]] {
            assert!(may_not(bytes, &[]).is_some_and(|refusal| refusal.message.contains("expected a BPF object")));
        }
        // A file whose number of sections is elsewhere would hide them.
        let mut hidden = object.to_vec();
        hidden[60..62].fill(0);
        assert!(may_not(&hidden, &[]).is_some());
    }
}
