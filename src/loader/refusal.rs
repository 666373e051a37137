//! What libbpf and the verifier say when the kernel refuses something: which program or map, and why.

use crate::kit::KernelError;
use libbpf_rs::libbpf_sys;
use nix::libc::{ENOENT, EOPNOTSUPP};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use thiserror::Error;

/// Why a program, a map, an attachment or all of the object is refused.
#[derive(Clone, Debug, Default, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Refusal {
    /// The map, if it was one.
    pub map: Option<String>,
    /// The error number, positive; 0 if unknown.
    pub errno: i32,
    /// What libbpf or the verifier said: a few lines at most.
    pub message: String,
}

/// The verifier's log can be megabytes; the cause is at its end.
const WORDS: usize = 6;

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Takes a message of libbpf. Names in it can be any bytes of an object, at which the callback of libbpf-rs ends the process.
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

/// Runs something with libbpf's messages kept, and gives them beside its result.
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
    /// Reads libbpf's messages (`libbpf.c`: `map 'NAME': failed to create: ...`).
    pub fn read(said: &str, errno: i32) -> Refusal {
        let lines: Vec<&str> = said.lines().map(|line| line.trim_start_matches("libbpf: ")).collect();
        let failed = |line: &&&str| line.contains("failed");
        let map = lines.iter().rev().filter(failed).find_map(|line| quoted(line, "map '")).map(String::from);
        let errno = if errno == 0 { said_errno(&lines) } else { errno };
        let spoken = lines.iter().filter(|line| !line.trim().is_empty() && !is_no_cause(line));
        let message = spoken.take(WORDS).copied().collect::<Vec<_>>().join("; ");
        Refusal { map, errno, message }
    }

    /// What the kernel answers to a program: the end of the verifier's log if it spoke, else what the number means.
    pub fn of_program(error: &std::io::Error, log: &str) -> Refusal {
        let said: Vec<&str> =
            log.lines().filter(|line| !line.starts_with("processed ") && !line.trim().is_empty()).collect();
        let message = match said.len() {
            0 => format!("the program is refused: {error}"),
            count => said[count.saturating_sub(WORDS)..].join("; "),
        };
        Refusal::new(error.raw_os_error().unwrap_or(0), message)
    }

    /// The end of what the verifier said is the cause.
    pub fn last_words(&self) -> &str {
        self.message.rsplit("; ").next().unwrap_or(&self.message)
    }

    /// A refusal of a program or an attachment, with an error number of errno(3).
    pub fn new(errno: i32, message: impl Into<String>) -> Refusal {
        Refusal { map: None, errno, message: message.into() }
    }

    /// The place to attach to does not exist, which says nothing about the way to attach.
    pub fn missing(message: impl Into<String>) -> Refusal {
        Refusal::new(ENOENT, message)
    }

    /// The running kernel lacks what the way to attach needs.
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

/// The number in `...: -22` or `...: -EINVAL`, in which libbpf's messages end.
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

/// What libbpf adds to every failure after its cause, and its guesses at the cause where nothing at all may be loaded: what forbids
/// it is known better (`Privileges`).
fn is_no_cause(line: &str) -> bool {
    let guesses = [
        "Failed to bump RLIMIT_MEMLOCK",
        "Error in bpf_object__probe_loading()",
        "permission error while running as root",
    ];
    line.starts_with("failed to load object '") || guesses.iter().any(|guess| line.starts_with(guess))
}

/// An error with its causes.
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
