//! Names of code in the kernel and in processes, and addresses of the kernel's functions.

use super::demangle::demangled;
use super::kallsyms::{each_kernel_symbol, NamesByAddress};
use super::process_symbols::{ProcessSymbols, Symbol};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The owner of addresses of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOf {
    /// The kernel, with its modules.
    Kernel,
    /// A living process; unknown in a PID namespace, where its id may be another process's.
    Process(u32),
}

thread_local! {
    static KERNEL: RefCell<Option<Kernel>> = const { RefCell::new(None) };
    static PROCESSES: RefCell<ProcessSymbols> = RefCell::default();
}

/// Functions read from the kernel: five megabytes.
struct Kernel {
    modules: Vec<String>,
    functions: Functions,
    used: Instant,
}

/// Returns the functions of addresses, in order; `None` where unknown.
pub fn symbols(addresses: &[u64], of: CodeOf) -> Vec<Option<Symbol>> {
    let mut named = match of {
        _ if addresses.is_empty() => Vec::new(),
        CodeOf::Kernel => with_kernel(|kernel| addresses.iter().map(|&address| kernel.at(address)).collect()),
        CodeOf::Process(_) if super::in_namespace() => Vec::new(),
        CodeOf::Process(pid) => PROCESSES.with_borrow_mut(|processes| processes.symbols(pid, addresses)),
    };
    named.resize(addresses.len(), None);
    named
}

/// Drops the caches of names, which may take hundreds of megabytes.
pub fn forget_symbols() {
    KERNEL.take();
    PROCESSES.with_borrow_mut(ProcessSymbols::forget);
}

/// Drops the kernel's functions if no name was looked up in the last minute.
pub fn forget_unused_symbols() {
    const UNUSED: Duration = Duration::from_secs(60);
    KERNEL.with_borrow_mut(|known| *known = known.take().filter(|kernel| kernel.used.elapsed() < UNUSED));
}

/// Returns the number of names left unknown because the lookup would have taken too long.
pub fn unnamed() -> u64 {
    PROCESSES.with_borrow(ProcessSymbols::unnamed)
}

/// Returns the address ranges of these kernel functions, as far as they exist and addresses are not hidden.
pub fn kernel_functions(names: &[&str]) -> HashMap<String, Range<u64>> {
    fs::File::open("/proc/kallsyms").map(|file| find(BufReader::new(file), names)).unwrap_or_default()
}

/// Reads /proc/kallsyms until all names are found. Nothing is cached, since it has a hundred thousand functions. The
/// kernel's own are listed by address, and a function ends where the next one begins.
fn find(kallsyms: impl BufRead, names: &[&str]) -> HashMap<String, Range<u64>> {
    let (mut found, mut begun) = (HashMap::new(), Vec::<(String, u64)>::new());
    if names.is_empty() {
        return found;
    }
    each_kernel_symbol(kallsyms, |symbol| {
        if symbol.address == 0 || !symbol.is_function {
            return true;
        }
        begun.retain(|(name, start)| {
            let ends = symbol.address > *start;
            if ends {
                found.entry(name.clone()).or_insert(*start..symbol.address);
            }
            !ends
        });
        if names.contains(&symbol.name) {
            begun.push((symbol.name.into(), symbol.address));
        }
        found.len() < names.len()
    });
    found
}

/// Calls `action` with the kernel's functions, which are read at first use and again after modules were loaded or
/// removed.
fn with_kernel<T>(action: impl FnOnce(&Functions) -> T) -> T {
    KERNEL.with_borrow_mut(|known| {
        let modules = modules(&fs::read_to_string("/proc/modules").unwrap_or_default());
        if known.as_ref().is_none_or(|known| known.modules != modules) {
            *known = None; // its memory before that of the next
        }
        let read = || fs::File::open("/proc/kallsyms").map(|file| Functions::read(BufReader::new(file)));
        let now = Instant::now();
        let known = known.get_or_insert_with(|| Kernel { modules, functions: read().unwrap_or_default(), used: now });
        known.used = now;
        action(&known.functions)
    })
}

/// Returns the modules of /proc/modules with their addresses; the other fields, such as the number of users, are left
/// out.
fn modules(list: &str) -> Vec<String> {
    let module = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        Some(format!("{} {}", words.next()?, words.nth(4)?))
    };
    list.lines().filter_map(module).collect()
}

/// Functions of the kernel.
#[derive(Default)]
struct Functions(NamesByAddress);

