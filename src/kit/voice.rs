//! The log lines of modules: under the name of the section, which need not be that of the module.

use std::cell::RefCell;

thread_local! {
    static SECTION: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Does something of a module: what it logs meanwhile ([`tell!`](crate::tell)) has the name of its section.
pub fn speaking_as<R>(section: &str, work: impl FnOnce() -> R) -> R {
    let before = SECTION.replace(section.into());
    let result = work();
    SECTION.set(before);
    result
}

/// The section whose module is at work.
pub fn speaker() -> String {
    SECTION.with_borrow(String::clone)
}

/// Logs something for the module at work: `tell!(warn, "{fault}")`.
#[macro_export]
macro_rules! tell {
    ($level:ident, $($words:tt)+) => {
        log::$level!("{}: {}", $crate::kit::speaker(), format_args!($($words)+))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speaker_is_the_section_at_work() {
        let inner = speaking_as("outer", || (speaking_as("inner", speaker), speaker()));
        assert_eq!((inner, speaker()), (("inner".into(), "outer".into()), String::new()));
    }
}
