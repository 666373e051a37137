//! A module of a configuration once its loading is over.

use super::prepared_module::ServedMetric;
use crate::catalog::TableError;
use crate::host::has_kernel_module;
use crate::kit::{PairStatus, Running, Spec, State, TableId, TableSpec};
use crate::loader::Failure;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

/// Name in place of a hook's, for a module that failed because of an error in its section.
pub const CONFIGURATION: &str = "configuration";

/// A module after loading, with the reason if it failed.
pub struct LoadedModule {
    pub name: Arc<str>,
    pub spec: &'static Spec,
    pub tables: Vec<(TableId, &'static TableSpec)>,
    pub metrics: Vec<ServedMetric>,
    /// The option `debug` of its section.
    pub debug: bool,
    /// The started module; an empty one once it is stopped. Only a stop takes it for writing, and waits for threads that use it.
    pub running: Result<RwLock<Running>, Failure>,
    /// Losses at the last tick.
    pub losses: Mutex<HashMap<&'static str, Loss>>,
    /// Targets that its section names and that were not found, each with the reason.
    pub missing: Vec<(String, String)>,
    /// The number of targets that were found.
    pub targets: usize,
    /// The number of its kernel modules that the kernel had before it was loaded.
    pub kernel_modules: usize,
    pub refreshes: Mutex<RefreshRecord>,
    /// True once the module is stopped: it has no tables any more.
    pub stopped: AtomicBool,
    /// Time at which it was loaded, in seconds since 1970.
    pub loaded_at: u64,
}

/// Results of a module's refreshes, which can be read while it works.
#[derive(Default)]
pub struct RefreshRecord {
    /// Reasons why the last refresh of a table failed, by the table's declared cluster.
    pub errors: BTreeMap<u32, String>,
    pub count: u64,
    pub time: Duration,
    /// Columns without a value in the last refresh, a bit each, by the table's declared cluster.
    pub empty: BTreeMap<u32, u64>,
}

impl RefreshRecord {
    /// True if the last refresh had no value of the metric; false before the first refresh.
    pub fn is_empty(&self, metric: &ServedMetric) -> bool {
        self.empty.get(&metric.cluster).is_some_and(|columns| columns & metric.bit() != 0)
    }
}

#[derive(Default)]
pub struct Loss {
    pub count: u64,
    pub logged_at: Option<u64>,
}

/// Returns the number of the kernel modules of a module that the kernel has now.
pub fn kernel_modules_of(spec: &Spec) -> usize {
    spec.kernel_modules.iter().filter(|name| has_kernel_module(name)).count()
}

impl LoadedModule {
    /// True if it failed, and one of its kernel modules has come since.
    pub fn is_worth_a_retry(&self) -> bool {
        self.running.is_err() && kernel_modules_of(self.spec) > self.kernel_modules
    }

    /// True if the module can attach to the hook.
    pub fn has(&self, hook: &str) -> bool {
        self.spec.hooks.iter().any(|known| known.name == hook)
    }

    /// True if the module was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Stops the module: drops it, which detaches the programs of its own targets.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
        if let Ok(running) = &self.running {
            *running.write().unwrap_or_else(PoisonError::into_inner) = Running::default();
        }
    }

    /// Returns the module's tables, each with the reason if it is not served.
    pub fn served(&self) -> impl Iterator<Item = (TableId, Result<(), TableError>)> + '_ {
        let outcome = self.running().map(drop);
        self.tables.iter().map(move |(id, _)| (*id, outcome.clone()))
    }

    /// Returns what runs, or the reason why its tables are not served.
    pub fn running(&self) -> Result<RwLockReadGuard<'_, Running>, TableError> {
        let running = self.running.as_ref().map_err(|failure| TableError::NotLoaded(failure.reason.clone()))?;
        Ok(running.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what runs, for a thread that waits for nothing; `None` if it failed, or is just being stopped.
    pub fn running_now(&self) -> Option<RwLockReadGuard<'_, Running>> {
        match self.running.as_ref().ok()?.try_read() {
            Ok(running) => Some(running),
            Err(TryLockError::Poisoned(running)) => Some(running.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the pair that it serves, as it was loaded.
    pub fn pair(&self) -> Option<PairStatus> {
        match &self.running_now()?.state {
            State::Pair(pair, _) => Some(pair.clone()),
            _ => None,
        }
    }

    /// True if another thread has the module's state.
    pub fn is_busy(&self) -> bool {
        self.running.is_ok() && self.running_now().is_none_or(|running| running.is_busy())
    }
}
