//! The directory `conf.d` beside the configuration, for sections of packages and automation. The agent runs as root, and the modules
//! that these files enable cost every process, so only files of root are read.

use super::{bytes, ConfigError};
use nix::libc::{O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::Uid;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Returns the files `conf.d/*.conf` beside `config` in the order of their names, each with its path and its bytes or the reason why
/// it is not read; none if there is no such directory.
pub(super) fn parts(config: &Path) -> Vec<(String, std::result::Result<Vec<u8>, ConfigError>)> {
    let path = config.with_file_name("conf.d");
    let shown = path.display().to_string();
    let (dir, names) = match open(&path, O_DIRECTORY).and_then(|dir| Ok((names(&dir)?, dir))) {
        Ok((names, dir)) => (dir, names),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) && !path.exists() => {
            return Vec::new();
        }
        Err(error) => return vec![(shown.clone(), Err(ConfigError::unread(&shown, &error)))],
    };
    let read = |name: &OsString| {
        let shown = path.join(name).display().to_string();
        let read = open(&of(&dir).join(name), 0).and_then(bytes);
        (shown.clone(), read.map_err(|error| ConfigError::unread(&shown, &error)))
    };
    names.iter().map(read).collect()
}

/// Returns the path of an open directory by its descriptor: its own path may lead to another one by now.
fn of(dir: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

fn names(dir: &File) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(of(dir))?.map(|entry| Ok(entry?.file_name()));
    let mut names = entries.collect::<Result<Vec<OsString>>>()?;
    names.retain(|name| name.as_bytes().ends_with(b".conf") && !name.as_bytes().starts_with(b"."));
    names.sort();
    Ok(names)
}

/// Opens a file or directory (according to `flags`) that belongs to root. Links are not followed, and pipes not waited for.
fn open(path: &Path, flags: i32) -> Result<File> {
    let found = fs::symlink_metadata(path)?;
    is_trusted(&found, flags == O_DIRECTORY)?;
    let file = OpenOptions::new().read(true).custom_flags(flags | O_NOFOLLOW | O_NONBLOCK).open(path)?;
    is_trusted(&file.metadata()?, flags == O_DIRECTORY)?;
    Ok(file)
}

