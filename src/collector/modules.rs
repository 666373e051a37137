//! Tables of the modules and of the agent itself, for any thread.

use super::loaded_modules::LoadedModules;
use super::sets::Sets;
use super::status::{AgentStatus, STATUS};
use crate::catalog::TableError;
use crate::kit::{RefreshError, Table, TableId};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Loaded modules and the agent's own tables.
pub struct Modules {
    sets: RwLock<Sets>,
    status: OnceLock<AgentStatus>,
}

impl Modules {
    /// Makes the modules of the first set; the agent's own tables come with [`Modules::serve_status`].
    pub fn new(loaded: Arc<LoadedModules>) -> Modules {
        Modules { sets: RwLock::new(Sets(vec![loaded])), status: OnceLock::new() }
    }

    /// Returns the sets that are loaded.
    pub fn sets(&self) -> Sets {
        self.sets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the list of sets.
    pub fn change<R>(&self, change: impl FnOnce(&mut Sets) -> R) -> R {
        change(&mut self.sets.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The set that serves a table.
    fn of(&self, id: TableId) -> Option<Arc<LoadedModules>> {
        self.sets.read().unwrap_or_else(PoisonError::into_inner).of(id).cloned()
    }

    /// Starts to serve the agent's own tables, [`STATUS`].
    pub fn serve_status(&self, status: AgentStatus) {
        let _ = self.status.set(status); // once
    }

    /// Returns the status behind the agent's own tables, once these are served.
    pub fn status(&self) -> Option<&AgentStatus> {
        self.status.get()
    }

    /// Returns all tables, each with the reason if it is not served.
    pub fn served(&self) -> Vec<(TableId, Result<(), TableError>)> {
        let sets = self.sets();
        let of_modules = sets.modules().flat_map(|(_, loaded)| loaded.served());
        of_modules.chain(STATUS.iter().map(|table| (table.id(), Ok(())))).collect()
    }

    /// True if a thread is using the module of a table, so that others have to wait for it.
    pub fn is_busy(&self, id: TableId) -> bool {
        self.of(id).is_some_and(|set| set.is_busy(id))
    }

    /// Changes a value of a table, given as text.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), TableError> {
        match (STATUS.iter().find(|table| table.id() == id), self.status.get()) {
            (Some(table), Some(status)) => table.store(&self.sets(), status, column, value),
            _ => self.of(id).ok_or(TableError::ReadOnly)?.store(id, column, value),
        }
    }

    /// Fills a table if that waits for nothing. Returns `None`, and leaves the table empty, otherwise.
    pub fn refresh_at_once(&self, id: TableId, table: &mut Table) -> Option<Result<(), TableError>> {
        table.clear();
        self.of(id)?.refresh_at_once(id, table)
    }

    /// Fills a table.
    pub fn refresh(&self, id: TableId, table: &mut Table) -> Result<(), TableError> {
        table.clear();
        if let Some(filled) = self.of(id).and_then(|set| set.refresh(id, table)) {
            return filled;
        }
        let declared = STATUS.iter().find(|declared| declared.id() == id);
        let (Some(declared), Some(status)) = (declared, self.status.get()) else {
            return Err(RefreshError("not served".into()).into());
        };
        Ok(declared.refresh(&self.sets(), status, table)?)
    }
}
