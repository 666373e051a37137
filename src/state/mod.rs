//! What outlives the process: identifiers of instances, and starts.

mod file;
mod identifiers;
mod restarts;

pub use identifiers::Cache;
pub use restarts::Restarts;
