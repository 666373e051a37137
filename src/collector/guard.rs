//! What keeps a panic of one module from the others.

use crate::kit::speaking_as;
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Has a module of a section do something; if it panics, yields what to say of it.
pub fn guarded<R>(section: &Arc<str>, work: impl FnOnce() -> R) -> Result<R, String> {
    speaking_as(section, || catch_unwind(AssertUnwindSafe(work))).map_err(|panic| message(panic.as_ref()))
}

pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a fault of the agent, please report it: {}", text.unwrap_or("panic"))
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
