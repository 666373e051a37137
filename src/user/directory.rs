//! The directory of pairs: `NAME.yaml` with `NAME.bpf.o` beside it. The programs run in the kernel, so nobody but root may be able to
//! change these files.

use super::config::PairError;
use super::yaml::MAX_SIZE;
use crate::loader::MAX_OBJECT;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use std::collections::BTreeSet;
use std::fs::{self, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest number of pairs that are read.
const MAX_PAIRS: usize = 256;
/// Suffixes of the files of a pair, each followed by a suffix that is often used by mistake.
const YAML: [&str; 2] = [".yaml", ".yml"];
const OBJECT: [&str; 2] = [".bpf.o", ".o"];

/// The files of a pair.
#[derive(Clone)]
pub struct PairFiles {
    /// The stem of both names.
    pub name: String,
    /// The YAML file.
    pub yaml: PathBuf,
    /// Contents of the YAML file.
    pub text: Result<Vec<u8>, PairError>,
    /// The object file.
    pub object: PathBuf,
    /// Contents of the object file.
    pub bytes: Result<Vec<u8>, PairError>,
}

impl PairFiles {
    /// Returns a hash of both contents; `None` if a file could not be read.
    pub fn contents(&self) -> Option<u64> {
        let mut hash = DefaultHasher::new();
        (self.text.as_ref().ok()?, self.bytes.as_ref().ok()?).hash(&mut hash);
        Some(hash.finish())
    }
}

/// Reads the pairs of a directory, in the order of their names; none if the directory does not exist.
pub fn read_directory(directory: &Path) -> Vec<PairFiles> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            log::error!("{}: {error}; no program of it is loaded", directory.display());
            return Vec::new();
        }
    };
    let names: BTreeSet<String> = entries.flatten().filter_map(|entry| pair_of(&entry.path())).collect();
    read_pairs(directory, &Vec::from_iter(names), 0)
}

/// Returns the name of the pair that a file belongs to, or seems to be meant for.
pub fn pair_of(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_string_lossy();
    let stem = YAML.iter().chain(&OBJECT).find_map(|end| name.strip_suffix(end))?;
    (!is_hidden(file)).then(|| stem.to_owned())
}

/// Returns the existing files of a pair, the YAML first. If a file is missing, the one with the other suffix takes its place.
pub fn files_of(directory: &Path, name: &str) -> [Option<PathBuf>; 2] {
    let is_there = |file: &PathBuf| fs::symlink_metadata(file).is_ok();
    [YAML, OBJECT].map(|ends| ends.iter().map(|end| directory.join(format!("{name}{end}"))).find(is_there))
}

/// Reads some pairs of a directory by their names. `running` is the number of pairs that count for the limit already.
pub fn read_pairs(directory: &Path, names: &[String], running: usize) -> Vec<PairFiles> {
    let trusted = trusted(directory);
    let read = |(i, name): (usize, &String)| {
        let file = directory.join(format!("{name}.yaml"));
        let most = || error(&file, format!("expected at most {MAX_PAIRS} pairs in the directory"));
        let may_be = if running + i < MAX_PAIRS { trusted.clone() } else { Err(most()) };
        read_pair(&file, &may_be, true)
    };
    names.iter().enumerate().map(read).collect()
}

/// Reads the pair of a YAML file, even if others than root may change it. The second result says whether the agent would read it.
pub fn read_file(file: &Path) -> (PairFiles, Result<(), PairError>) {
    let directory = file.parent().filter(|directory| *directory != Path::new("")).unwrap_or(Path::new("."));
    let refused = |path: &Path| match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() => Err(error(path, "expected a file, got a link")),
        Ok(about) => only_of_root(path, &about, Changeable::File),
        Err(_) => Ok(()), // reading it tells
    };
    let pair = read_pair(file, &Ok(()), false);
    let trusted = trusted(directory).and_then(|()| refused(&pair.yaml)).and_then(|()| refused(&pair.object));
    (pair, trusted)
}

