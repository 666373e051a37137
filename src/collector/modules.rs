//! The tables of the modules and those of the agent itself, for any thread.

use super::loaded_modules::LoadedModules;
use super::status::{Own, STATUS};
use crate::kit::{Table, TableId};
use std::ops::Deref;
use std::sync::OnceLock;

/// Loaded modules and what the agent knows of itself.
pub struct Modules {
    loaded: LoadedModules,
    own: OnceLock<Own>,
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
        Modules { loaded, own: OnceLock::new() }
    }

    /// Serves the agent's own tables from now on: [`STATUS`].
    pub fn serve_own(&self, own: Own) {
        let _ = self.own.set(own); // once
    }

    /// Whether each table is served; a sentence for one that is not.
    pub fn served(&self) -> Vec<(TableId, Result<(), String>)> {
        let of_modules = self.slots.iter().flat_map(|slot| {
            let fate = slot.module.as_ref().map(drop).map_err(|failure| failure.reason.clone());
            slot.tables.iter().map(move |(id, _)| (*id, fate.clone()))
        });
        of_modules.chain(STATUS.iter().map(|table| (table.id(), Ok(())))).collect()
    }

    /// Fills a table.
    pub fn refresh(&self, id: TableId, table: &mut Table) -> Result<(), String> {
        table.clear();
        let of_module = self.loaded.refresh(id, table);
        of_module.unwrap_or_else(|| {
            let status = STATUS.iter().find(|status| status.id() == id);
            let (Some(status), Some(own)) = (status, self.own.get()) else { return Err("not served".into()) };
            status.refresh(&self.loaded, own, table)
        })
    }
}
