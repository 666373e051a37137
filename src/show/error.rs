//! Reasons why `show` can show nothing, each in one sentence with advice.

use crate::catalog::TableError;
use crate::cli::PrintError;
use crate::config::ConfigError;
use thiserror::Error;

/// Reason why `show` can show nothing.
#[derive(Debug, Error)]
pub enum ShowError {
    /// The configuration is in error.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Neither a metric nor a module has the name.
    #[error("no metric or module `{name}`{near} (`pmdacorebcc show --list` lists all)")]
    NoMetric {
        /// The name that was asked for.
        name: String,
        /// `; did you mean ...?`, or nothing.
        near: String,
    },
    /// `--set` has an unknown option, or a value that the option does not take.
    #[error("--set {set}: {reason}")]
    Set {
        /// The text that followed `--set`.
        set: String,
        /// The expected text.
        reason: String,
    },
    /// `--sort` names a column that no table has.
    #[error("--sort {column}: no such column{near} (columns: {known})")]
    NoColumn {
        /// The column that was asked for.
        column: String,
        /// `; did you mean ...?`, or nothing.
        near: String,
        /// The existing columns.
        known: String,
    },
    /// The form does not suit the tables.
    #[error("{0}")]
    Form(String),
    /// The agent would not load the program given by `--program`.
    #[error("{0}; not loaded: only root may be able to change what runs in the kernel")]
    Pair(String),
    /// Scripts cannot be run.
    #[error("no script is run: {0}")]
    Scripts(#[from] std::io::Error),
    /// None of the modules with the metric could be loaded, for these reasons.
    #[error("{0}")]
    NotLoaded(String),
    /// The metric has no values.
    #[error(transparent)]
    NoValues(#[from] TableError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Print(#[from] PrintError),
}
