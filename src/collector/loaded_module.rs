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
    /// The number of targets that were found.
    pub targets: usize,
    pub refreshes: Mutex<RefreshRecord>,
    /// What became of the pair that it serves, if it serves one.
    pub pair: Option<PairStatus>,
    /// Set once the module is stopped: it has no tables any more.
    pub stopped: AtomicBool,
    /// When it was loaded, in seconds since 1970.
    pub loaded_at: u64,
}

/// A module at work.
pub struct Working {
    pub module: Box<dyn Module + Send>,
    pub losses: HashMap<&'static str, Loss>,
}

/// What the refreshes of a module came to, to be read while it works.
#[derive(Default)]
pub struct RefreshRecord {
    /// Why the last one of a table had no values, by the table's declared cluster.
    pub errors: BTreeMap<u32, String>,
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

/// What stands in the place of a module that was stopped.
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
    /// Whether the module can attach to the hook.
    pub fn has(&self, hook: &str) -> bool {
        self.spec.hooks.iter().any(|known| known.name == hook)
    }

    /// Whether the module was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Stops the module: what it holds is dropped, what it has at work on targets of its own detached.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
        if let Ok(working) = &self.module {
            held(working).module = Box::new(Stopped);
        }
    }

    /// Whether each of its tables is served, or why not.
    pub fn served(&self) -> impl Iterator<Item = (TableId, Result<(), TableError>)> + '_ {
        let outcome = self.module().map(drop);
        self.tables.iter().map(move |(id, _)| (*id, outcome.clone()))
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
