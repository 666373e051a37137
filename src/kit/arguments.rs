//! Arguments of processes, which can hold passwords: the switch that shows them, and the length limit in the log.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Value of the option `show_arguments` for the log. Global, as the log level is.
static SHOWN: AtomicBool = AtomicBool::new(true);

/// Longest command line in the log, in bytes. The log is not rotated, and any user can start any number of processes.
const IN_LOG: usize = 200;

/// Sets the option `show_arguments` of `[pmda]` for the log.
pub fn show_arguments(shown: bool) {
    SHOWN.store(shown, Relaxed);
}

/// Shortens a command line for the log: to `IN_LOG` bytes, and to the program if arguments are not shown.
pub fn in_log(line: &[u8]) -> String {
    shortened(line, SHOWN.load(Relaxed))
}

fn shortened(line: &[u8], shown: bool) -> String {
    let program = line.split(|&byte| byte == b' ').next().unwrap_or_default();
    let line = if shown { line } else { program };
    let dots = if line.len() > IN_LOG { "..." } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(&line[..line.len().min(IN_LOG)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_in_the_log_is_short_or_the_program_only() {
        assert_eq!(shortened(b"mysql -psecret", true), "mysql -psecret");
        assert_eq!(shortened(b"mysql -psecret", false), "mysql");
        assert_eq!(shortened(&[b'x'; 1 << 20], true), format!("{}...", "x".repeat(200)));
        assert_eq!(shortened(&[b'x'; 1 << 20], false).len(), 203);
        assert_eq!(shortened(b"", false), "");
    }
}
