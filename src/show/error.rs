//! Why nothing can be shown: one sentence each, with what to do next.

use crate::catalog::TableError;
use crate::cli::PrintError;
use crate::config::ConfigError;
use thiserror::Error;

/// Why nothing can be shown.
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
    /// `--set` names an option that there is not, or a value that it cannot have.
    #[error("--set {set}: {reason}")]
    Set {
        /// What followed `--set`.
        set: String,
        /// What was expected.
        reason: String,
    },
    /// No table has the column.
    #[error("--sort {column}: no such column{near} (columns: {known})")]
    NoColumn {
        /// The column that was asked for.
        column: String,
        /// `; did you mean ...?`, or nothing.
        near: String,
        /// The columns that there are.
        known: String,
    },
    /// The form does not suit what is to be shown.
    #[error("{0}")]
    Form(String),
    /// The program of a file is not one that the agent would load.
    #[error("{0}; not loaded: only root may be able to change what runs in the kernel")]
    Pair(String),
    /// Scripts cannot be run.
    #[error("no script is run: {0}")]
    Scripts(#[from] std::io::Error),
    /// None of the modules that have the metric was loaded; with the reasons.
    #[error("{0}")]
    NotLoaded(String),
    /// The metric has no values.
    #[error(transparent)]
    NoValues(#[from] TableError),
    /// Nothing can be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}
