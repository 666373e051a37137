//! A module of a configuration once its loading is over.

use super::prepared_module::ServedMetric;
use crate::catalog::TableError;
use crate::kit::{Module, PairStatus, Spec, TableId, TableSpec};
use crate::loader::Failure;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// What stands in the place of the hook that failed, where the section is in error.
pub const CONFIGURATION: &str = "configuration";

/// A module, or why it is not there.
pub struct LoadedModule {
    pub name: Arc<str>,
    pub spec: &'static Spec,
    pub tables: Vec<(TableId, &'static TableSpec)>,
    pub metrics: Vec<ServedMetric>,
    /// The option `debug` of its section.
    pub debug: bool,
    pub module: Result<Mutex<Working>, Failure>,
    /// Entries of its section that no target was found for, each with the reason.
    pub missing: Vec<(String, String)>,
    pub refreshes: Mutex<RefreshRecord>,
    /// What became of the pair that it serves, if it serves one.
    pub pair: Option<PairStatus>,
}

/// A module at work.
pub struct Working {
    pub module: Box<dyn Module + Send>,
    pub losses: HashMap<&'static str, Loss>,
}

/// What the refreshes of a module came to, to be read while it works.
#[derive(Default)]
pub struct RefreshRecord {
    /// Why the last one had no values.
    pub error: Option<String>,
    pub count: u64,
    pub time: Duration,
    /// By the declared cluster of a table, the columns that had no value: a bit each.
    pub empty: BTreeMap<u32, u64>,
}

impl RefreshRecord {
    /// Whether the last refresh, if there was one, had no value of the metric.
    pub fn is_empty(&self, metric: &ServedMetric) -> bool {
        self.empty.get(&metric.cluster).is_some_and(|columns| columns & metric.bit() != 0)
    }
}

#[derive(Default)]
pub struct Loss {
    pub count: u64,
    pub logged_at: Option<u64>,
}

impl LoadedModule {
    /// Whether the module can attach to the hook.
    pub fn has(&self, hook: &str) -> bool {
        self.spec.hooks.iter().any(|known| known.name == hook)
    }

    /// The module, or why its tables are not served.
    pub fn module(&self) -> Result<&Mutex<Working>, TableError> {
        self.module.as_ref().map_err(|failure| TableError::NotLoaded(failure.reason.clone()))
    }

    /// The module, if it is loaded and no other thread has it at work.
    pub fn idle(&self) -> Option<MutexGuard<'_, Working>> {
        match self.module.as_ref().ok()?.try_lock() {
            Ok(working) => Some(working),
            Err(TryLockError::Poisoned(working)) => Some(working.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub fn is_busy(&self) -> bool {
        self.module.is_ok() && self.idle().is_none()
    }
}
