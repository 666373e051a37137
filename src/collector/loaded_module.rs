//! A module of a configuration once its loading is over.

use super::guard::held;
use super::prepared_module::ServedMetric;
use crate::bpf::types;
use crate::catalog::TableError;
use crate::kit::{Host, Kernel, Module, PairStatus, Plan, RefreshError, Spec, Table, TableId, TableSpec};
use crate::loader::Failure;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
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
    pub module: Result<Mutex<Working>, Failure>,
    /// Targets that its section names and that were not found, each with the reason.
    pub missing: Vec<(String, String)>,
    /// The number of targets that were found.
    pub targets: usize,
    pub refreshes: Mutex<RefreshRecord>,
    /// Status of the pair that it serves, if it serves one.
    pub pair: Option<PairStatus>,
    /// True once the module is stopped: it has no tables any more.
    pub stopped: AtomicBool,
    /// Time at which it was loaded, in seconds since 1970.
    pub loaded_at: u64,
}

/// A module at work.
pub struct Working {
    pub module: Box<dyn Module + Send>,
    pub losses: HashMap<&'static str, Loss>,
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

/// A module that takes the place of one that was stopped, so that the latter can be dropped.
struct Stopped;

impl Module for Stopped {
    fn plan(&mut self, _host: &Host, _plan: &mut Plan, _constants: &mut types::rodata) {}

    fn refresh(&mut self, _kernel: &dyn Kernel, _table: &mut Table) -> Result<(), RefreshError> {
        Err(RefreshError("the module was stopped".into()))
    }
}

#[derive(Default)]
pub struct Loss {
    pub count: u64,
    pub logged_at: Option<u64>,
}

impl LoadedModule {
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
        if let Ok(working) = &self.module {
            held(working).module = Box::new(Stopped);
        }
    }

    /// Returns the module's tables, each with the reason if it is not served.
    pub fn served(&self) -> impl Iterator<Item = (TableId, Result<(), TableError>)> + '_ {
        let outcome = self.module().map(drop);
        self.tables.iter().map(move |(id, _)| (*id, outcome.clone()))
    }

    /// Returns the module, or the reason why its tables are not served.
    pub fn module(&self) -> Result<&Mutex<Working>, TableError> {
        self.module.as_ref().map_err(|failure| TableError::NotLoaded(failure.reason.clone()))
    }

    /// Returns the module if it is loaded and no other thread is using it.
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
