//! Panics of one module, caught before they reach the others.

use crate::kit::with_section;
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// A panic that was caught.
#[derive(Debug, Error)]
#[error("a fault of the agent, please report it: {0}")]
pub struct Fault(String);

impl Fault {
    /// Returns the message of a panic.
    pub fn of(panic: &(dyn Any + Send)) -> Fault {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Fault(text.unwrap_or("panic").into())
    }
}

/// Runs a module's work, with its section in the log lines, and catches a panic.
pub fn guarded<R>(section: &Arc<str>, work: impl FnOnce() -> R) -> Result<R, Fault> {
    with_section(section, || catch_unwind(AssertUnwindSafe(work))).map_err(|panic| Fault::of(panic.as_ref()))
}

/// Panics where the environment variable `COREBCC_PANIC` names this place, as `plan:sysfork`; for tests, in debug builds only.
pub fn inject(place: &str, module: &str) {
    const PANIC: &str = "COREBCC_PANIC";
    let is_named = |named: String| named.split_once(':') == Some((place, module));
    assert!(!cfg!(debug_assertions) || !std::env::var(PANIC).is_ok_and(is_named), "{PANIC} asks for it");
}

/// Locks a mutex, also one that a panic has poisoned: panics of modules are caught.
pub fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
