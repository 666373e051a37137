//! The conversation with pmcd: one thread, one poll over pmcd's descriptors, the signals and one wake descriptor.
//! Reads bytes into frames for a [`Handler`], writes what it answers.

mod endpoint;
mod peer;
mod replies;
mod signals;
mod talk;

pub use endpoint::{connect, port, Connection, Endpoint, PortError};
pub use signals::Signals;
pub use talk::{run, End, Handler};

use std::fmt::Display;
use thiserror::Error;

/// Why no conversation came about, or why it could not be waited on.
#[derive(Debug, Error)]
pub enum TransportError {
    /// A call to the system failed.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// The system's reason.
        reason: String,
    },
    /// What was asked for cannot be used.
    #[error("{0}")]
    Endpoint(String),
    /// A signal to end came before pmcd did.
    #[error("ended by signal {0} while waiting for pmcd")]
    Signal(i32),
}

impl TransportError {
    fn new(what: impl Into<String>, reason: impl Display) -> TransportError {
        TransportError::System { what: what.into(), reason: reason.to_string() }
    }
}
