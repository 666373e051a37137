//! A script as a module: it serves the rows that its process printed last.

use super::runner::{Runnable, Runner};
use super::state::SharedState;
use super::tables::ScriptTable;
use crate::bpf::types;
use crate::kit::{Host, Kernel, Module, Plan, RefreshError, Table};
use std::sync::Arc;
use std::time::Instant;

const UNREAD: &str = "unread: lines of bpftrace's output that were not understood";
const LOST: &str = "lost: events that bpftrace lost before it could print them";

/// The module of a script, whose process runs from its load to its end. It serves what the runner thread has read from the process,
/// and waits for neither.
pub struct ScriptModule {
    /// Its name in metrics.
    pub(super) name: String,
    pub(super) state: SharedState,
    pub(super) tables: Vec<ScriptTable>,
    /// Names of its file and its module, if it may run.
    pub(super) names: Option<(String, String)>,
    pub(super) runner: Arc<Runner>,
}

impl Drop for ScriptModule {
    fn drop(&mut self) {
        self.runner.end(self.state.clone());
    }
}

impl Module for ScriptModule {
    fn plan(&mut self, _host: &Host, _plan: &mut Plan, _constants: &mut types::rodata) {
        if let Some((file, name)) = self.names.take() {
            self.runner.run(Runnable { file, name, state: self.state.clone() });
        }
    }

    fn refresh(&mut self, _kernel: &dyn Kernel, table: &mut Table) -> Result<(), RefreshError> {
        let own = self.tables.iter().find(|own| table.is(own.spec));
        let own = own.ok_or_else(|| RefreshError("not served".into()))?;
        let mut state = self.state.get();
        let filled = own.fill(&state, table);
        let is_wanted = own.is_data() && state.read(Instant::now());
        drop(state);
        if is_wanted {
            self.runner.wake();
        }
        filled
    }

    fn life(&self) -> Option<(&'static str, String)> {
        Some(self.state.get().life())
    }

    fn script(&self, most: usize) -> Option<String> {
        Some(self.state.get().json(&self.name, most))
    }

    fn losses(&self, _kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        let state = self.state.get();
        each(UNREAD, state.unread_lines);
        each(LOST, state.lost_events);
    }
}
