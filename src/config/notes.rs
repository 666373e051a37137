//! What is remarkable about values that count otherwise than they are written: it is collected where somebody wants to tell it with the
//! errors, and logged elsewhere.

use super::ConfigError;
use std::cell::RefCell;

thread_local! {
    static NOTES: RefCell<Option<Vec<ConfigError>>> = const { RefCell::new(None) };
}

/// Does something, and yields what was noted meanwhile in this thread; each note once.
pub fn noting<R>(work: impl FnOnce() -> R) -> (R, Vec<ConfigError>) {
    let outer = NOTES.replace(Some(Vec::new()));
    let result = work();
    let mut notes = NOTES.replace(outer).unwrap_or_default();
    let mut seen = std::collections::HashSet::new();
    notes.retain(|note| seen.insert(note.to_string()));
    (result, notes)
}

/// Keeps a note for [`noting`], or logs it.
pub(super) fn note(note: ConfigError) {
    let left = NOTES.with_borrow_mut(|notes| match notes {
        Some(notes) => {
            notes.push(note);
            None
        }
        None => Some(note),
    });
    if let Some(note) = left {
        log::warn!("{note}");
    }
}
