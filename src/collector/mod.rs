//! The modules' thread: loads the BPF object, refreshes modules when asked, and drains rings and ages tables once a second. The
//! thread that answers pmcd waits for it for less than a second, so that pmcd gets an answer whatever a module does. While one module
//! keeps the thread busy, helper threads refresh the others (threads.rs).

mod desired_state;
mod engine;
mod guard;
mod ignored;
mod load;
mod loaded_module;
mod loaded_set;
mod modules;
mod outcomes;
mod prepared;
mod prepared_module;
mod sets;
mod status;
mod threads;

pub use crate::loader::{foreign_pins, give_back, pin_for, Attempt, StatisticsHelper};
pub use desired_state::{ChangeError, DesiredState, Difference, Order};
pub use engine::Engine;
pub use loaded_module::CONFIGURATION;
pub use prepared::{prepare, survey, Configuration, Prepared};
pub use prepared_module::{prepared_modules, PreparedModules};
pub use status::{is_of_pairs, is_of_scripts, status_tables, AgentStatus, STATUS};
pub use threads::Collector;
