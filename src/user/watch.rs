//! Which pairs or scripts of a directory came, changed or went since they were read. Asked once a second: a look at each file costs a microsecond,
//! and nothing is missed as it can be by a watch that the kernel drops.

use super::directory::is_hidden;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file that has not changed for so long is whole: an editor or a copy is done with it.
const QUIET: Duration = Duration::from_millis(400);
/// How long a file waits for the other one of its pair.
const ALONE: Duration = Duration::from_secs(3);

/// What tells that a file is another one, or has other contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: (u64, u64),
    size: u64,
    owner: (u32, u32),
    /// Seconds and nanoseconds of the last change of the file or of what is known of it: a copy that keeps the time of its original
    /// has its own.
    changed: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> Option<FileStamp> {
        let about = fs::symlink_metadata(path).ok()?;
        Some(FileStamp {
            inode: (about.dev(), about.ino()),
            size: about.size(),
            owner: (about.uid(), about.mode()),
            changed: (about.ctime(), about.ctime_nsec()),
        })
    }

    /// How long it has not changed.
    fn age(&self, now: SystemTime) -> Duration {
        let (seconds, nanoseconds) = self.changed;
        let at = UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanoseconds.max(0) as u32);
        // A clock that was set back must not keep a pair waiting.
        now.duration_since(at).unwrap_or(ALONE)
    }
}

/// Both files of a pair, or the file of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: FileStamp,
    object: Option<FileStamp>,
}

/// What came of a look: names of pairs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Pairs whose YAML file, and scripts whose file is not there any more.
    pub gone: Vec<String>,
    /// Those that are new, or of which a file has changed.
    pub come: Vec<String>,
}

/// A directory of pairs or scripts, as it was when they were read.
pub struct Watch {
    directory: PathBuf,
    /// How the names of files end that are looked for.
    extension: &'static str,
    /// How those of the files end that belong to them.
    object: Option<&'static str>,
    read: BTreeMap<String, Stamp>,
}

impl Watch {
    /// A directory of pairs as it is now: they are read next.
    pub fn pairs(directory: PathBuf) -> Watch {
        Watch::new(directory, "yaml", Some("bpf.o"))
    }

    /// A directory of scripts as it is now: they are read next.
    pub fn scripts(directory: PathBuf) -> Watch {
        Watch::new(directory, "bt", None)
    }

    fn new(directory: PathBuf, extension: &'static str, object: Option<&'static str>) -> Watch {
        let mut watch = Watch { directory, extension, object, read: BTreeMap::new() };
        watch.read = watch.stamps();
        watch
    }

    /// Looks for changes. Files that are being written are waited for.
    pub fn look(&mut self, now: SystemTime) -> Changed {
        let stamps = self.stamps();
        let gone: Vec<String> = self.read.keys().filter(|name| !stamps.contains_key(*name)).cloned().collect();
        self.read.retain(|name, _| stamps.contains_key(name));
        let mut come = Vec::new();
        for (name, stamp) in stamps {
            if self.read.get(&name) != Some(&stamp) && self.is_settled(&stamp, now) {
                self.read.insert(name.clone(), stamp);
                come.push(name);
            }
        }
        Changed { gone, come }
    }

    fn is_settled(&self, stamp: &Stamp, now: SystemTime) -> bool {
        match &stamp.object {
            Some(object) => stamp.file.age(now).min(object.age(now)) >= QUIET,
            None if self.object.is_none() => stamp.file.age(now) >= QUIET,
            None => stamp.file.age(now) >= ALONE,
        }
    }

    fn stamps(&self) -> BTreeMap<String, Stamp> {
        let mut stamps = BTreeMap::new();
        for file in fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !is_hidden(&file) && file.extension().is_some_and(|extension| extension == self.extension) {
                let object = |extension| FileStamp::of(&file.with_file_name(format!("{name}.{extension}")));
                let object = self.object.and_then(object);
                stamps.extend(FileStamp::of(&file).map(|file| (name, Stamp { file, object })));
            }
        }
        stamps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(gone: &[&str], come: &[&str]) -> Changed {
        let names = |names: &[&str]| names.iter().map(|name| String::from(*name)).collect();
        Changed { gone: names(gone), come: names(come) }
    }

    #[test]
    fn pairs_come_change_and_go_once_their_files_are_whole() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(home.path().join(name), name).unwrap();
        let (now, later) = (SystemTime::now, || SystemTime::now() + Duration::from_secs(1));
        let much_later = || later() + ALONE;
        ["a.yaml", "a.bpf.o"].iter().for_each(|name| write(name));
        let mut watch = Watch::pairs(home.path().into());
        assert_eq!(watch.look(later()), changed(&[], &[]), "what was there is read at the start");
        ["b.yaml", "c.yaml", "c.bpf.o", ".d.yaml", ".d.bpf.o", "other.txt"].iter().for_each(|name| write(name));
        assert_eq!(watch.look(now()), changed(&[], &[]), "files that have just been written");
        assert_eq!(watch.look(later()), changed(&[], &["c"]), "one of `b` is to come");
        assert_eq!(watch.look(much_later()), changed(&[], &["b"]), "it does not come");
        fs::write(home.path().join("a.bpf.o"), "another").unwrap();
        fs::remove_file(home.path().join("c.yaml")).unwrap();
        assert_eq!(watch.look(later()), changed(&["c"], &["a"]));
        assert_eq!(watch.look(later()), changed(&[], &[]));
    }

    #[test]
    fn scripts_come_change_and_go_once_they_are_whole() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
        let (now, later) = (SystemTime::now, || SystemTime::now() + Duration::from_secs(1));
        write("a.bt", "a");
        let mut watch = Watch::scripts(home.path().into());
        ["b.bt", "c.yaml", "other.txt"].iter().for_each(|name| write(name, "b"));
        assert_eq!(watch.look(now()), changed(&[], &[]), "a file that has just been written");
        assert_eq!(watch.look(later()), changed(&[], &["b"]));
        write("b.bt", "another");
        fs::remove_file(home.path().join("a.bt")).unwrap();
        assert_eq!(watch.look(later()), changed(&["a"], &["b"]));
        assert_eq!(watch.look(later()), changed(&[], &[]));
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_pairs() {
        let home = tempfile::tempdir().unwrap();
        let mut watch = Watch::pairs(home.path().join("programs.d"));
        fs::create_dir(home.path().join("programs.d")).unwrap();
        fs::write(home.path().join("programs.d/a.yaml"), "").unwrap();
        fs::write(home.path().join("programs.d/a.bpf.o"), "").unwrap();
        assert_eq!(watch.look(SystemTime::now() + ALONE), changed(&[], &["a"]));
    }
}