impl Functions {
    /// Reads the functions of /proc/kallsyms. Long names are cut.
    fn read(kallsyms: impl BufRead) -> Functions {
        Functions(NamesByAddress::read(kallsyms, |symbol, names| {
            if symbol.is_function {
                names.push_str(symbol.name.get(..Symbol::NAME).unwrap_or(symbol.name));
            }
            symbol.is_function
        }))
    }

    /// Returns the function at an address. The end of the last function is unknown, so no address is in it.
    fn at(&self, address: u64) -> Option<Symbol> {
        let (start, name, has_end) = self.0.at(address)?;
        has_end.then(|| Symbol { name: demangled(name, Symbol::NAME), offset: address - start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "0000000000000000 A fixed_percpu_data\nffffffffc0000000 t late\t[module]\n\
        ffffffff81000000 T before\nffffffff81000010 T lock\nffffffff81000010 t lock_alias\nffffffff81000020 D data\n\
        ffffffff81000030 W after\nffffffffc0000040 t latest\t[module]\n";

    fn at(address: u64) -> Option<(String, u64)> {
        Functions::read(KALLSYMS.as_bytes()).at(address).map(|symbol| (symbol.name, symbol.offset))
    }

    #[test]
    fn an_address_is_in_the_function_that_begins_before_it() {
        assert_eq!(at(0xffff_ffff_8100_0000), Some(("before".into(), 0)));
        assert_eq!(
            at(0xffff_ffff_8100_002f),
            Some(("lock".into(), 0x1f)),
            "the first of one place, data is no function"
        );
        assert_eq!(at(0xffff_ffff_c000_0005), Some(("late".into(), 5)));
        assert_eq!((at(0x1000), at(0xffff_ffff_c000_0041)), (None, None), "before all, and in what may have no end");
    }

    #[test]
    fn a_function_reaches_to_the_next() {
        let (_, own) = KALLSYMS.split_once("[module]\n").unwrap();
        let found = |names: &[&str]| {
            let mut found: Vec<_> = find(own.as_bytes(), names).into_iter().collect();
            found.sort_by(|one, other| one.0.cmp(&other.0));
            found
        };
        let lock = 0xffff_ffff_8100_0010..0xffff_ffff_8100_0030;
        assert_eq!(found(&["lock_alias", "lock"]), [("lock".into(), lock.clone()), ("lock_alias".into(), lock)]);
        assert_eq!(found(&["unlock", "latest"]), []);
        let mut rest = own.as_bytes();
        find(&mut rest, &["before"]);
        assert!(
            rest.starts_with(b"ffffffff81000010 T lock_alias") || rest.starts_with(b"ffffffff81000010 t"),
            "no further"
        );
    }

    #[test]
    fn hidden_addresses_are_none() {
        let functions = Functions::read("0000000000000000 T lock\n0000000000000000 T after\n".as_bytes());
        assert_eq!(functions.at(0), None);
        assert!(find("0000000000000000 T lock\n0000000000000000 T after\n".as_bytes(), &["lock"]).is_empty());
    }

    #[test]
    fn a_module_is_another_where_it_is_loaded_again() {
        let list =
            |users: &str, address: &str| modules(&format!("loop 40960 {users} Live {address}\nxfs 1 0 - Live 0x2\n"));
        assert_eq!(list("3 -", "0x1"), list("4 a,", "0x1"));
        assert_eq!(list("3 -", "0x1"), ["loop 0x1", "xfs 0x2"]);
        assert_ne!(list("3 -", "0x1"), list("3 -", "0x3"));
        assert!(modules("").is_empty());
    }

    #[test]
    fn addresses_without_code_have_no_symbol() {
        assert!(symbols(&[], CodeOf::Kernel).is_empty());
        for of in [CodeOf::Kernel, CodeOf::Process(std::process::id())] {
            assert_eq!(symbols(&[1, 2], of), [None, None]);
        }
    }

    #[test]
    fn this_process_has_names() {
        if crate::host::in_namespace() {
            return println!("skipped: this_process_has_names: the first PID namespace");
        }
        let named = symbols(&[this_process_has_names as fn() as usize as u64], CodeOf::Process(std::process::id()));
        let name = &named[0].as_ref().unwrap_or_else(|| panic!("{named:?}")).name;
        assert_eq!(
            name, "corebcc::host::symbols::tests::this_process_has_names",
            "as it is written, not as it is linked"
        );
    }
}
