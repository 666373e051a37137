//! What tells a process from another that has its number later.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process as long as it executes one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Its start time (proc(5), field 22 of stat): tells it from another that has its number later.
    pub born: u64,
    /// Device and inode of its program.
    pub program: (u64, u64),
}

impl ProcessIdentity {
    /// `None` if it has ended, or is a kernel thread.
    pub fn of(pid: u32) -> Option<ProcessIdentity> {
        let program = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may have anything in it.
        let born = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(ProcessIdentity { born, program: (program.dev(), program.ino()) })
    }
}
