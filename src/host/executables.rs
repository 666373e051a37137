//! The files that processes execute, and the probes they declare.

use super::{Elf, Probe};
use crate::kit::Target;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that a process has mapped to execute it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its name without directories.
    pub name: String,
    /// Under the root of the process.
    named: PathBuf,
    /// By the mapping.
    link: PathBuf,
    inode: u64,
}

impl Mapped {
    /// Where the agent can open it, in whatever container the process is and even if it was deleted. Its name if that is still it:
    /// it begins at the root of the process in a container, and at the agent's in a mere chroot.
    pub fn path(&self) -> &Path {
        let is_it = fs::metadata(&self.named).is_ok_and(|about| about.ino() == self.inode);
        if is_it {
            &self.named
        } else {
            &self.link
        }
    }
}

/// The files that a process executes, each once, in the order of their addresses; none if it is gone.
pub fn mapped(pid: u32) -> Vec<Mapped> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut files: Vec<Mapped> = Vec::new();
    for file in String::from_utf8_lossy(&maps).lines().filter_map(|line| executed(pid, line)) {
        if files.iter().all(|known| known.named != file.named) {
            files.push(file);
        }
    }
    files
}

/// A line is `START-END PERMISSIONS OFFSET DEVICE INODE PATH` (proc(5)).
fn executed(pid: u32, line: &str) -> Option<Mapped> {
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(field)
    };
    let (range, permissions) = (field()?, field()?);
    let (_offset, _device, inode) = (field()?, field()?, field()?);
    let path = rest.trim_start();
    if !permissions.contains('x') || !path.starts_with('/') {
        return None;
    }
    let name = path.strip_suffix(" (deleted)").unwrap_or(path).rsplit('/').next()?.to_string();
    Some(Mapped {
        name,
        named: format!("/proc/{pid}/root{path}").into(),
        link: format!("/proc/{pid}/map_files/{range}").into(),
        inode: inode.parse().ok()?,
    })
}

/// A file with its probes. It stays open: what is attached to is the file that was read, whatever its name means by then.
pub struct ProbeFile {
    file: File,
    /// Its probes.
    pub probes: Vec<Probe>,
}

impl ProbeFile {
    /// The site of its probe at this place, in one process or in all.
    pub fn target(&self, probe: usize, process: Option<u32>) -> Target {
        let probe = &self.probes[probe];
        Target::Code {
            path: format!("/proc/self/fd/{}", self.file.as_raw_fd()).into(),
            offset: probe.offset,
            semaphore: probe.semaphore,
            process,
            name: format!("{}:{}", probe.provider, probe.name),
        }
    }

    /// Some file with so many probes, the offset of each its place.
    #[cfg(test)]
    pub fn with(probes: u64) -> Arc<ProbeFile> {
        let probe = |offset| Probe {
            provider: "test".into(),
            name: "probe".into(),
            offset,
            semaphore: 0,
            arguments: String::new(),
        };
        Arc::new(ProbeFile { file: File::open("/dev/null").unwrap(), probes: (0..probes).map(probe).collect() })
    }
}

/// What tells a file from those that have, or had, its name or its inode.
type Identity = (u64, u64, u64, i64, i64);

/// Files that were read.
#[derive(Default)]
pub struct ProbeFiles {
    files: HashMap<Identity, Arc<ProbeFile>>,
}

impl ProbeFiles {
    /// Closes those that nobody has: an open file takes room on its disk even if it was deleted.
    pub fn trim(&mut self) {
        self.files.retain(|_, file| Arc::strong_count(file) > 1);
    }

    /// A file and the probes it declares.
    pub fn read(&mut self, path: &Path) -> Result<Arc<ProbeFile>, String> {
        let file = Elf::open(path)?;
        let fault = |error: std::io::Error| format!("{}: {error}", path.display());
        let about = file.metadata().map_err(fault)?;
        let identity = (about.dev(), about.ino(), about.size(), about.ctime(), about.ctime_nsec());
        if let Some(known) = self.files.get(&identity) {
            return Ok(Arc::clone(known));
        }
        let probes = Elf::of(file.try_clone().map_err(fault)?, path)?.probes();
        let read = Arc::new(ProbeFile { file, probes });
        self.files.insert(identity, Arc::clone(&read));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_executes_its_program_which_can_be_opened_by_its_name_in_the_root_of_the_process() {
        let files = mapped(std::process::id());
        let exe = std::env::current_exe().unwrap();
        let own = files.iter().find(|file| Some(file.name.as_str()) == exe.file_name().unwrap().to_str()).unwrap();
        assert_eq!(own.path(), Path::new(&format!("/proc/{}/root{}", std::process::id(), exe.display())));
        assert!(own.path().exists());
        assert!(mapped(u32::MAX).is_empty());
    }

    /// Its paths begin at a root that is not its own.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_files_of_a_process_in_a_chroot_can_be_opened() {
        use std::os::unix::process::CommandExt;
        // A loader, libraries and programs at the same places as under the true root.
        let loader = Path::new("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        let mut command = std::process::Command::new(loader);
        command.args(["/bin/sleep", "100"]).env_clear();
        // SAFETY: between fork and exec only two system calls are made.
        unsafe { command.pre_exec(|| Ok(nix::unistd::chroot("/usr").and_then(|()| nix::unistd::chdir("/"))?)) };
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                return println!(
                    "skipped: the_files_of_a_process_in_a_chroot_can_be_opened: no chroot to /usr: {error}"
                )
            }
        };
        let name = "libc.so.6";
        let mut files = Vec::new();
        for _ in 0..1000 {
            files = mapped(child.id());
            if files.iter().any(|file| file.name == name) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let library = files.iter().find(|file| file.name == name).map(|file| fs::read(file.path()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(library.unwrap() == fs::read(Path::new("/usr/lib/x86_64-linux-gnu").join(name)).unwrap());
    }

    #[test]
    fn a_file_that_was_deleted_is_found_by_the_mapping() {
        let line = "7f00-7fff r-xp 00001000 08:01 77     /opt/a b/libjvm.so (deleted)";
        let file = executed(5, line).unwrap();
        assert_eq!((file.name.as_str(), file.path()), ("libjvm.so", Path::new("/proc/5/map_files/7f00-7fff")));
        for line in ["7f00-7fff r--p 0 08:01 77 /lib/x.so", "7f00-7fff r-xp 0 0:0 0 [vdso]", "7f00", ""] {
            assert_eq!(executed(5, line), None, "{line}");
        }
    }

    #[test]
    fn a_file_is_read_once_and_one_of_the_same_name_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (path, exe) = (dir.path().join("program"), std::env::current_exe().unwrap());
        let mut files = ProbeFiles::default();
        fs::copy(&exe, &path).unwrap();
        let first = files.read(&path).unwrap();
        assert!(Arc::ptr_eq(&first, &files.read(&path).unwrap()));
        fs::remove_file(&path).unwrap();
        fs::copy(&exe, &path).unwrap();
        assert!(!Arc::ptr_eq(&first, &files.read(&path).unwrap()));
        assert!(files.read(dir.path()).is_err());
    }
}
