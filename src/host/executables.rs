//! Files that processes execute, and the probes they declare.

use super::blocking::BLOCKING;
use super::error::HostError;
use super::{open_regular, open_regular_of, Elf, Probe};
use crate::kit::Target;
use nix::sys::stat::{major, minor};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Result};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that is mapped executable by a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Name without directories.
    pub name: String,
    /// Path as the process sees it.
    pub path: PathBuf,
    pid: u32,
    /// Addresses as in /proc/PID/map_files.
    range: String,
    /// Device as in /proc/PID/maps.
    device: String,
    inode: u64,
}

impl Mapped {
    /// Opens the file, even if the process is in a container or the file was deleted or replaced: through the mapping,
    /// or, without the privilege for that (`CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`), by name if that is still the
    /// same file.
    pub fn open(&self) -> Result<File> {
        let mapping = PathBuf::from(format!("/proc/{}/map_files/{}", self.pid, self.range));
        let by_mapping = BLOCKING.run(self.pid, move || open_regular(&mapping));
        by_mapping.or_else(|error| {
            let file = open_regular_of(self.pid, &self.path).map_err(|_| error)?;
            let about = file.metadata()?;
            let device = format!("{:02x}:{:02x}", major(about.dev()), minor(about.dev()));
            match (device == self.device, about.ino() == self.inode) {
                (true, true) => Ok(file),
                // btrfs and overlayfs have a device of their own for mappings, which does not say which file it is.
                _ => Err(Error::other("another file has its name by now, or CAP_SYS_ADMIN is needed to tell")),
            }
        })
    }
}

/// Longest list of mappings that is read, in bytes: a quarter of a million mappings, several times the kernel's default
/// limit (`vm.max_map_count`).
const MAPS: u64 = 64 << 20;
/// Highest number of files of a process.
const FILES: usize = 1000;

/// Returns the files with these names (without directories) that a process executes, without duplicates, by address;
/// none if it is gone.
pub fn mapped(pid: u32, wanted: impl Fn(&str) -> bool) -> Vec<Mapped> {
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    each_line(pid, |line| {
        let file = executed(pid, line).filter(|file| wanted(&file.name));
        files.extend(file.filter(|file| seen.insert((file.device.clone(), file.inode))));
        files.len() < FILES
    });
    files
}

/// Passes the lines of /proc/PID/maps to `more` as long as it returns true.
pub(super) fn each_line(pid: u32, mut more: impl FnMut(&str) -> bool) {
    let Ok(maps) = BLOCKING.open(pid, move || File::open(format!("/proc/{pid}/maps"))) else { return };
    let mut maps = BufReader::with_capacity(1 << 16, maps.take(MAPS));
    let mut line = Vec::new();
    while maps.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        if !more(String::from_utf8_lossy(&line).trim_end_matches('\n')) {
            return;
        }
        line.clear();
    }
}

/// A line of /proc/PID/maps: `START-END PERMISSIONS OFFSET DEVICE INODE PATH` (proc(5)).
pub(super) struct Mapping<'a> {
    addresses: &'a str,
    permissions: &'a str,
    offset: &'a str,
    device: &'a str,
    inode: &'a str,
    /// Path; empty or a name in brackets if it is not a file.
    pub path: &'a str,
}

impl Mapping<'_> {
    pub fn of(line: &str) -> Option<Mapping<'_>> {
        let mut rest = line;
        let mut field = || {
            let (field, after) = rest.trim_start().split_once(' ')?;
            rest = after;
            Some(field)
        };
        let (addresses, permissions, offset, device, inode) = (field()?, field()?, field()?, field()?, field()?);
        Some(Mapping { addresses, permissions, offset, device, inode, path: rest.trim_start() })
    }

    pub fn is_executed(&self) -> bool {
        self.permissions.contains('x')
    }

    pub fn range(&self) -> Option<Range<u64>> {
        let (start, end) = self.addresses.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    }

    pub fn offset(&self) -> Option<u64> {
        u64::from_str_radix(self.offset, 16).ok()
    }

    /// Returns the file, if the mapping has one.
    pub fn file(&self, pid: u32) -> Option<Mapped> {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(self.path);
        let name = path.rsplit('/').next().filter(|_| path.starts_with('/'))?;
        let (range, device) = (self.addresses.into(), self.device.into());
        Some(Mapped { name: name.into(), path: path.into(), pid, range, device, inode: self.inode.parse().ok()? })
    }
}

