//! What outlives the process: identifiers of instances, and starts.

mod clusters;
mod file;
mod identifiers;
mod restarts;
mod writer;

pub use clusters::{ClusterFile, Clusters};
pub use identifiers::Cache;
pub use restarts::Restarts;
pub use writer::Writer;
