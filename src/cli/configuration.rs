//! The configuration that a command uses: the named file, the system's file, or the one that is compiled in.

use super::CommonOptions;
use crate::config::{Config, ConfigError};
use crate::pcpconf::PcpConf;
use nix::unistd::geteuid;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The installed configuration file, used if the machine has none.
const BUILT_IN: &str = include_str!("../../corebcc.conf");

/// Reads the configuration. The second result is its name in sentences.
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
    let config = read_config(path);
    let parts: Vec<&str> = config.iter().flat_map(|config| config.files().skip(1)).collect();
    if !parts.is_empty() {
        log::info!("the configuration goes on in {}", parts.join(", "));
    }
    // Of conf.d such files are not read at all.
    if let Some(danger) = config.as_ref().ok().and_then(|config| danger(Path::new(config.path()))) {
        log::warn!("{danger}");
    }
    (config, path.display().to_string())
}

/// Reads a configuration file. Sections without a module or a cluster get those of the built-in configuration.
pub fn read_config(path: &Path) -> Result<Config, ConfigError> {
    Ok(Config::read(path)?.with_usual(&built_in()?))
}

/// Warns about the owner or the mode of a file that decides what runs as root; `None` without root, or if both are safe.
fn danger(file: &Path) -> Option<String> {
    let about = fs::metadata(file).ok().filter(|_| geteuid().is_root())?;
    let (owner, mode, shown) = (about.uid(), about.mode() & 0o7777, file.display());
    (owner != 0 || mode & 0o022 != 0).then(|| {
        format!(
            "{shown}: owner {owner} and mode {mode:04o}: others than root can change what runs with the agent's privileges; let only \
             root write it"
        )
    })
}

/// The configuration that is compiled in, which is used if there is no file.
pub fn built_in() -> Result<Config, ConfigError> {
    Config::parse("the built-in configuration", BUILT_IN.as_bytes())
}

/// Returns the directory of programs of this site, beside the named configuration, or else beside that of the system.
pub fn programs(common: &CommonOptions, conf: &PcpConf) -> PathBuf {
    let config = common.config.clone().unwrap_or_else(|| conf.path("PCP_SYSCONF_DIR", "corebcc/corebcc.conf"));
    config.with_file_name("programs.d")
}

/// Returns the directory of bpftrace scripts of this site, beside that of programs.
pub fn scripts(common: &CommonOptions, conf: &PcpConf) -> PathBuf {
    programs(common, conf).with_file_name("scripts.d")
}

/// Returns the file that is read if none is named; as an error if it does not exist.
pub fn usual_config(conf: &PcpConf) -> Result<PathBuf, PathBuf> {
    let exe = std::env::current_exe().unwrap_or_default();
    let path = default_config(conf, &exe);
    if is_there(&path) {
        Ok(path)
    } else {
        Err(path)
    }
}

/// Returns the configuration to read if none is named: that of the system, or else the one beside the program `exe`.
pub(super) fn default_config(conf: &PcpConf, exe: &Path) -> PathBuf {
    let system = conf.path("PCP_SYSCONF_DIR", "corebcc/corebcc.conf");
    if is_there(&system) {
        system
    } else {
        exe.with_file_name("corebcc.conf")
    }
}

/// True unless nothing has this path. A file that cannot be accessed and a dangling link are there: reading them fails with the
/// reason.
fn is_there(path: &Path) -> bool {
    !path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ModuleSettings, Settings};

    fn modules(text: &str) -> Result<Vec<(String, String, u16)>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.conf");
        fs::write(&path, text).unwrap();
        let config = read_config(&path).map_err(|error| error.to_string())?;
        let settings = Settings::read(&config).map_err(|error| error.to_string())?;
        let of = |module: ModuleSettings| (module.section, module.module, module.cluster);
        Ok(settings.modules.into_iter().map(of).collect())
    }

    #[test]
    fn module_and_cluster_default_to_those_of_the_name() {
        let is = |text: &str, section: &str, module: &str, cluster: u16| {
            assert_eq!(modules(text), Ok(vec![(section.into(), module.into(), cluster)]), "{text}");
        };
        is("[pmda]\nmodules = biolatency\n", "biolatency", "biolatency", 0);
        is("[pmda]\nmodules = biotop\n[biotop]\n", "biotop", "biotop", 10);
        is("[pmda]\nmodules = biotop\n[biotop]\ncluster = 200\n", "biotop", "biotop", 200);
        is("[pmda]\nmodules = biotop\n[x]\nmodule = biotop\ncluster = 200\n", "x", "biotop", 200);
        is("[pmda]\nmodules = ext4dist\n", "ext4dist", "fs.ext4dist", 5);
        is("[pmda]\nmodules =\n[biotop]\nenabled = yes\n", "biotop", "biotop", 10);
        let refused = |text: &str| modules(text).unwrap_err();
        assert!(refused("[pmda]\nmodules = bio\n").contains("no section or module `bio`"));
        is("[pmda]\nmodules = biotop\n[biotop]\nmodule = runqlat\n", "biotop", "runqlat", 4);
        is("[pmda]\nmodules = x\n[x]\nmodule = biotop\n", "x", "biotop", 10);
    }

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