fn executed(pid: u32, line: &str) -> Option<Mapped> {
    Mapping::of(line).filter(Mapping::is_executed)?.file(pid)
}

/// A file with its probes. It stays open, so that probes are attached to the file that was read even if its name now
/// leads elsewhere.
pub struct ProbeFile {
    file: File,
    /// Probes.
    pub probes: Vec<Probe>,
}

impl ProbeFile {
    /// Returns the target for a probe, by index, in one process or in all.
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

    /// Makes a file with this many probes; the offset of each is its index.
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

/// Identity of a file's contents: device, inode, size and time of change (ctime).
type Identity = (u64, u64, u64, i64, i64);

/// A cache of probe files.
#[derive(Default)]
pub struct ProbeFiles {
    files: HashMap<Identity, Arc<ProbeFile>>,
}

impl ProbeFiles {
    /// Closes files that nobody uses: an open file occupies its disk even if it was deleted.
    pub fn trim(&mut self) {
        self.files.retain(|_, file| Arc::strong_count(file) > 1);
    }

    /// Returns the probes that a file declares; `path` is for messages.
    pub fn read(&mut self, file: Result<File>, path: &Path) -> std::result::Result<Arc<ProbeFile>, HostError> {
        let fault = HostError::of(path);
        let file = file.map_err(fault)?;
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
    use std::fs;

    #[test]
    fn this_process_executes_its_program_which_can_be_opened() {
        let (pid, exe) = (std::process::id(), std::env::current_exe().unwrap());
        let name = exe.file_name().unwrap().to_str().unwrap();
        let files = mapped(pid, |other| other == name);
        assert!(files.len() == 1 && files[0].path == exe, "{files:?}");
        let about = files[0].open().unwrap().metadata().unwrap();
        assert_eq!((about.dev(), about.ino()), fs::metadata(&exe).map(|about| (about.dev(), about.ino())).unwrap());
        assert!(mapped(pid, |_| false).is_empty() && mapped(u32::MAX, |_| true).is_empty());
    }

    #[test]
    fn a_file_is_not_taken_for_one_of_its_inode_on_another_device() {
        let mut file = mapped(std::process::id(), |_| true).remove(0);
        assert!(file.open().is_ok());
        file.range = "gone".into(); // as without the privilege
        let by_name = file.open();
        file.device = "ff:ff".into();
        assert!(file.open().is_err());
        // Where files are on overlayfs or btrfs, the mapping's device is never theirs.
        println!("by its name: {:?}", by_name.map(|_| ()));
    }

    /// A process in a chroot has paths that begin at another root.
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
            files = mapped(child.id(), |file| file == name);
            if !files.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (mut library, path) = (Vec::new(), Path::new("/lib/x86_64-linux-gnu").join(name));
        files[0].open().unwrap().read_to_end(&mut library).unwrap();
        let mut by_name = open_regular_of(child.id(), &path).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let true_one = fs::read(Path::new("/usr").join(path.strip_prefix("/").unwrap())).unwrap();
        assert!(library == true_one);
        library.clear();
        by_name.read_to_end(&mut library).unwrap();
        assert!(library == true_one);
    }

    #[test]
    fn what_is_executed_has_a_path_also_if_it_was_deleted() {
        let line = "7f00-7fff r-xp 00001000 08:01 77     /opt/a b/libjvm.so (deleted)";
        let file = executed(5, line).unwrap();
        assert_eq!((file.name.as_str(), file.path.to_str()), ("libjvm.so", Some("/opt/a b/libjvm.so")));
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
        let first = files.read(open_regular(&path), &path).unwrap();
        assert!(Arc::ptr_eq(&first, &files.read(open_regular(&path), &path).unwrap()));
        fs::remove_file(&path).unwrap();
        fs::copy(&exe, &path).unwrap();
        assert!(!Arc::ptr_eq(&first, &files.read(open_regular(&path), &path).unwrap()));
        assert!(files.read(open_regular(dir.path()), dir.path()).is_err());
    }
}
