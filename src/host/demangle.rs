//! Demangling of function names, which the compilers of Rust and C++ encode with paths and types in one word.

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use std::fmt::{self, Write};

/// Longest mangled name that is decoded, in bytes: names of C++ templates are long.
pub const MANGLED: usize = 2048;

/// Highest nesting of types in a name; deeper ones are rejected as an attack on the stack.
const DEPTH: u32 = 96;

/// Returns at most `most` bytes of a function's name without the hash of its crate, its parameters and return type;
/// other names unchanged.
pub fn demangled(name: &str, most: usize) -> String {
    let mut out = Bounded { text: String::new(), most };
    // A name that is too long is an error of the writing, and stands as far as it goes.
    let _ = match rustc_demangle::try_demangle(name) {
        Ok(rust) => write!(out, "{rust:#}"),
        Err(_) => cpp(name, &mut out),
    };
    if out.text.is_empty() {
        let _ = out.write_str(name);
    }
    out.text
}

fn cpp(name: &str, out: &mut Bounded) -> fmt::Result {
    // No other name begins so, and reading one takes time.
    if !name.starts_with("_Z") {
        return Ok(());
    }
    let parse = ParseOptions::default().recursion_limit(DEPTH);
    let Ok(symbol) = Symbol::new_with_options(name, &parse) else { return Ok(()) };
    symbol.structured_demangle(out, &DemangleOptions::new().no_params().no_return_type().recursion_limit(DEPTH))
}

/// Text limited to a number of bytes, since a short mangled name can expand to gigabytes.
struct Bounded {
    text: String,
    most: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.most - self.text.len();
        if more.len() <= room {
            self.text.push_str(more);
            return Ok(());
        }
        let fits = (0..=room).rev().find(|&end| more.is_char_boundary(end)).unwrap_or(0);
        self.text.push_str(&more[..fits]);
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(mangled: &str) -> String {
        demangled(mangled, 256)
    }

    #[test]
    fn names_of_rust_and_cpp_are_as_they_were_written() {
        assert_eq!(name("_ZN4core3ptr13drop_in_place17h0123456789abcdefE"), "core::ptr::drop_in_place");
        assert_eq!(name("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(name("_ZN3foo3barEv"), "foo::bar");
        assert_eq!(name("_ZNSt6vectorIiSaIiEE9push_backEOi"), "std::vector<int, std::allocator<int> >::push_back");
    }

    #[test]
    fn names_of_other_languages_stay() {
        for plain in ["main", "__libc_start_main", "_Zzz", "_RX", "runtime.goexit", "", "é", "_ZN"] {
            assert_eq!(name(plain), plain);
        }
    }

    #[test]
    fn a_name_is_cut_where_it_is_too_long() {
        assert_eq!(demangled("_ZN3foo3barEv", 6), "foo::b");
        assert_eq!(demangled("main", 2), "ma");
        assert_eq!(demangled("éé", 3), "é");
        // Each substitution doubles it.
        let doubling = format!("_Z1fI{}E", "St4pairI".repeat(40) + "ii" + &"ES_".repeat(40));
        assert!(name(&doubling).len() <= 256);
    }

    proptest::proptest! {
        #[test]
        fn no_name_does_harm(start in "(_Z|_ZN|_R|_RNv|)", rest in "[A-Za-z0-9_]{0,200}|\\PC{0,80}") {
            proptest::prop_assert!(name(&(start + &rest)).len() <= 256);
        }
    }
}
