//! Symbols of the kernel, as /proc/kallsyms lists them.

use std::io::BufRead;

/// A symbol of the kernel.
pub struct KernelSymbol<'a> {
    /// Address; 0 if the kernel hides it.
    pub address: u64,
    /// Name.
    pub name: &'a str,
    /// Name of its module, in brackets.
    pub module: Option<&'a str>,
    /// True for code, false for data.
    pub is_function: bool,
}

impl KernelSymbol<'_> {
    /// Parses a line `ADDRESS TYPE NAME` or `ADDRESS TYPE NAME\t[MODULE]`.
    fn of(line: &[u8]) -> Option<KernelSymbol<'_>> {
        let mut words = std::str::from_utf8(line).ok()?.trim_end().splitn(3, ' ');
        let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
        let address = u64::from_str_radix(address, 16).ok()?;
        let (name, module) = name.split_once('\t').map_or((name, None), |(name, module)| (name, Some(module)));
        Some(KernelSymbol { address, name, module, is_function: matches!(kind, "t" | "T" | "w" | "W") })
    }
}

/// Passes on the symbols of /proc/kallsyms in its order, until `each` returns false. Lines that are not UTF-8 are left out.
pub fn each_kernel_symbol(mut kallsyms: impl BufRead, mut each: impl FnMut(&KernelSymbol<'_>) -> bool) {
    let mut line = Vec::new();
    while kallsyms.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        if KernelSymbol::of(&line).is_some_and(|symbol| !each(&symbol)) {
            return;
        }
        line.clear();
    }
}

/// Names by address.
#[derive(Default)]
pub struct NamesByAddress {
    /// Start address, and offset of the name in `names`; ordered by address.
    starts: Vec<(u64, u32)>,
    /// Names, each followed by a newline.
    names: String,
}

impl NamesByAddress {
    /// Keeps the names that `name` appends for the symbols of /proc/kallsyms whose addresses are not hidden. It returns false, and appends
    /// nothing, for a symbol to leave out.
    pub fn read(kallsyms: impl BufRead, name: impl Fn(&KernelSymbol<'_>, &mut String) -> bool) -> NamesByAddress {
        let (mut starts, mut names) = (Vec::new(), String::new());
        each_kernel_symbol(kallsyms, |symbol| {
            let at = names.len() as u32;
            if symbol.address != 0 && name(symbol, &mut names) {
                starts.push((symbol.address, at));
                names.push('\n');
            }
            true
        });
        starts.sort_by_key(|&(address, _)| address);
        starts.shrink_to_fit();
        names.shrink_to_fit();
        NamesByAddress { starts, names }
    }

    /// Returns start and name of the nearest symbol at or below an address, and true if it is not the last. Of several with the same
    /// start that is the first, as in the kernel's messages.
    pub fn at(&self, address: u64) -> Option<(u64, &str, bool)> {
        let beyond = self.starts.partition_point(|&(start, _)| start <= address);
        let (start, _) = *self.starts.get(beyond.checked_sub(1)?)?;
        let (_, name) = *self.starts.get(self.starts.partition_point(|&(other, _)| other < start))?;
        let name = self.names[name as usize..].split('\n').next().unwrap_or_default();
        Some((start, name, beyond < self.starts.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_symbol_hides_no_other() {
        let kallsyms =
            b"ffffffff81000000 T _stext\nffffffff81000010 T \xff\nsome words\n\nffffffffc0000000 d own\t[nf_tables]\n";
        let mut found = Vec::new();
        each_kernel_symbol(&kallsyms[..], |symbol| {
            let KernelSymbol { address, name, module, is_function } = symbol;
            found.push((*address, name.to_string(), module.map(str::to_owned), *is_function));
            true
        });
        let expected = [
            (0xffff_ffff_8100_0000, "_stext".into(), None, true),
            (0xffff_ffff_c000_0000, "own".into(), Some("[nf_tables]".into()), false),
        ];
        assert_eq!(found, expected);
    }
}
