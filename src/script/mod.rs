//! bpftrace scripts of a site's own: each runs as a child process, and its maps are metrics.

mod check;
mod module;
mod output;
mod runner;
mod scripts;
mod source;
mod state;
mod tables;

pub use check::{check, Checked};
pub use module::ScriptModule;
pub use output::{rows, Cell, Line, Row, MAX_ROWS};
pub use scripts::{files, Others, ScriptChanges, Scripts};
pub use source::{Kind, ScriptMap, Source, OUTPUT};
pub use state::{ScriptState, Status};
