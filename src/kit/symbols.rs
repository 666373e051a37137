//! The names of code: of addresses in the kernel or in a process, and where the kernel's functions are.

use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolizer};
use std::io::{BufRead, BufReader};
use std::ops::Range;

/// Whose code addresses are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOf {
    /// The kernel's, with its modules.
    Kernel,
    /// A process's, as long as it lives.
    Process(u32),
}

/// The function that an address is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Bytes from its beginning to the address.
    pub offset: u64,
}

/// The functions of addresses, in order; `None` where there is none known. The kernel's are those of /proc/kallsyms, which is
/// read when the first is asked for.
pub fn symbols(addresses: &[u64], of: CodeOf) -> Vec<Option<Symbol>> {
    thread_local! {
        // It keeps what it has read of files and of the kernel's symbols.
        static SYMBOLIZER: Symbolizer = Symbolizer::new();
    }
    if addresses.is_empty() {
        return Vec::new();
    }
    let source = match of {
        CodeOf::Kernel => Source::Kernel(Kernel::default()),
        CodeOf::Process(pid) => Source::Process(Process::new(pid.into())),
    };
    let mut named: Vec<Option<Symbol>> = SYMBOLIZER.with(|symbolizer| {
        let symbols = symbolizer.symbolize(&source, Input::AbsAddr(addresses)).unwrap_or_default();
        let symbol = |symbol: &blazesym::symbolize::Symbolized<'_>| {
            let symbol = symbol.as_sym()?;
            Some(Symbol { name: symbol.name.to_string(), offset: symbol.offset as u64 })
        };
        symbols.iter().map(symbol).collect()
    });
    named.resize(addresses.len(), None);
    named
}

/// Where the kernel's function of this name is, by /proc/kallsyms; `None` if there is none, or addresses are hidden.
pub fn kernel_function(name: &str) -> Option<Range<u64>> {
    range(BufReader::new(std::fs::File::open("/proc/kallsyms").ok()?), name)
}

/// A function ends where the next symbol begins.
fn range(kallsyms: impl BufRead, name: &str) -> Option<Range<u64>> {
    let mut symbols = kallsyms.lines().map_while(Result::ok).filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((address, words.nth(1)? == name))
    });
    let (start, _) = symbols.find(|&(address, found)| found && address != 0)?;
    let end = symbols.map(|(address, _)| address).find(|&address| address > start)?;
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "ffffffff81000000 T before\nffffffff81000010 T lock\nffffffff81000010 t lock_alias\n\
        ffffffff81000030 T after\nffffffffc0000000 t late\t[module]\n";

    #[test]
    fn a_function_reaches_to_the_next_symbol() {
        assert_eq!(range(KALLSYMS.as_bytes(), "lock"), Some(0xffff_ffff_8100_0010..0xffff_ffff_8100_0030));
        assert_eq!(range(KALLSYMS.as_bytes(), "lock_alias"), Some(0xffff_ffff_8100_0010..0xffff_ffff_8100_0030));
    }

    #[test]
    fn what_is_not_there_or_hidden_is_nowhere() {
        assert_eq!(range(KALLSYMS.as_bytes(), "unlock"), None);
        assert_eq!(range("0000000000000000 T lock\n0000000000000000 T after\n".as_bytes(), "lock"), None);
    }

    #[test]
    fn addresses_nobody_has_code_at_have_no_symbol_and_their_places_stay() {
        assert!(symbols(&[], CodeOf::Kernel).is_empty());
        let named = symbols(&[1, 2], CodeOf::Process(std::process::id()));
        assert_eq!(named, [None, None]);
    }
}
