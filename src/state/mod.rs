//! What outlives the process: identifiers of instances, and starts.

mod clusters;
mod file;
mod identifiers;
mod restarts;

pub use clusters::Clusters;
pub use identifiers::Cache;
pub use restarts::Restarts;
