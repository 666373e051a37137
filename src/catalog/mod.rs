//! What is served: the enabled modules with their names, descriptors, instances and help.

mod enabled;
mod help;
mod instances;
mod registry;

pub use enabled::{additions, instance, instances, Enabled, Instance};
pub use help::Help;
pub use registry::{Collect, Registry};
