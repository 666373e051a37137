//! A script as a module: it serves the rows that its process printed last.

use super::runner::{Runnable, Runner};
use super::state::SharedState;
use super::tables::ScriptTable;
use crate::bpf::types;
use crate::kit::{
    EachLoss, Host, Kernel, Module, Plan, RefreshError, Running, ScriptState, Starting, State, Table, TableSpec,
};
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
    fn plan(&mut self, _host: &Host, _plan: &mut Plan, _constants: &mut types::rodata) {}

    fn start(mut self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        if let Some((file, name)) = self.names.take() {
            self.runner.run(Runnable { file, name, state: self.state.clone() });
        }
        let (name, state) = (self.name.clone(), self.state.clone());
        let specs: Vec<&'static TableSpec> = self.tables.iter().map(|own| own.spec).collect();
        let running =
            Running::of(*self).state(|_| State::Script(Box::new(Script { name, state }))).losses(Self::losses);
        let tables = specs.into_iter().enumerate();
        let add =
            |running: Starting<Self>, (at, spec)| running.table(spec, move |module, _, table| module.fill(at, table));
        tables.fold(running, add).started()
    }
}

impl ScriptModule {
    fn fill(&mut self, at: usize, table: &mut Table) -> Result<(), RefreshError> {
        let own = &self.tables[at];
        let mut state = self.state.get();
        let filled = own.fill(&state, table);
        let is_wanted = own.is_data() && state.read(Instant::now());
        drop(state);
        if is_wanted {
            self.runner.wake();
        }
        filled
    }

    fn losses(&self, _kernel: &dyn Kernel, each: EachLoss<'_>) {
        let state = self.state.get();
        each(UNREAD, state.unread_lines);
        each(LOST, state.lost_events);
    }
}

/// State of a script, for the agent's own metrics.
struct Script {
    name: String,
    state: SharedState,
}

impl ScriptState for Script {
    fn state(&self) -> (&'static str, String) {
        self.state.get().summary()
    }

    fn json(&self, most: usize) -> String {
        self.state.get().json(&self.name, most)
    }
}
