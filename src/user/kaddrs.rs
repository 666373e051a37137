//! Addresses of kernel symbols, which a pair's programs find in constants named `kaddr_SYMBOL`.

use crate::host::each_kernel_symbol;
use crate::loader::Refusal;
use std::collections::HashMap;
use std::io::BufRead;

/// Returns the constants for these symbols from the lines of /proc/kallsyms, or the symbols that are missing or not unique.
pub fn constants(symbols: &[String], kallsyms: impl BufRead) -> Result<Vec<(String, u64)>, Refusal> {
    let mut found: HashMap<&str, u64> = HashMap::new();
    each_kernel_symbol(kallsyms, |symbol| {
        // Of symbols with one name the last counts, as in ebpf_exporter.
        let wanted = symbols.iter().find(|wanted| *wanted == symbol.name && symbol.module.is_none());
        found.extend(wanted.map(|wanted| (wanted.as_str(), symbol.address)));
        true
    });
    let constant = |symbol: &String| {
        match found.get(symbol.as_str()) {
        Some(0) => Err(Refusal::missing(format!(
            "the kernel hides the address of {symbol}: run the agent with CAP_SYSLOG, or set kernel.kptr_restrict to 1 or 0"
        ))),
        Some(address) => Ok((format!("kaddr_{symbol}"), *address)),
        None => Err(Refusal::missing(format!(
            "expected a symbol of the kernel that is in no module, got `{symbol}`, which /proc/kallsyms does not have (data symbols need a \
             kernel with CONFIG_KALLSYMS_ALL)"
        ))),
    }
    };
    symbols.iter().map(constant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &[u8] = b"ffffffff81000000 T _stext\nffffffff81000010 t twice\nffffffff81000020 D twice\n\
        ffffffffc0000000 t own\t[nf_tables]\n0000000000000000 D hidden\nffffffff81000030 T \xff\n";

    #[test]
    fn addresses_are_found_as_ebpf_exporter_finds_them() {
        let constants = |symbols: &[&str]| {
            let symbols: Vec<String> = symbols.iter().map(|symbol| (*symbol).into()).collect();
            constants(&symbols, KALLSYMS)
        };
        let found = [("kaddr__stext".to_owned(), 0xffff_ffff_8100_0000), ("kaddr_twice".into(), 0xffff_ffff_8100_0020)];
        assert_eq!(constants(&["_stext", "twice"]), Ok(found.to_vec()));
        assert!(constants(&["own"]).unwrap_err().message.contains("in no module, got `own`"));
        assert!(constants(&["hidden"])
            .unwrap_err()
            .message
            .contains("hides the address of hidden: run the agent with CAP_SYSLOG"));
    }
}
