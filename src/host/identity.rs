//! Identity of a process, which differs from that of a later process with the same id.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process while it executes one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Start time in clock ticks since boot (proc(5), field 22 of stat), which differs for a later process with the
    /// same id.
    pub born: u64,
    /// Device and inode of the executable.
    pub program: (u64, u64),
}

impl ProcessIdentity {
    /// Reads the identity; `None` if the process has ended or is a kernel thread.
    pub fn of(pid: u32) -> Option<ProcessIdentity> {
        let program = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may have anything in it.
        let born = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(ProcessIdentity { born, program: (program.dev(), program.ino()) })
    }
}
