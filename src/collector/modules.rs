//! The tables of the modules and those of the agent itself, for any thread.

use super::loaded_modules::LoadedModules;
use super::status::{AgentStatus, STATUS};
use crate::catalog::TableError;
use crate::kit::{RefreshError, Table, TableId};
use std::ops::Deref;
use std::sync::OnceLock;

/// Loaded modules and what the agent knows of itself.
pub struct Modules {
    loaded: LoadedModules,
    status: OnceLock<AgentStatus>,
}

impl Deref for Modules {
    type Target = LoadedModules;

    fn deref(&self) -> &LoadedModules {
        &self.loaded
    }
}

impl Modules {
    /// Without the agent's own tables.
    pub fn new(loaded: LoadedModules) -> Modules {
        Modules { loaded, status: OnceLock::new() }
    }

    /// Serves the agent's own tables from now on: [`STATUS`].
    pub fn serve_status(&self, status: AgentStatus) {
        let _ = self.status.set(status); // once
    }

    /// Whether each table is served, or why not.
    pub fn served(&self) -> Vec<(TableId, Result<(), TableError>)> {
        let of_modules = self.iter().flat_map(|loaded| {
            let outcome = loaded.module().map(drop);
            loaded.tables.iter().map(move |(id, _)| (*id, outcome.clone()))
        });
        of_modules.chain(STATUS.iter().map(|table| (table.id(), Ok(())))).collect()
    }

    /// Changes a value of a table, given as text.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), TableError> {
        match (STATUS.iter().find(|table| table.id() == id), self.status.get()) {
            (Some(table), Some(status)) => table.store(&self.loaded, status, column, value),
            _ => self.loaded.store(id, column, value),
        }
    }

    /// Fills a table.
    pub fn refresh(&self, id: TableId, table: &mut Table) -> Result<(), TableError> {
        table.clear();
        let of_module = self.loaded.refresh(id, table);
        of_module.unwrap_or_else(|| {
            let declared = STATUS.iter().find(|declared| declared.id() == id);
            let (Some(declared), Some(status)) = (declared, self.status.get()) else {
                return Err(RefreshError("not served".into()).into());
            };
            Ok(declared.refresh(&self.loaded, status, table)?)
        })
    }
}
