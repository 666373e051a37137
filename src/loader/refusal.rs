//! Messages of libbpf and the verifier about refusals: which program or map, and why.

use crate::kit::KernelError;
use libbpf_rs::libbpf_sys;
use nix::libc::{ENOENT, EOPNOTSUPP};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use thiserror::Error;

/// A reason why a program, a map, an attachment or the whole object is refused.
#[derive(Clone, Debug, Default, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Refusal {
    /// Name of the map, if a map is refused.
    pub map: Option<String>,
    /// Error number, positive; 0 if unknown.
    pub errno: i32,
    /// Message of libbpf or the verifier: a few lines at most.
    pub message: String,
}

/// Number of lines kept of the verifier's log, which can be megabytes; the cause is at its end.
const WORDS: usize = 6;

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Receives a message of libbpf. Names in it can be any bytes of an object; the callback of libbpf-rs would abort on
/// them.
extern "C" fn listen(level: libbpf_sys::libbpf_print_level, format: *const c_char, values: *mut c_void) -> c_int {
    let is_debug = level == libbpf_sys::LIBBPF_DEBUG || level == libbpf_sys::LIBBPF_INFO;
    if is_debug && !log::log_enabled!(target: "libbpf", log::Level::Debug) {
        return 0;
    }
    // SAFETY: libbpf calls this with a format and the values for it, which are used once.
    let message = unsafe { vsprintf::vsprintf_raw(format, values) }.unwrap_or_default();
    let message = String::from_utf8_lossy(&message);
    match is_debug {
        true => log::debug!(target: "libbpf", "{}", message.trim_end()),
        false => SAID.with_borrow_mut(|said| said.push_str(&message)),
    }
    0
}

/// Runs an action and returns its result with libbpf's messages.
pub fn listening<T>(action: impl FnOnce() -> T) -> (T, String) {
    // SAFETY: the last argument is a pointer on every architecture (`va_list`), whatever type it has in the binding.
    unsafe {
        libbpf_sys::libbpf_set_print(std::mem::transmute::<*const (), libbpf_sys::libbpf_print_fn_t>(
            listen as *const (),
        ))
    };
    SAID.with_borrow_mut(String::clear);
    let result = action();
    (result, SAID.take())
}

impl Refusal {
    /// Parses libbpf's messages (`libbpf.c`: `map 'NAME': failed to create: ...`).
    pub fn read(said: &str, errno: i32) -> Refusal {
        let lines: Vec<&str> = said.lines().map(|line| line.trim_start_matches("libbpf: ")).collect();
        let failed = |line: &&&str| line.contains("failed");
        let map = lines.iter().rev().filter(failed).find_map(|line| quoted(line, "map '")).map(String::from);
        let errno = if errno == 0 { said_errno(&lines) } else { errno };
        let spoken = lines.iter().filter(|line| !line.trim().is_empty() && !is_no_cause(line));
        let message = spoken.take(WORDS).copied().collect::<Vec<_>>().join("; ");
        Refusal { map, errno, message }
    }

    /// Makes the refusal of a program: the end of the verifier's log if there is one, else the meaning of the error
    /// number.
    pub fn of_program(error: &std::io::Error, log: &str) -> Refusal {
        let said: Vec<&str> =
            log.lines().filter(|line| !line.starts_with("processed ") && !line.trim().is_empty()).collect();
        let message = match said.len() {
            0 => format!("the program is refused: {error}"),
            count => said[count.saturating_sub(WORDS)..].join("; "),
        };
        Refusal::new(error.raw_os_error().unwrap_or(0), message)
    }

    /// Returns the last part of the message, which has the cause.
    pub fn last_words(&self) -> &str {
        self.message.rsplit("; ").next().unwrap_or(&self.message)
    }

    /// Makes a refusal of a program or an attachment, with an error number of errno(3).
    pub fn new(errno: i32, message: impl Into<String>) -> Refusal {
        Refusal { map: None, errno, message: message.into() }
    }

    /// Makes a refusal because the target does not exist, which says nothing about the kind of attachment.
    pub fn missing(message: impl Into<String>) -> Refusal {
        Refusal::new(ENOENT, message)
    }

    /// Makes a refusal because the kernel does not support the kind of attachment.
    pub fn unsupported(message: impl Into<String>) -> Refusal {
        Refusal::new(EOPNOTSUPP, message)
    }
}

impl From<Refusal> for KernelError {
    fn from(refusal: Refusal) -> KernelError {
        KernelError::Refused(refusal.message)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Refusal {
        Refusal::new(error.raw_os_error().unwrap_or(0), error.to_string())
    }
}

/// Returns the error number from the end of libbpf's messages: `...: -22` or `...: -EINVAL`.
fn said_errno(lines: &[&str]) -> i32 {
    const NAMES: &[(&str, i32)] = &[
        ("EPERM", 1),
        ("ENOENT", 2),
        ("ESRCH", 3),
        ("E2BIG", 7),
        ("EAGAIN", 11),
        ("ENOMEM", 12),
        ("EACCES", 13),
        ("EBUSY", 16),
        ("EEXIST", 17),
        ("EINVAL", 22),
        ("ENOSPC", 28),
        ("EOPNOTSUPP", 95),
        ("ENOTSUPP", 524),
    ];
    let number = |line: &&str| {
        let said = line.rsplit_once(": -")?.1.trim_end();
        said.parse().ok().or_else(|| NAMES.iter().find(|(name, _)| *name == said).map(|(_, number)| *number))
    };
    lines.iter().rev().find_map(number).unwrap_or(0)
}

fn quoted<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    line.split_once(before)?.1.split_once('\'').map(|(name, _)| name)
}

/// True for lines of libbpf that do not name the cause: those it adds to every failure, and its guesses where nothing
/// at all may be loaded, which `Privileges` knows better.
fn is_no_cause(line: &str) -> bool {
    let guesses = [
        "Failed to bump RLIMIT_MEMLOCK",
        "Error in bpf_object__probe_loading()",
        "permission error while running as root",
    ];
    line.starts_with("failed to load object '") || guesses.iter().any(|guess| line.starts_with(guess))
}

/// Formats an error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

pub fn errno(error: &libbpf_rs::Error) -> i32 {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return io;
        }
        source = error.source();
    }
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => 1,
        libbpf_rs::ErrorKind::NotFound => 2,
        libbpf_rs::ErrorKind::AlreadyExists => 17,
        libbpf_rs::ErrorKind::InvalidInput => 22,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_last_words_are_kept() {
        let log = "0: R1=ctx\n1: (79) r1\nR0 invalid mem access 'scalar'\nprocessed 12 insns\n";
        let refusal = Refusal::of_program(&std::io::Error::from_raw_os_error(13), log);
        assert_eq!(
            (refusal.errno, refusal.message.ends_with("R0 invalid mem access 'scalar'")),
            (13, true),
            "{refusal:?}"
        );
        let refusal = Refusal::of_program(&std::io::Error::from_raw_os_error(1), "");
        assert!(refusal.message.contains("not permitted"), "{refusal:?}");
    }

    #[test]
    fn a_map_that_cannot_be_created_is_named() {
        let refusal = Refusal::read("libbpf: map 'bio_rows': failed to create: -E2BIG\n", 0);
        assert_eq!((refusal.map.as_deref(), refusal.errno), (Some("bio_rows"), 7));
    }

    #[test]
    fn silence_names_nothing() {
        assert_eq!(Refusal::read("", 1), Refusal { errno: 1, ..Refusal::default() });
    }
}
