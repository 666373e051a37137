//! The conversation with pmcd: one thread, one poll over pmcd's descriptors, the signals and one wake descriptor.
//! Passes frames to a [`Handler`] and writes its replies.

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

/// A reason why the conversation failed or was not established.
#[derive(Debug, Error)]
pub enum TransportError {
    /// A system call failed.
    #[error("{what}: {reason}")]
    System {
        /// The attempted operation.
        what: String,
        /// Error of the system.
        reason: String,
    },
    /// The endpoint cannot be used.
    #[error("{0}")]
    Endpoint(String),
    /// A termination signal came before pmcd did.
    #[error("ended by signal {0} while waiting for pmcd")]
    Signal(i32),
}

impl TransportError {
    fn new(what: impl Into<String>, reason: impl Display) -> TransportError {
        TransportError::System { what: what.into(), reason: reason.to_string() }
    }
}
