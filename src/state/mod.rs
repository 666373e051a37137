//! What outlives the process: identifiers of instances, a secret, and starts.

mod clusters;
mod file;
mod identifiers;
mod restarts;
mod secret;
mod writer;

pub use clusters::{ClusterFile, Clusters};
pub use identifiers::Cache;
pub use restarts::Restarts;
pub use secret::keep_secret;
pub use writer::Writer;
