//! The arguments of processes, which can hold passwords: whether they are shown, and how much of a command line the log gets.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// As the level of the log: one for the process, set before the modules are made.
static SHOWN: AtomicBool = AtomicBool::new(true);

/// Bytes of a command line in the log, which nobody rotates: any user can begin as many processes as they like.
const IN_LOG: usize = 200;

/// The option `show_arguments` of `[pmda]`.
pub fn show_arguments(shown: bool) {
    SHOWN.store(shown, Relaxed);
}

/// Whether values and the log may have the arguments of processes.
pub fn shows_arguments() -> bool {
    SHOWN.load(Relaxed)
}

/// A command line as the log has it.
pub fn in_log(line: &[u8]) -> String {
    shortened(line, shows_arguments())
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
