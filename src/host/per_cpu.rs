//! Places of the kernel's variables by CPU, from its types (Documentation/bpf/btf.rst). A kernel without CONFIG_KALLSYMS_ALL has no
//! addresses for them, but in the memory of each CPU they lie at the same distance from one another.

use super::btf_encoding::{encoded_types, kind, word, KERNEL_TYPES};
use std::collections::BTreeMap;
use std::fs;

/// Returns the bytes from one variable by CPU to another, as a number that wraps; `None` if the kernel has one of them not.
pub fn per_cpu_distance(from: &str, to: &str) -> Option<u64> {
    distance(&fs::read(KERNEL_TYPES).ok()?, from, to)
}

fn distance(types: &[u8], from: &str, to: &str) -> Option<u64> {
    let (mut variables, mut places) = ([None; 2], BTreeMap::new());
    for (id, of) in (1u32..).zip(encoded_types(types)?) {
        match of.kind {
            kind::VAR => {
                if let Some(which) = [from, to].iter().position(|wanted| of.name() == wanted.as_bytes()) {
                    variables[which] = Some(id);
                }
            }
            // The section of all variables by CPU, the only one there is. It may come before them.
            kind::DATASEC => {
                for variable in of.body.chunks_exact(12) {
                    places.insert(word(variable, 0)?, word(variable, 4)?);
                }
            }
            _ => {}
        }
    }
    let place = |variable: Option<u32>| Some(u64::from(*places.get(&variable?)?));
    Some(place(variables[1])?.wrapping_sub(place(variables[0])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types with an integer, three variables, and their section, which from 7.2 on comes first.
    fn types(section_first: bool) -> Vec<u8> {
        let names = b"\0int\0runqueues\0__preempt_count\0this_cpu_off\0";
        let name = |name: &str| {
            let wanted = [name.as_bytes(), &[0]].concat();
            names.windows(wanted.len()).position(|at| at == wanted).unwrap() as u32
        };
        let first = if section_first { 3 } else { 2 };
        let section = [0, kind::DATASEC << 24 | 3, 0, first, 4096, 4, first + 1, 96, 4, first + 2, 88, 8];
        let variables = ["runqueues", "__preempt_count", "this_cpu_off"];
        let variables = variables.map(|variable| [name(variable), kind::VAR << 24, 1, 1]).concat();
        let mut words = vec![name("int"), kind::INT << 24, 4, 32];
        match section_first {
            true => words.extend(section.into_iter().chain(variables)),
            false => words.extend(variables.into_iter().chain(section)),
        }
        let length = 4 * words.len() as u32;
        let header = [0x0001_eb9f, 24, 0, length, length, names.len() as u32];
        header.iter().chain(&words).flat_map(|word| word.to_ne_bytes()).chain(names.iter().copied()).collect()
    }

    #[test]
    fn a_variable_is_as_far_as_the_types_say() {
        for types in [types(false), types(true)] {
            assert_eq!(distance(&types, "runqueues", "__preempt_count"), Some(4000u64.wrapping_neg()));
            assert_eq!(distance(&types, "this_cpu_off", "__preempt_count"), Some(8));
            assert_eq!(distance(&types, "runqueues", "pcpu_hot"), None);
            assert_eq!(distance(&types, "runqueues", "__preempt"), None, "the whole name");
        }
    }

    #[test]
    fn types_cut_short_have_no_variables() {
        let types = types(false);
        assert!((0..types.len() - 44).all(|end| distance(&types[..end], "runqueues", "__preempt_count").is_none()));
        assert_eq!(distance(&[0xff; 64], "runqueues", "__preempt_count"), None);
    }
}
