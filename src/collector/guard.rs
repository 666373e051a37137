//! What keeps a panic of one module from the others.

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
    /// Reads what a panic said.
    pub fn of(panic: &(dyn Any + Send)) -> Fault {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Fault(text.unwrap_or("panic").into())
    }
}

/// Has a module of a section do something, and catches its panic.
pub fn guarded<R>(section: &Arc<str>, work: impl FnOnce() -> R) -> Result<R, Fault> {
    with_section(section, || catch_unwind(AssertUnwindSafe(work))).map_err(|panic| Fault::of(panic.as_ref()))
}

/// For tests: panics where the environment variable names this place, as `plan:sysfork`. Not in what is installed.
pub fn inject(place: &str, module: &str) {
    const PANIC: &str = "COREBCC_PANIC";
    let is_named = |named: String| named.split_once(':') == Some((place, module));
    assert!(!cfg!(debug_assertions) || !std::env::var(PANIC).is_ok_and(is_named), "{PANIC} asks for it");
}

/// What a mutex guards, also after a panic: those of modules are caught.
pub fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
