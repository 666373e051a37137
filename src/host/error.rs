//! Why a file of the machine is of no use.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a file of the machine is of no use.
#[derive(Debug, Error)]
pub enum HostError {
    /// It cannot be opened or read, or is no regular file.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// It is no ELF file that can run here.
    #[error("{}: not a 64-bit ELF file of this machine's byte order", .0.display())]
    NotElf(PathBuf),
    /// tracefs does not tell its events; with what to do.
    #[error("{0}")]
    NoEvents(String),
}

impl HostError {
    /// Makes the error of a file from that of the system.
    pub(super) fn of(path: &Path) -> impl Fn(io::Error) -> HostError + Copy + '_ {
        move |error| HostError::Unreadable { path: path.into(), error }
    }
}
