//! Notes made while a configuration is read, for the caller that gave the sections to the reader.

use super::ConfigError;
use log::Level;
use std::cell::RefCell;
use std::collections::HashSet;

/// Notes on sections that were read with [`super::Section::noted_in`].
#[derive(Debug, Default)]
pub struct Notes {
    warnings: RefCell<Vec<ConfigError>>,
    remarks: RefCell<Vec<(Level, String)>>,
}

impl Notes {
    /// Adds a note about a value that is used differently from how it is written.
    pub(super) fn warn(&self, note: ConfigError) {
        self.warnings.borrow_mut().push(note);
    }

    /// Adds a line for the log, written once the section is in effect.
    pub(super) fn remark(&self, level: Level, line: String) {
        self.remarks.borrow_mut().push((level, line));
    }

    /// Takes the notes about values, each once.
    pub fn take_warnings(&self) -> Vec<ConfigError> {
        let mut seen = HashSet::new();
        self.warnings.take().into_iter().filter(|note| seen.insert(note.to_string())).collect()
    }

    /// Takes the lines for the log.
    pub fn take_remarks(&self) -> Vec<(Level, String)> {
        self.remarks.take()
    }
}
