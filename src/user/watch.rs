//! Pairs or scripts of a directory that came, changed or went. The directory is read once a second: a look at each file costs a
//! microsecond, and no change is missed, as can happen with inotify, which drops events.

use super::directory::{files_of, is_hidden, pair_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time without a change after which a file counts as complete: an editor or a copy is done with it.
const QUIET: Duration = Duration::from_millis(400);
/// Time for which a file of a pair waits for the other one.
const ALONE: Duration = Duration::from_secs(3);

/// Attributes that differ if a file was replaced or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: (u64, u64),
    size: u64,
    owner: (u32, u32),
    /// Seconds and nanoseconds of the last change of contents or attributes (`st_ctim`), which a copy cannot take over from its
    /// original.
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

    /// Returns the time since the last change.
    fn age(&self, now: SystemTime) -> Duration {
        let (seconds, nanoseconds) = self.changed;
        let at = UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanoseconds.max(0) as u32);
        // A clock that was set back must not keep a pair waiting.
        now.duration_since(at).unwrap_or(ALONE)
    }
}

/// Both files of a pair, or the file of a script.
type Stamps = [Option<FileStamp>; 2];

/// Changes since the last scan, by names of pairs or scripts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Pairs whose YAML file, and scripts whose file, no longer exists.
    pub removed: Vec<String>,
    /// New pairs or scripts, and those with a changed file.
    pub new: Vec<String>,
}

/// A directory of pairs or scripts, as it was at the last scan.
pub struct Watch {
    directory: PathBuf,
    /// Returns the name of the pair or script that a file belongs to.
    name: fn(&Path) -> Option<String>,
    /// Returns the files of a pair or script in a directory.
    files: fn(&Path, &str) -> [Option<PathBuf>; 2],
    /// Number of files of a pair or script.
    whole: usize,
    read: BTreeMap<String, Stamps>,
}

impl Watch {
    /// Watches a directory of pairs for changes from now on; the caller reads the pairs next.
    pub fn pairs(directory: PathBuf) -> Watch {
        Watch::new(directory, pair_of, files_of, 2)
    }

    /// Watches a directory of scripts for changes from now on; the caller reads the scripts next.
    pub fn scripts(directory: PathBuf) -> Watch {
        let name = |file: &Path| {
            let is_script = !is_hidden(file) && file.extension().is_some_and(|extension| extension == "bt");
            is_script.then(|| file.file_stem().unwrap_or_default().to_string_lossy().into_owned())
        };
        Watch::new(directory, name, |directory, name| [Some(directory.join(format!("{name}.bt"))), None], 1)
    }

    fn new(
        directory: PathBuf,
        name: fn(&Path) -> Option<String>,
        files: fn(&Path, &str) -> [Option<PathBuf>; 2],
        whole: usize,
    ) -> Watch {
        let mut watch = Watch { directory, name, files, whole, read: BTreeMap::new() };
        watch.read = watch.stamps();
        watch
    }

    /// Returns the changes since the last scan. A file that is still being written is left for a later scan.
    pub fn scan(&mut self, now: SystemTime) -> Changed {
        let stamps = self.stamps();
        // What is left of a pair may be on its way out, too.
        let is_gone = |(name, [file, _]): &(&String, &Stamps)| match stamps.get(*name) {
            Some([now, _]) => file.is_some() && now.is_none(),
            None => true,
        };
        let removed: Vec<String> = self.read.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        self.read.retain(|name, _| !removed.contains(name));
        let mut new = Vec::new();
        for (name, stamp) in stamps {
            if self.read.get(&name) != Some(&stamp) && self.is_settled(&stamp, now) {
                self.read.insert(name.clone(), stamp);
                new.push(name);
            }
        }
        Changed { removed, new }
    }

    fn is_settled(&self, stamps: &Stamps, now: SystemTime) -> bool {
        let is_whole = stamps.iter().flatten().count() >= self.whole;
        // The other file of one that is alone may have gone a moment ago.
        let directory = if is_whole { None } else { FileStamp::of(&self.directory) };
        let quiet = if is_whole { QUIET } else { ALONE };
        stamps.iter().flatten().chain(&directory).all(|file| file.age(now) >= quiet)
    }

    fn stamps(&self) -> BTreeMap<String, Stamps> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names: BTreeSet<String> = entries.filter_map(|entry| (self.name)(&entry.path())).collect();
        let stamps = |name: String| {
            let files = (self.files)(&self.directory, &name);
            (name, files.map(|file| FileStamp::of(&file?)))
        };
        names.into_iter().map(stamps).filter(|(_, stamps)| stamps.iter().any(Option::is_some)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(removed: &[&str], new: &[&str]) -> Changed {
        let names = |names: &[&str]| names.iter().map(|name| String::from(*name)).collect();
        Changed { removed: names(removed), new: names(new) }
    }

    #[test]
    fn pairs_come_change_and_go_once_their_files_are_whole() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(home.path().join(name), name).unwrap();
        let (now, later) = (SystemTime::now, || SystemTime::now() + Duration::from_secs(1));
        let much_later = || later() + ALONE;
        ["a.yaml", "a.bpf.o"].iter().for_each(|name| write(name));
        let mut watch = Watch::pairs(home.path().into());
        assert_eq!(watch.scan(later()), changed(&[], &[]), "what was there is read at the start");
        ["b.yaml", "c.yaml", "c.bpf.o", "e.bpf.o", ".d.yaml", ".d.bpf.o", "other.txt"]
            .iter()
            .for_each(|name| write(name));
        assert_eq!(watch.scan(now()), changed(&[], &[]), "files that have just been written");
        assert_eq!(watch.scan(later()), changed(&[], &["c"]), "those of `b` and `e` are to come");
        assert_eq!(watch.scan(much_later()), changed(&[], &["b", "e"]), "they do not come");
        fs::write(home.path().join("a.bpf.o"), "another").unwrap();
        fs::remove_file(home.path().join("c.yaml")).unwrap();
        assert_eq!(watch.scan(later()), changed(&["c"], &["a"]));
        assert_eq!(watch.scan(later()), changed(&[], &[]));
        assert_eq!(watch.scan(much_later()), changed(&[], &["c"]), "its object stays");
        fs::remove_file(home.path().join("c.bpf.o")).unwrap();
        assert_eq!(watch.scan(later()), changed(&["c"], &[]));
    }

    #[test]
    fn scripts_come_change_and_go_once_they_are_whole() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
        let (now, later) = (SystemTime::now, || SystemTime::now() + Duration::from_secs(1));
        write("a.bt", "a");
        let mut watch = Watch::scripts(home.path().into());
        ["b.bt", "c.yaml", "other.txt"].iter().for_each(|name| write(name, "b"));
        assert_eq!(watch.scan(now()), changed(&[], &[]), "a file that has just been written");
        assert_eq!(watch.scan(later()), changed(&[], &["b"]));
        write("b.bt", "another");
        fs::remove_file(home.path().join("a.bt")).unwrap();
        assert_eq!(watch.scan(later()), changed(&["a"], &["b"]));
        assert_eq!(watch.scan(later()), changed(&[], &[]));
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_pairs() {
        let home = tempfile::tempdir().unwrap();
        let mut watch = Watch::pairs(home.path().join("programs.d"));
        fs::create_dir(home.path().join("programs.d")).unwrap();
        fs::write(home.path().join("programs.d/a.yaml"), "").unwrap();
        fs::write(home.path().join("programs.d/a.bpf.o"), "").unwrap();
        assert_eq!(watch.scan(SystemTime::now() + ALONE), changed(&[], &["a"]));
    }
}