/// Checks that nobody but root, or the account that the agent runs as, can have written a file or directory.
fn is_trusted(found: &Metadata, directory: bool) -> Result<()> {
    let refuse = |reason: String| Err(Error::other(reason));
    if found.is_dir() != directory || !directory && !found.is_file() {
        let wanted = if directory { "directory" } else { "regular file" };
        return refuse(format!("not a {wanted}; links are not followed"));
    }
    if found.uid() != 0 && found.uid() != Uid::effective().as_raw() {
        return refuse(format!("it belongs to the account {} and has to belong to root: chown root", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return refuse("others than root can write to it: chmod go-w".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use nix::sys::stat::Mode;
    use nix::unistd::{chown, Uid};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::path::PathBuf;
    use tempfile::TempDir;

    struct Place(TempDir);

    impl Place {
        fn new() -> Place {
            let place = Place(tempfile::tempdir().unwrap());
            fs::create_dir(place.path("conf.d")).unwrap();
            place.write(
                "corebcc.conf",
                "[pmda]\nmodules = a\nprefix = x.\n[a]\nmodule = sysfork\ncluster = 2\ndebug = 1\n",
            );
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).unwrap();
            fs::set_permissions(self.path(name), Permissions::from_mode(0o644)).unwrap();
        }

        fn read(&self) -> Result<Config, String> {
            Config::read(&self.path("corebcc.conf")).map_err(|error| error.to_string())
        }

        #[track_caller]
        fn get(&self, section: &str, key: &str) -> String {
            self.read().unwrap().section(section).unwrap().get(key).unwrap().unwrap().text().to_owned()
        }
    }

    #[test]
    fn a_named_pipe_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("corebcc.conf");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let refusal = Config::read(&path).unwrap_err().to_string();
        assert!(refusal.contains("expected a file, got a named pipe"), "{refusal}");
    }

    #[test]
    fn files_of_conf_d_add_and_override_by_name() {
        let place = Place::new();
        place.write(
            "conf.d/20-b.conf",
            "[a]\ncluster = 20\n[b]\nmodule = runqlat\ncluster = %(offset)s4\n[DEFAULT]\noffset = 1\n",
        );
        place.write("conf.d/10-a.conf", "[pmda]\nmodules = a, b\n[a]\ncluster = 10\nx = 1\n");
        for ignored in ["conf.d/.hidden.conf", "conf.d/README", "conf.d/30.conf.bak"] {
            place.write(ignored, "no configuration\n");
        }
        assert_eq!(place.get("pmda", "modules"), "a, b");
        assert_eq!(place.get("pmda", "prefix"), "x.");
        assert_eq!([place.get("a", "cluster"), place.get("a", "x"), place.get("a", "debug")], ["20", "1", "1"]);
        assert_eq!(place.get("b", "cluster"), "14");
        let config = place.read().unwrap();
        let names = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        assert_eq!(config.files().map(names).collect::<Vec<_>>(), ["corebcc.conf", "10-a.conf", "20-b.conf"]);
    }

    #[test]
    fn errors_in_conf_d_name_their_file_and_line() {
        let place = Place::new();
        place.write("conf.d/1.conf", "[a]\n\ncluster = no\n[b]\ncluster = 2\n");
        let config = place.read().unwrap();
        let section = config.section("a").unwrap();
        let at = |line: usize| format!("{}:{line}: ", place.path("conf.d/1.conf").display());
        let error = section.get("cluster").unwrap().unwrap().error("a number").to_string();
        assert!(error.starts_with(&at(3)), "{error}");
        let error = config.section("b").unwrap().require("module", "x").unwrap_err().to_string();
        assert!(error.starts_with(&at(4)), "{error}");
        place.write("conf.d/1.conf", "[a]\nwords\n");
        place.write("conf.d/2.conf", "more words\n");
        let error = place.read().unwrap_err();
        assert!(error.starts_with(&at(2)) && error.contains("2.conf:1: "), "{error}");
    }

    #[test]
    fn only_regular_files_of_root_are_read() {
        let place = Place::new();
        let part = place.path("conf.d/1.conf");
        let refused = |wanted: &str| {
            let error = place.read().unwrap_err();
            assert!(error.contains("conf.d") && error.contains(wanted), "{wanted}: {error}");
        };
        symlink(place.path("corebcc.conf"), &part).unwrap();
        refused("1.conf: cannot read the configuration: not a regular file");
        fs::remove_file(&part).unwrap();
        nix::unistd::mkfifo(&part, Mode::S_IRWXU).unwrap();
        refused("not a regular file");
        fs::remove_file(&part).unwrap();
        fs::create_dir(&part).unwrap();
        refused("not a regular file");
        fs::remove_dir(&part).unwrap();
        place.write("conf.d/1.conf", "[a]\n");
        fs::set_permissions(&part, Permissions::from_mode(0o664)).unwrap();
        refused("others than root can write to it");
        place.write("conf.d/1.conf", &"#".repeat(5 << 20));
        refused("larger than");
        place.write("conf.d/1.conf", "[a]\n");
        if Uid::effective().is_root() {
            chown(&part, Some(Uid::from_raw(65534)), None).unwrap();
            refused("it belongs to the account 65534");
            chown(&part, Some(Uid::from_raw(0)), None).unwrap();
            chown(&place.path("conf.d"), Some(Uid::from_raw(65534)), None).unwrap();
            refused("conf.d: cannot read the configuration: it belongs to the account 65534");
            chown(&place.path("conf.d"), Some(Uid::from_raw(0)), None).unwrap();
        }
        fs::set_permissions(place.path("conf.d"), Permissions::from_mode(0o1777)).unwrap();
        refused("others than root can write to it");
        fs::set_permissions(place.path("conf.d"), Permissions::from_mode(0o755)).unwrap();
        place.read().unwrap();
        fs::rename(place.path("conf.d"), place.path("elsewhere")).unwrap();
        symlink(place.path("elsewhere"), place.path("conf.d")).unwrap();
        refused("not a directory");
    }
}
