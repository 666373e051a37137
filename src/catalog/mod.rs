//! What is served: the enabled modules with their names, descriptors, instances and help.

mod cache;
mod help;
mod instances;
mod registry;

pub use cache::Cache;
pub use help::Help;
pub use registry::{additions, instances, Collect, Instance, Registry};
