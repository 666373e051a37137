//! Log lines of modules, under the name of the section, which can differ from that of the module.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

thread_local! {
    static SECTION: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `work` for a module: lines that it logs ([`module_log!`](crate::module_log)) carry the name of the module's
/// section. The name is shared, not copied, since this runs at each fetch.
pub fn with_section<R>(section: &Arc<str>, work: impl FnOnce() -> R) -> R {
    let before = SECTION.replace(Some(Arc::clone(section)));
    let result = work();
    SECTION.set(before);
    result
}

/// Returns the section of the module that is at work.
pub fn current_section() -> String {
    SECTION.with_borrow(|section| section.as_deref().unwrap_or_default().to_owned())
}

const MINUTE: Duration = Duration::from_secs(60);

/// A limit for log lines that others can cause without end: one line per minute, with the number of those left out
/// before it.
#[derive(Debug, Default)]
pub struct EveryMinute {
    written: Option<Instant>,
    left_out: u64,
}

impl EveryMinute {
    /// A limit under which no line was written yet.
    pub const NEW: EveryMinute = EveryMinute { written: None, left_out: 0 };

    /// Returns the end of the line if it is to be written now.
    pub fn due(&mut self) -> Option<String> {
        self.due_at(Instant::now())
    }

    /// Returns the end of the line if it is to be written at this time, see [`EveryMinute::due`].
    pub fn due_at(&mut self, now: Instant) -> Option<String> {
        if self.written.is_some_and(|written| now.saturating_duration_since(written) < MINUTE) {
            self.left_out += 1;
            return None;
        }
        self.written = Some(now);
        match std::mem::take(&mut self.left_out) {
            0 => Some(String::new()),
            left_out => Some(format!(" (and {left_out} more since the last line of this kind)")),
        }
    }
}

/// At most 80 characters of a foreign text, without control characters, for a message about it.
pub fn excerpt(text: &str) -> String {
    const MOST: usize = 80;
    let mut characters = text.chars();
    let begin: String = characters.by_ref().take(MOST).collect();
    let dots = if characters.next().is_some() { "..." } else { "" };
    format!("{}{dots}", begin.escape_debug())
}

/// Logs a line for the module at work: `module_log!(warn, "{fault}")`.
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
    fn one_line_a_minute_tells_of_the_others() {
        let (mut lines, begin) = (EveryMinute::default(), Instant::now());
        assert_eq!(lines.due_at(begin), Some(String::new()));
        assert!((0..300).all(|_| lines.due_at(begin + MINUTE / 2).is_none()));
        assert_eq!(lines.due_at(begin + MINUTE), Some(" (and 300 more since the last line of this kind)".into()));
        assert_eq!(lines.due_at(begin + 3 * MINUTE), Some(String::new()));
    }

    #[test]
    fn an_excerpt_is_short_whatever_it_is_of() {
        assert_eq!(excerpt("pause"), "pause");
        assert_eq!(excerpt("a\nb"), "a\\nb");
        assert_eq!(excerpt(&"x".repeat(80)), "x".repeat(80));
        assert_eq!(excerpt(&"\u{e9}".repeat(60_000)), format!("{}...", "\u{e9}".repeat(80)));
        assert!(excerpt(&"\u{200b}".repeat(60_000)).len() < 1_000);
    }

    #[test]
    fn the_speaker_is_the_section_at_work() {
        let inner =
            with_section(&"outer".into(), || (with_section(&"inner".into(), current_section), current_section()));
        assert_eq!((inner, current_section()), (("inner".into(), "outer".into()), String::new()));
    }
}