/// True for a hidden file: editors and copies use such names for temporary files.
pub fn is_hidden(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn read_pair(file: &Path, trusted: &Result<(), PairError>, of_root: bool) -> PairFiles {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let object = file.with_file_name(format!("{name}.bpf.o"));
    let [yaml_there, object_there] = files_of(file.parent().unwrap_or(Path::new(".")), &name);
    let bytes = |path: &Path, there: Option<PathBuf>, most: u64| match there.filter(|there| there != path) {
        Some(other) => Err(error(path, format!("expected a file of this name, got {}; rename it", other.display()))),
        None => trusted.clone().and_then(|()| read(path, most, of_root)),
    };
    PairFiles {
        text: bytes(file, yaml_there, MAX_SIZE as u64),
        bytes: bytes(&object, object_there, MAX_OBJECT),
        name,
        yaml: file.into(),
        object,
    }
}

/// Reads a file of at most `most` bytes. Fails if others than root may change it or a directory above it.
pub fn read_trusted(file: &Path, most: u64) -> Result<Vec<u8>, PairError> {
    let directory = file.parent().filter(|directory| *directory != Path::new("")).unwrap_or(Path::new("."));
    trusted(directory).and_then(|()| read(file, most, true))
}

fn error(path: &Path, reason: impl Into<String>) -> PairError {
    PairError { file: path.display().to_string(), place: "file".into(), reason: reason.into() }
}

/// Checks that the directory and all above it belong to root, and that nobody else may write to them.
fn trusted(directory: &Path) -> Result<(), PairError> {
    let directory = directory.canonicalize().map_err(|why| error(directory, why.to_string()))?;
    for above in directory.ancestors() {
        let about = fs::symlink_metadata(above).map_err(|why| error(above, why.to_string()))?;
        let what = if above == directory { Changeable::Directory } else { Changeable::Above };
        only_of_root(above, &about, what)?;
    }
    Ok(())
}

/// Things that others than root may be able to change.
#[derive(Clone, Copy, PartialEq)]
enum Changeable {
    /// A file of the directory.
    File,
    /// The directory, which is for these files only.
    Directory,
    /// A directory above. Others may use it too, so the message does not advise changing its owner.
    Above,
}

fn only_of_root(path: &Path, about: &Metadata, what: Changeable) -> Result<(), PairError> {
    let (owner, mode) = (about.uid(), about.mode() & 0o7777);
    if owner == 0 && mode & 0o022 == 0 {
        return Ok(());
    }
    let shown = path.display();
    let remedy = match what {
        Changeable::Above => "move the files to a directory that only root can change".to_owned(),
        _ => format!("chown root {shown}; chmod go-w {shown}"),
    };
    let reason = format!(
        "expected owner root and write permission for nobody else, got owner {owner} and mode {mode:04o}; its programs run in the \
         kernel: {remedy}"
    );
    let place = if what == Changeable::File { "file" } else { "directory" };
    Err(PairError { place: place.into(), ..error(path, reason) })
}

/// Reads a regular file that belongs to root. Links are refused, wherever they lead.
fn read(path: &Path, most: u64, of_root: bool) -> Result<Vec<u8>, PairError> {
    let failed = |why: io::Error| match why.raw_os_error() {
        Some(nix::libc::ELOOP) => error(path, "expected a file, got a link"),
        _ => error(path, why.to_string()),
    };
    let links = if of_root { O_NOFOLLOW } else { 0 };
    // O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
    let file = OpenOptions::new().read(true).custom_flags(links | O_NONBLOCK).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(error(path, "expected a regular file"));
    }
    if of_root {
        only_of_root(path, &about, Changeable::File)?;
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(error(path, format!("expected at most {most} bytes, got {}", about.len())));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    /// Makes a directory that only root may change, up to `/`, unlike those below /tmp or in a home directory. Without root, prints a
    /// line and returns `None`.
    fn home(test: &str) -> Option<tempfile::TempDir> {
        let home = tempfile::tempdir_in("/var/lib").ok().filter(|home| trusted(home.path()).is_ok());
        if home.is_none() {
            println!("skipped: {test}: root, and a /var/lib that only root may write to");
        }
        home
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn reasons(directory: &Path) -> Vec<String> {
        let pairs = read_directory(directory);
        let errors = pairs.iter().flat_map(|pair| [pair.text.as_ref().err(), pair.bytes.as_ref().err()]);
        errors.flatten().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pair_is_two_files_of_one_name() {
        let Some(home) = home("a_pair_is_two_files_of_one_name") else { return };
        let files =
            [("b.yaml", "b"), ("b.bpf.o", "object"), ("b.yml", ""), ("b.o", ""), ("a.yaml", "a"), ("other.txt", "")];
        for (name, text) in files.into_iter().chain([(".h.yaml", ""), (".h.bpf.o", "")]) {
            fs::write(home.path().join(name), text).unwrap();
            mode(&home.path().join(name), 0o644);
        }
        let pairs = read_directory(home.path());
        assert_eq!(pairs.iter().map(|pair| &*pair.name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((pairs[1].text.as_deref(), pairs[1].bytes.as_deref()), (Ok(&b"b"[..]), Ok(&b"object"[..])));
        let missing = pairs[0].bytes.clone().unwrap_err();
        assert!(missing.file.ends_with("/a.bpf.o") && missing.reason.contains("No such file"), "{missing}");
        assert!(read_directory(&home.path().join("none")).is_empty());
    }

    #[test]
    fn files_that_are_no_pair_are_told_of() {
        let Some(home) = home("files_that_are_no_pair_are_told_of") else { return };
        for name in ["a.bpf.o", "m.yml", "m.bpf.o", "q.o"] {
            fs::write(home.path().join(name), "").unwrap();
            mode(&home.path().join(name), 0o644);
        }
        let pairs = read_directory(home.path());
        assert_eq!(pairs.iter().map(|pair| &*pair.name).collect::<Vec<_>>(), ["a", "m", "q"]);
        let refused = reasons(home.path());
        let expected = [
            ("a.yaml: file: ", "No such file"),
            ("m.yaml: file: expected a file of this name, got", "m.yml; rename it"),
            ("q.yaml: file: ", "No such file"),
            ("q.bpf.o: file: expected a file of this name, got", "q.o; rename it"),
        ];
        assert_eq!(refused.len(), expected.len(), "{refused:?}");
        let is_told = |(said, (file, reason)): (&String, (&str, &str))| said.contains(file) && said.contains(reason);
        assert!(refused.iter().zip(expected).all(is_told), "{refused:?}");
    }

    #[test]
    fn pairs_beyond_the_most_are_told_of_and_not_read() {
        let Some(home) = home("pairs_beyond_the_most_are_told_of_and_not_read") else { return };
        for i in 0..=MAX_PAIRS {
            fs::write(home.path().join(format!("{i:03}.yaml")), "").unwrap();
        }
        let pairs = read_directory(home.path());
        let last = pairs.last().unwrap();
        assert_eq!((pairs.len(), &*last.name), (MAX_PAIRS + 1, "256"));
        let most = |pair: &PairFiles| pair.text.as_ref().is_err_and(|error| error.reason.contains("at most 256 pairs"));
        assert!(most(last) && !most(&pairs[MAX_PAIRS - 1]), "{:?}", last.text);
        let names = ["001".into(), "002".into()];
        assert_eq!(read_pairs(home.path(), &names, MAX_PAIRS - 1).iter().map(most).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn what_others_may_change_is_refused_with_the_remedy() {
        let Some(home) = home("what_others_may_change_is_refused_with_the_remedy") else { return };
        let file = home.path().join("a.yaml");
        fs::write(&file, "a").unwrap();
        fs::write(home.path().join("a.bpf.o"), "a").unwrap();
        mode(&home.path().join("a.bpf.o"), 0o644);
        mode(&file, 0o664);
        let refused = reasons(home.path());
        assert!(refused.len() == 1 && refused[0].contains("got owner 0 and mode 0664"), "{refused:?}");
        assert!(refused[0].contains("chmod go-w"), "{refused:?}");
        mode(&file, 0o644);
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert!(reasons(home.path())[0].contains("got owner 65534 and mode 0644"));
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        assert_eq!(reasons(home.path()), Vec::<String>::new());
        mode(home.path(), 0o777);
        assert_eq!(reasons(home.path()).len(), 2, "both files of a directory that others may write to");
        mode(home.path(), 0o755);
    }

    #[test]
    fn links_pipes_and_large_files_are_refused() {
        let Some(home) = home("links_pipes_and_large_files_are_refused") else { return };
        symlink("/etc/passwd", home.path().join("a.yaml")).unwrap();
        nix::unistd::mkfifo(&home.path().join("a.bpf.o"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let large = fs::File::create(home.path().join("b.yaml")).unwrap();
        large.set_len(MAX_SIZE as u64 + 1).unwrap();
        mode(&home.path().join("b.yaml"), 0o644);
        let refused = reasons(home.path());
        assert!(refused[0].contains("a.yaml: file: expected a file, got a link"), "{refused:?}");
        assert!(refused[1].contains("expected a regular file"), "{refused:?}");
        assert!(refused[2].contains("expected at most 1048576 bytes, got 1048577"), "{refused:?}");
    }

    /// Directories below /tmp are writable by everybody.
    #[test]
    fn a_directory_below_one_of_all_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("a.yaml");
        fs::write(&file, "a").unwrap();
        let refused = &reasons(home.path())[0];
        assert!(refused.contains(": directory: expected owner root") && !refused.contains("chmod"), "{refused}");
        let (pair, trusted) = read_file(&file);
        assert!(pair.text.is_ok() && trusted.is_err());
    }
}
