//! Notes about values that are used differently from how they are written. They are collected for a caller that reports them with the
//! errors, or else logged.

use super::ConfigError;
use std::cell::RefCell;

thread_local! {
    static NOTES: RefCell<Option<Vec<ConfigError>>> = const { RefCell::new(None) };
}

/// Calls a function, and returns the notes that it made in this thread, each once.
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
