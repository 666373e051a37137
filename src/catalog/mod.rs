//! What is served: the enabled modules with their names, descriptors, instances and help.

mod enabled;
mod help;
mod instances;
mod registry;

pub use enabled::{instance, instances, Enabled};
pub use help::Help;
pub use registry::{additions, Collect, Instance, Registry};
