//! Variables of `pcp.conf(5)`: from the environment, else from the file, else the usual defaults.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Defaults of PCP's packages on Linux, for a host where neither environment nor file sets them.
const USUAL: [(&str, &str); 10] = [
    ("PCP_ETC_DIR", "/etc"),
    ("PCP_GROUP", "pcp"),
    ("PCP_LOG_DIR", "/var/log/pcp"),
    ("PCP_PMDAS_DIR", "/var/lib/pcp/pmdas"),
    ("PCP_RUN_DIR", "/run/pcp"),
    ("PCP_SYSCONFIG_DIR", "/etc/sysconfig"),
    ("PCP_SYSCONF_DIR", "/etc/pcp"),
    ("PCP_TMP_DIR", "/var/lib/pcp/tmp"),
    ("PCP_USER", "pcp"),
    ("PCP_VAR_DIR", "/var/lib/pcp"),
];

/// The `PCP_*` variables in force.
#[derive(Clone, Debug, Default)]
pub struct PcpConf {
    variables: HashMap<String, String>,
}

impl PcpConf {
    /// Reads the environment of this process, and the file named there or by the system. Never fails: a host without
    /// PCP has the defaults.
    pub fn load() -> PcpConf {
        let env =
            std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        PcpConf::from(env, |path| Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned()))
    }

    /// Returns the value of a variable, such as `PCP_LOG_DIR`; `None` if it is neither set nor has a default. An empty
    /// value in the environment counts, as in libpcp.
    pub fn get(&self, name: &str) -> Option<&str> {
        let usual = || USUAL.iter().find(|(usual, _)| *usual == name).map(|&(_, value)| value);
        self.variables.get(name).map(String::as_str).or_else(usual)
    }

    /// Returns the directory in a variable with `below` appended. A variable without a value counts as `/`.
    pub fn path(&self, name: &str, below: impl AsRef<Path>) -> PathBuf {
        Path::new(self.get(name).unwrap_or("/")).join(below)
    }

    fn from(env: impl Iterator<Item = (String, String)>, read: impl Fn(&Path) -> Option<String>) -> PcpConf {
        let env = env.filter(|(key, _)| key.starts_with("PCP_")).collect::<HashMap<_, _>>();
        let file = match (env.get("PCP_CONF"), env.get("PCP_DIR")) {
            (Some(file), _) => PathBuf::from(file),
            (None, Some(dir)) => Path::new(dir).join("etc/pcp.conf"),
            (None, None) => PathBuf::from("/etc/pcp.conf"),
        };
        let mut variables = HashMap::new();
        for line in read(&file).unwrap_or_default().lines() {
            if let Some((key, value)) = line.split_once('=').filter(|(key, _)| key.starts_with("PCP_")) {
                variables.insert(key.to_owned(), value.trim_end_matches('\r').to_owned());
            }
        }
        variables.extend(env);
        PcpConf { variables }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(env: &[(&str, &str)], at: &str, text: &str) -> PcpConf {
        let env = env.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
        PcpConf::from(env, |path| (path == Path::new(at)).then(|| text.to_owned()))
    }

    #[test]
    fn the_environment_wins_over_the_file_and_it_over_defaults() {
        let text = "# PCP_RUN_DIR=/no\nPCP_LOG_DIR=/file/log\nPCP_USER=two words\n PCP_GROUP=no\nHOME=/no\nPCP_JUNK\n";
        let conf = load(&[("PCP_LOG_DIR", "/env/log"), ("HOME", "/root")], "/etc/pcp.conf", text);
        assert_eq!(conf.path("PCP_LOG_DIR", "pmcd"), Path::new("/env/log/pmcd"));
        assert_eq!(conf.get("PCP_USER"), Some("two words"));
        assert_eq!(conf.get("PCP_RUN_DIR"), Some("/run/pcp"));
        assert_eq!(conf.get("PCP_GROUP"), Some("pcp"), "an indented line is no assignment");
        assert_eq!(conf.get("HOME"), None);
        assert_eq!(conf.get("PCP_NONE"), None);
    }

    #[test]
    fn the_file_is_the_one_that_the_environment_names() {
        let text = "PCP_USER=me";
        let user = |env: &[(&str, &str)], at: &str| load(env, at, text).get("PCP_USER").map(str::to_owned);
        assert_eq!(user(&[("PCP_DIR", "/d"), ("PCP_CONF", "/c")], "/c").as_deref(), Some("me"));
        assert_eq!(user(&[("PCP_DIR", "/d")], "/d/etc/pcp.conf").as_deref(), Some("me"));
        assert_eq!(user(&[("PCP_DIR", "/d")], "/etc/pcp.conf").as_deref(), Some("pcp"));
    }
}
