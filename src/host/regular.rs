//! Files named by other processes. Opening a device can have effects (a watchdog starts, a tape rewinds) and opening a
//! FIFO can block for ever, so a path is checked first, and only a regular file is opened.

use nix::fcntl::{openat2, OFlag, OpenHow, ResolveFlag};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading; anything else is not opened.
pub fn open_regular(path: &Path) -> Result<File> {
    reopened(found(path, 0)?)
}

/// Opens a regular file by a path as a process sees it: links are resolved in its root directory and mounts.
pub fn open_regular_of(pid: u32, path: &Path) -> Result<File> {
    let named = format!("/proc/{pid}/root");
    let root = found(Path::new(&named), nix::libc::O_DIRECTORY)?;
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    match openat2(&root, path, OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT)) {
        Ok(file) => reopened(file.into()),
        // Linux before 5.6, or a filter of system calls that does not know it: links that are absolute end in the agent's root.
        Err(nix::Error::ENOSYS | nix::Error::EPERM) => open_regular(Path::new(&format!("{named}{}", path.display()))),
        Err(error) => Err(error.into()),
    }
}

/// Resolves a path without opening the file (`O_PATH`).
fn found(path: &Path, flags: i32) -> Result<File> {
    OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH | flags).open(path)
}

fn reopened(found: File) -> Result<File> {
    if !found.metadata()?.is_file() {
        return Err(Error::other("not a regular file"));
    }
    let found = OwnedFd::from(found);
    // Not by the path, which may lead to something else by now. O_NONBLOCK: a lease of its owner (fcntl(2)) would block.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_regular_file_is_opened_and_a_fifo_is_no_wait() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, file, link] = ["fifo", "file", "link"].map(|name| dir.path().join(name));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(&file, "text").unwrap();
        symlink("/dev/zero", &link).unwrap();
        for path in [fifo.as_path(), dir.path(), Path::new("/dev/zero"), &link] {
            for opened in [open_regular(path), open_regular_of(std::process::id(), path)] {
                assert_eq!(opened.unwrap_err().to_string(), "not a regular file", "{}", path.display());
            }
        }
        for mut opened in [open_regular(&file).unwrap(), open_regular_of(std::process::id(), &file).unwrap()] {
            let mut text = String::new();
            opened.read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        }
        assert!(open_regular_of(u32::MAX, &file).is_err());
    }

    /// A locked terminal cannot be opened, so an attempt to open it would show as an error.
    #[test]
    fn a_terminal_is_looked_at_and_not_opened() {
        let master =
            OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NOCTTY).open("/dev/ptmx").unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", master.as_raw_fd())).unwrap();
        let number = info.lines().find_map(|line| line.strip_prefix("tty-index:")).unwrap().trim();
        let path = format!("/dev/pts/{number}");
        assert_eq!(File::open(&path).unwrap_err().raw_os_error(), Some(nix::libc::EIO));
        assert_eq!(open_regular(Path::new(&path)).unwrap_err().to_string(), "not a regular file");
    }
}
