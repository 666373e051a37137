//! Reasons why a table has no values or takes none, and their codes for clients.

use crate::kit::RefreshError;
use crate::pcp::PmErr;
use thiserror::Error;

/// Reason why a table has no values or takes none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TableError {
    /// The modules are still being loaded.
    #[error("not loaded yet")]
    Loading,
    /// The module could not be loaded, for this reason.
    #[error("{0}")]
    NotLoaded(String),
    /// The last refresh failed.
    #[error(transparent)]
    NoValues(#[from] RefreshError),
    /// The module did not answer in time.
    #[error("no answer in time")]
    Late,
    /// The metric cannot be changed.
    #[error("it cannot be changed")]
    ReadOnly,
    /// The module did not accept the value.
    #[error("the value is not accepted: {0}")]
    Rejected(#[from] PmErr),
}

impl TableError {
    /// Returns the error code for clients.
    pub fn code(&self) -> PmErr {
        match self {
            TableError::Loading | TableError::Late => PmErr::AGAIN,
            TableError::NotLoaded(_) => PmErr::APPVERSION,
            TableError::NoValues(_) => PmErr::VALUE,
            TableError::ReadOnly => PmErr::PERMISSION,
            TableError::Rejected(code) => *code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_the_code_that_tells_a_client_what_to_do() {
        for (error, code) in [
            (TableError::Loading, PmErr::AGAIN),
            (TableError::Late, PmErr::AGAIN),
            (TableError::NotLoaded("no way to attach".into()), PmErr::APPVERSION),
            (RefreshError("interval".into()).into(), PmErr::VALUE),
            (TableError::ReadOnly, PmErr::PERMISSION),
            (PmErr::BADSTORE.into(), PmErr::BADSTORE),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
    }
}
