//! Processes by their names, from procfs.

use super::ProcessFilter;
use std::collections::HashMap;
use std::fs;

/// A C string's bytes: what precedes the first NUL.
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// The command line of a process: arguments joined with single blanks, `(comm)` for a kernel thread; `None` if it is gone.
pub fn cmdline(pid: u32) -> Option<Vec<u8>> {
    let mut line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    while line.last() == Some(&0) {
        line.pop();
    }
    if line.is_empty() {
        let comm = fs::read(format!("/proc/{pid}/comm")).ok()?;
        return Some([b"(", comm.trim_ascii_end(), b")"].concat());
    }
    line.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    Some(line)
}

/// Whether a process (not a thread of one) exists, its zombie included.
pub fn exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// Command lines seen while their processes lived.
#[derive(Default)]
pub struct Processes {
    lines: HashMap<u32, Vec<u8>>,
}

impl Processes {
    /// Looks at the processes there are: those that are new are remembered, those that are gone forgotten a look later.
    pub fn look(&mut self) {
        let mut lines = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                if let Some(line) = cmdline(pid) {
                    lines.insert(pid, line);
                }
            }
        }
        self.lines = lines;
    }

    /// Whether a filter means this process, as it is now or was at the last look.
    pub fn wants(&self, filter: &ProcessFilter, pid: u32, comm: &[u8]) -> bool {
        let now = cmdline(pid);
        let line = now.as_deref().or_else(|| self.lines.get(&pid).map(Vec::as_slice));
        filter.wants(pid, comm, line.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_command_line() {
        let line = cmdline(std::process::id()).expect("this process lives");
        assert!(line.windows(7).any(|part| part == b"corebcc"), "{}", String::from_utf8_lossy(&line));
        assert!(exists(std::process::id()));
    }

    #[test]
    fn a_kernel_thread_is_named_in_parentheses() {
        match cmdline(2) {
            Some(line) => assert_eq!(line, b"(kthreadd)"),
            None => assert!(!exists(2), "a process namespace without kernel threads"),
        }
    }

    #[test]
    fn a_string_ends_at_its_first_nul() {
        assert_eq!(until_nul(b"bash\0junk"), b"bash");
        assert_eq!(until_nul(b"full"), b"full");
    }
}
