//! Modules that were loaded together, and their tables.

use super::guard::{guarded, held, Fault};
use super::loaded_module::LoadedModule;
use crate::catalog::TableError;
use crate::kit::{RefreshError, Table, TableId, TableSpec};
use crate::loader::{give_back, Attempt, Finding, LoadedObject};
use crate::pcp::PmErr;
use std::time::{Duration, Instant};

/// Modules that were loaded together. Any thread may use them; each module works for one thread at a time.
pub struct LoadedSet {
    /// The modules' programs and maps; the first field, so that all programs are detached before a module is dropped.
    pub kernel: Box<dyn LoadedObject>,
    /// The modules in the order of the configuration. The module of the filters behind `process` options, if there is one, is the
    /// last.
    pub modules: Vec<LoadedModule>,
    /// Attempts to attach each hook.
    pub attempts: Vec<Attempt>,
    /// Features of the kernel that these attempts found present or missing.
    pub findings: Vec<Finding>,
    /// Time that loading took.
    pub loading: Duration,
}

impl LoadedSet {
    /// Returns the modules that were not stopped.
    pub fn iter(&self) -> impl Iterator<Item = &LoadedModule> + Clone {
        self.modules.iter().filter(|loaded| !loaded.is_stopped())
    }

    /// True if one of these modules has the table.
    pub fn serves(&self, id: TableId) -> bool {
        self.module(id).is_some()
    }

    /// Returns the module of a table, and the table's declaration.
    fn module(&self, id: TableId) -> Option<(&LoadedModule, &'static TableSpec)> {
        self.iter().find_map(|loaded| {
            let (_, spec) = loaded.tables.iter().find(|(own, _)| *own == id)?;
            Some((loaded, *spec))
        })
    }

    /// Fills an empty table. Returns `None` if none of these modules has it. A panic in the module costs only the values of its
    /// table.
    pub fn refresh(&self, id: TableId, table: &mut Table) -> Option<Result<(), TableError>> {
        let (loaded, spec) = self.module(id)?;
        let begin = Instant::now();
        let filled = loaded.running().map(|running| guarded(&loaded.name, || running.read(spec, &*self.kernel, table)));
        Some(filled.and_then(|filled| Self::record(loaded, spec, table, begin, filled)))
    }

    /// Fills an empty table if that waits for nothing: neither for the module nor for anything the module would wait for. Returns
    /// `None` otherwise.
    pub fn refresh_at_once(&self, id: TableId, table: &mut Table) -> Option<Result<(), TableError>> {
        let (loaded, spec) = self.module(id)?;
        let (begin, running) = (Instant::now(), loaded.running_now()?);
        let filled = guarded(&loaded.name, || running.read_at_once(spec, &*self.kernel, table));
        let filled = filled.map(|is_filled| is_filled.then_some(Ok(()))).transpose()?;
        Some(Self::record(loaded, spec, table, begin, filled))
    }

    /// Records the result of a refresh, and logs it if it differs from the one before.
    fn record(
        loaded: &LoadedModule,
        spec: &TableSpec,
        table: &Table,
        begin: Instant,
        filled: Result<Result<(), RefreshError>, Fault>,
    ) -> Result<(), TableError> {
        let LoadedModule { name, debug, refreshes, .. } = loaded;
        let result = filled.unwrap_or_else(|fault| Err(RefreshError(fault.to_string())));
        let empty = table.empty_columns();
        let before = {
            let mut record = held(refreshes);
            record.empty.insert(spec.cluster, empty);
            (record.count, record.time) = (record.count + 1, record.time + begin.elapsed());
            match &result {
                Err(error) => record.errors.insert(spec.cluster, error.to_string()),
                Ok(()) => record.errors.remove(&spec.cluster),
            }
        };
        match (&result, before) {
            (Err(error), None) => log::error!("{name}: no values: {error}"),
            (Ok(()), Some(before)) => log::info!("{name}: has values again; before: {before}"),
            _ => {}
        }
        if *debug {
            log::info!("{name}: refreshed, {} instances", table.len());
        }
        Ok(result?)
    }

    /// Returns the number of events that became rows of a table so far, if its rows are events.
    pub fn events(&self, id: TableId) -> Option<u64> {
        let (loaded, _) = self.module(id)?;
        loaded.running().ok()?.events()
    }

    /// Returns what is missing if the module of a table has nothing to count, as a process that matches. The module of the filters,
    /// which is the last, is asked first.
    pub fn waits_for(&self, id: TableId) -> Option<String> {
        let (loaded, _) = self.module(id)?;
        let said = |by: &LoadedModule| by.running().ok()?.waits_for(&loaded.name);
        self.modules.last().filter(|last| last.tables.is_empty()).and_then(said).or_else(|| said(loaded))
    }

    /// Changes a value of a module's table, given as text.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), TableError> {
        let (loaded, spec) = self.module(id).ok_or(TableError::ReadOnly)?;
        let metric = spec.metrics.get(column).ok_or(PmErr::PMID)?;
        let name = &loaded.name;
        let running = loaded.running()?;
        let stored = guarded(name, || running.store(&*self.kernel, metric, value)).unwrap_or_else(|fault| {
            log::error!("{name}: {fault}");
            Err(PmErr::GENERIC)
        });
        give_back(); // what the end of a run left
        Ok(stored?)
    }

    /// True if a thread is using what a table has to wait for.
    pub fn is_busy(&self, id: TableId) -> bool {
        let is_busy =
            |loaded: &LoadedModule, spec| loaded.running_now().is_none_or(|running| running.is_busy_for(spec));
        self.module(id).is_some_and(|(loaded, spec)| loaded.running.is_ok() && is_busy(loaded, spec))
    }
}
