//! The configuration that a command works with: the file that was named, that of the system, or the one that is compiled in.

use super::CommonOptions;
use crate::config::{Config, ConfigError};
use crate::pcpconf::PcpConf;
use nix::unistd::geteuid;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What runs where no configuration file is: the one that is installed.
const BUILT_IN: &str = include_str!("../../corebcc.conf");

/// The configuration, and the file, as sentences name it.
pub fn configuration(common: &CommonOptions, conf: &PcpConf) -> (Result<Config, ConfigError>, String) {
    if let Some(path) = &common.config {
        return read(path);
    }
    match usual_config(conf) {
        Ok(path) => read(&path),
        Err(path) => {
            log::info!("{}: not there, running the default modules", path.display());
            let shown = format!("{} (not there: this is the built-in one, which Install puts there)", path.display());
            (Config::parse(&shown, BUILT_IN.as_bytes()), shown)
        }
    }
}

fn read(path: &Path) -> (Result<Config, ConfigError>, String) {
    let config = Config::read(path);
    let parts: Vec<&str> = config.iter().flat_map(|config| config.files().skip(1)).collect();
    if !parts.is_empty() {
        log::info!("the configuration goes on in {}", parts.join(", "));
    }
    for file in config.iter().flat_map(Config::files) {
        if let Some(danger) = danger(Path::new(file)) {
            log::warn!("{danger}");
        }
    }
    (config, path.display().to_string())
}

/// What is wrong with the owner or the mode of a file that says what root runs.
fn danger(file: &Path) -> Option<String> {
    let about = fs::metadata(file).ok().filter(|_| geteuid().is_root())?;
    let (owner, mode, shown) = (about.uid(), about.mode() & 0o7777, file.display());
    (owner != 0 || mode & 0o022 != 0).then(|| {
        format!(
            "{shown}: owner {owner} and mode {mode:04o}: others than root can change what runs with the agent's privileges; chown root \
             {shown}; chmod go-w {shown}"
        )
    })
}

/// The configuration that is compiled in, which runs where there is no file.
pub fn built_in() -> Result<Config, ConfigError> {
    Config::parse("the built-in configuration", BUILT_IN.as_bytes())
}

/// The directory of programs of this site: beside the configuration that was named, else beside that of the system.
pub fn programs(common: &CommonOptions, conf: &PcpConf) -> PathBuf {
    let config = common.config.clone().unwrap_or_else(|| conf.path("PCP_SYSCONF_DIR", "corebcc/corebcc.conf"));
    config.with_file_name("programs.d")
}

/// The directory of bpftrace scripts of this site: beside that of programs.
pub fn scripts(common: &CommonOptions, conf: &PcpConf) -> PathBuf {
    programs(common, conf).with_file_name("scripts.d")
}

/// The file that is read where none is named; an error where it is not there.
pub fn usual_config(conf: &PcpConf) -> Result<PathBuf, PathBuf> {
    let exe = std::env::current_exe().unwrap_or_default();
    let path = default_config(conf, &exe);
    if is_there(&path) {
        Ok(path)
    } else {
        Err(path)
    }
}

/// The configuration to read when none was named: that of the system, else the one beside the program `exe`.
pub(super) fn default_config(conf: &PcpConf, exe: &Path) -> PathBuf {
    let system = conf.path("PCP_SYSCONF_DIR", "corebcc/corebcc.conf");
    if is_there(&system) {
        system
    } else {
        exe.with_file_name("corebcc.conf")
    }
}

/// Whether there is something to read, or to fail at reading: a file that cannot be looked at, or a link to nowhere, is not taken for
/// none.
fn is_there(path: &Path) -> bool {
    !path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_may_change_is_told_of() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(danger(file.path()), None);
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).unwrap();
        let said = danger(file.path());
        assert_eq!(said.as_ref().is_some_and(|said| said.contains("mode 0666")), geteuid().is_root(), "{said:?}");
        assert_eq!(danger(Path::new("/nowhere")), None);
    }
}
