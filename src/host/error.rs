//! Errors of files of the machine.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A reason why a file of the machine cannot be used.
#[derive(Debug, Error)]
pub enum HostError {
    /// The file cannot be opened or read, or is not a regular file.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// File.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is not an ELF file that can run here.
    #[error("{}: not a 64-bit ELF file of this machine's byte order", .0.display())]
    NotElf(PathBuf),
    /// The list of events in tracefs cannot be read; the text includes a remedy.
    #[error("{0}")]
    NoEvents(String),
}

impl HostError {
    /// Makes an error from a file and the system's error.
    pub(super) fn of(path: &Path) -> impl Fn(io::Error) -> HostError + Copy + '_ {
        move |error| HostError::Unreadable { path: path.into(), error }
    }
}
