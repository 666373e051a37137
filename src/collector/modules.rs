//! Tables of the modules and of the agent itself, for any thread.

use super::guard::Fault;
use super::loaded_set::LoadedSet;
use super::sets::Sets;
use super::status::{self, AgentStatus, STATUS};
use crate::catalog::TableError;
use crate::kit::{RefreshError, Running, Table, TableId, TableSpec};
use crate::pcp::PmErr;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Loaded modules and the agent's own tables.
pub struct Modules {
    sets: Arc<RwLock<Sets>>,
    own: OnceLock<(Arc<AgentStatus>, Running)>,
}

impl Modules {
    /// Makes the modules of the first set; the agent's own tables come with [`Modules::serve_status`].
    pub fn new(loaded: Arc<LoadedSet>) -> Modules {
        Modules { sets: Arc::new(RwLock::new(Sets(vec![loaded]))), own: OnceLock::new() }
    }

    /// Returns the sets that are loaded.
    pub fn sets(&self) -> Sets {
        status::now(&self.sets)
    }

    /// Changes the list of sets.
    pub fn change<R>(&self, change: impl FnOnce(&mut Sets) -> R) -> R {
        change(&mut self.sets.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The set that serves a table.
    fn of(&self, id: TableId) -> Option<Arc<LoadedSet>> {
        self.sets.read().unwrap_or_else(PoisonError::into_inner).of(id).cloned()
    }

    /// Starts to serve the agent's own tables, [`STATUS`].
    pub fn serve_status(&self, status: AgentStatus) {
        let status = Arc::new(status);
        let running = status::start(&status, &self.sets);
        let _ = self.own.set((status, running)); // once
    }

    /// Returns the status behind the agent's own tables, once these are served.
    pub fn status(&self) -> Option<&AgentStatus> {
        self.own.get().map(|(status, _)| &**status)
    }

    /// Returns a table of the agent itself, and what serves it.
    fn own(&self, id: TableId) -> Option<(&'static TableSpec, &Running)> {
        let table = STATUS.iter().find(|table| table.id() == id)?;
        Some((table.spec, &self.own.get()?.1))
    }

    /// Returns all tables, each with the reason if it is not served.
    pub fn served(&self) -> Vec<(TableId, Result<(), TableError>)> {
        let sets = self.sets();
        let of_modules = sets.modules().flat_map(|(_, loaded)| loaded.served());
        of_modules.chain(STATUS.iter().map(|table| (table.id(), Ok(())))).collect()
    }

    /// True if a thread is using what a table has to wait for.
    pub fn is_busy(&self, id: TableId) -> bool {
        self.of(id).is_some_and(|set| set.is_busy(id))
    }

    /// Returns the number of events that became rows of a table so far, if its rows are events.
    pub fn events(&self, id: TableId) -> Option<u64> {
        self.of(id)?.events(id)
    }

    /// Returns what is missing if the module of a table has nothing to count, as a process that matches.
    pub fn waits_for(&self, id: TableId) -> Option<String> {
        self.of(id)?.waits_for(id)
    }

    /// Changes a value of a table, given as text.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), TableError> {
        let Some(((spec, running), set)) = self.own(id).zip(self.sets().iter().next().cloned()) else {
            return self.of(id).ok_or(TableError::ReadOnly)?.store(id, column, value);
        };
        let metric = spec.metrics.get(column).ok_or(PmErr::PMID)?;
        Ok(running.store(&*set.kernel, metric, value)?)
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
        let own = self.own(id).zip(self.sets().iter().next().cloned());
        let ((spec, running), set) = own.ok_or_else(|| RefreshError("not served".into()))?;
        // A panic costs the values of its table.
        catch_unwind(AssertUnwindSafe(|| running.read(spec, &*set.kernel, table))).unwrap_or_else(|panic| {
            table.clear();
            let error = RefreshError(Fault::of(panic.as_ref()).to_string());
            log::error!("{}: {error}", spec.summary);
            Err(error)
        })?;
        Ok(())
    }
}
