//! All modules of a configuration once loading is over, and their tables.

use super::guard::{guarded, held};
use super::loaded_module::Slot;
use crate::kit::{fill, Kernel, RefreshError, Table, TableId, TableSpec};
use crate::loader::{give_back, Attempt, Finding, Loaded};
use crate::pcp::PmErr;
use std::time::{Duration, Instant};

/// Loaded modules, for any thread: each works for one thread at a time.
pub struct LoadedModules {
    /// Their programs and maps; the first field, so that all is detached before a module is dropped.
    pub loaded: Loaded,
    /// In the order of the configuration; the filters of their `process` options, if there are any, are the last.
    pub slots: Vec<Slot>,
    /// What was tried at the hooks.
    pub attempts: Vec<Attempt>,
    /// What that says of the kernel.
    pub findings: Vec<Finding>,
    /// How long loading took.
    pub loading: Duration,
}

impl LoadedModules {
    /// The module of a table, and the table as it is declared.
    fn slot(&self, id: TableId) -> Option<(&Slot, &'static TableSpec)> {
        self.slots.iter().find_map(|slot| {
            let (_, spec) = slot.tables.iter().find(|(own, _)| *own == id)?;
            Some((slot, *spec))
        })
    }

    /// Fills a table, which is empty; `None` if it is no module's. A module that panics costs its own values, no more.
    pub fn refresh(&self, id: TableId, table: &mut Table) -> Option<Result<(), String>> {
        let (slot, spec) = self.slot(id)?;
        let begin = Instant::now();
        let Slot { name, debug, module: Ok(module), told, .. } = slot else {
            return Some(Err("not loaded".into()));
        };
        let kernel: &dyn Kernel = &self.loaded;
        let module = &mut *held(module).module;
        let result = guarded(name, || fill(spec, module, kernel, table))
            .unwrap_or_else(|fault| Err(RefreshError(fault)))
            .map_err(|error| error.to_string());
        let before = {
            let mut told = held(told);
            (told.count, told.time) = (told.count + 1, told.time + begin.elapsed());
            std::mem::replace(&mut told.trouble, result.clone().err())
        };
        match (&result, before) {
            (Err(error), None) => log::error!("{name}: no values: {error}"),
            (Ok(()), Some(_)) => log::info!("{name}: values again"),
            _ => {}
        }
        if *debug {
            log::info!("{name}: refreshed, {} instances", table.len());
        }
        Some(result)
    }

    /// Changes a string of a table.
    pub fn store(&self, id: TableId, column: usize, value: &[u8]) -> Result<(), PmErr> {
        let (slot, spec) = self.slot(id).ok_or(PmErr::PERMISSION)?;
        let metric = spec.metrics.get(column).ok_or(PmErr::PMID)?;
        let Slot { name, module: Ok(module), .. } = slot else { return Err(PmErr::APPVERSION) };
        let kernel: &dyn Kernel = &self.loaded;
        let module = &mut held(module).module;
        let stored = guarded(name, || module.store(kernel, metric, value)).unwrap_or_else(|fault| {
            log::error!("{name}: {fault}");
            Err(PmErr::GENERIC)
        });
        give_back(); // what the end of a run left
        stored
    }

    /// Whether the module of a table is at work already, so that whoever asks it has to wait.
    pub fn is_busy(&self, id: TableId) -> bool {
        self.slot(id).is_some_and(|(slot, _)| slot.is_busy())
    }
}
