//! Small files that outlive the agent, in directories of PCP's that the account `pcp` may write: root must not be led elsewhere by
//! a link left there, nor held up by a named pipe.

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The largest state file that is read: many times what the most names take.
pub const MAX_SIZE: u64 = 16 << 20;

/// Reads a state file. What is no regular file, or larger than [`MAX_SIZE`], is an error, and so is a link.
pub fn read_state(path: &Path) -> io::Result<Vec<u8>> {
    // O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(io::Error::other(format!("larger than {MAX_SIZE} bytes")));
    }
    Ok(bytes)
}

/// Replaces a state file, whatever is in its scratch but a directory: a reader meets the old bytes or the new ones. It does not wait
/// for the disk, so that the file can be empty after a crash of the machine.
pub fn replace_state(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, 0o644)
}

/// The same of a file that only its owner may read.
pub fn replace_private_state(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, 0o600)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // O_EXCL (create_new) follows no link.
    let written: io::Result<()> = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(fresh)
        .and_then(|mut file: File| file.write_all(bytes))
        .and_then(|()| fs::rename(fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Scratch {
        dir: tempfile::TempDir,
    }

    impl Scratch {
        fn new() -> Scratch {
            Scratch { dir: tempfile::tempdir().unwrap() }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.dir.path().join(name)
        }

        fn pipe(&self, name: &str) {
            nix::unistd::mkfifo(&self.path(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
    }

    #[test]
    fn a_state_file_is_replaced_whole_and_read_back() {
        let scratch = Scratch::new();
        let path = scratch.path("149.13");
        for text in ["one", "the other"] {
            replace_state(&path, text.as_bytes()).unwrap();
            assert_eq!(read_state(&path).unwrap(), text.as_bytes());
        }
        assert_eq!(fs::read_dir(scratch.dir.path()).unwrap().count(), 1);
        assert_eq!(read_state(&scratch.path("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_link_is_followed_neither_for_reading_nor_for_writing() {
        let scratch = Scratch::new();
        let (path, victim) = (scratch.path("149.13"), scratch.path("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        symlink(&victim, scratch.path("149.13.new")).unwrap();
        assert!(read_state(&path).is_err());
        replace_state(&path, b"state").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(read_state(&path).unwrap(), b"state");
    }

    #[test]
    fn pipes_and_directories_are_refused_at_once() {
        let scratch = Scratch::new();
        let path = scratch.path("149.13");
        scratch.pipe("149.13");
        scratch.pipe("149.13.new");
        assert!(read_state(&path).unwrap_err().to_string().contains("not a regular file"));
        replace_state(&path, b"state").unwrap();
        assert_eq!(read_state(&path).unwrap(), b"state");
        fs::create_dir(scratch.path("folder")).unwrap();
        assert!(read_state(&scratch.path("folder")).is_err());
        assert!(replace_state(&scratch.path("folder"), b"").is_err());
        assert!(!scratch.path("folder.new").exists());
    }

    #[test]
    fn a_huge_file_is_refused() {
        let scratch = Scratch::new();
        let path = scratch.path("149.13");
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        assert!(read_state(&path).unwrap_err().to_string().contains("larger than"));
    }
}
