//! The served metrics: the enabled modules with their names, descriptors, instances and help.

mod change;
mod clients;
mod enabled;
mod help;
pub mod histogram_help;
mod instances;
mod registry;
mod table_error;

pub use change::Change;
pub use clients::{Clients, Controllers};
pub use enabled::{enabled_module, enabled_modules, spec_of, Enabled, EnabledModule, ServedTable, PAIR_CLUSTERS};
pub use help::Help;
pub use instances::Instances;
pub use registry::{Collect, Registry};
pub use table_error::TableError;
