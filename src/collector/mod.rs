//! The modules' thread: loads the BPF object, refreshes modules when asked, and drains rings and ages tables once a second. The
//! thread that answers pmcd waits for it for less than a second, so that pmcd gets an answer whatever a module does. While one module
//! keeps the thread busy, helper threads refresh the others (jobs.rs).

mod guard;
mod ignored;
mod jobs;
mod load;
mod loaded_module;
mod loaded_modules;
mod module_set;
mod modules;
mod outcomes;
mod prepared;
mod prepared_module;
mod renewal;
mod sets;
mod status;

pub use crate::loader::{foreign_pins, pin_for, Attempt, StatisticsHelper};
pub use jobs::Collector;
pub use loaded_module::CONFIGURATION;
pub use module_set::ModuleSet;
pub use prepared::{prepare, survey, Configuration, Prepared};
pub use prepared_module::{prepared_modules, PreparedModules};
pub use renewal::{Order, Renewal, RenewalError, Supply};
pub use status::{is_of_pairs, is_of_scripts, status_tables, AgentStatus, STATUS};
