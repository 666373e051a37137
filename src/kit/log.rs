//! The log lines of modules: under the name of the section, which need not be that of the module.

use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static SECTION: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Does something of a module: what it logs meanwhile ([`module_log!`](crate::module_log)) has the name of its section.
/// Each fetch does so, hence the name that is shared and not copied.
pub fn with_section<R>(section: &Arc<str>, work: impl FnOnce() -> R) -> R {
    let before = SECTION.replace(Some(Arc::clone(section)));
    let result = work();
    SECTION.set(before);
    result
}

/// The section whose module is at work.
pub fn current_section() -> String {
    SECTION.with_borrow(|section| section.as_deref().unwrap_or_default().to_owned())
}

/// Logs something for the module at work: `module_log!(warn, "{fault}")`.
#[macro_export]
macro_rules! module_log {
    ($level:ident, $($words:tt)+) => {
        log::$level!("{}: {}", $crate::kit::current_section(), format_args!($($words)+))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speaker_is_the_section_at_work() {
        let inner =
            with_section(&"outer".into(), || (with_section(&"inner".into(), current_section), current_section()));
        assert_eq!((inner, current_section()), (("inner".into(), "outer".into()), String::new()));
    }
}
