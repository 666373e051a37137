//! The section `[scripts]`, without which no bpftrace script runs.

use super::{Config, ConfigError, Section, SettingDef, SCRIPT_OPTIONS};
use std::path::PathBuf;
use std::time::Duration;

/// The name of the section.
pub const SCRIPTS: &str = "scripts";

/// The options of `[scripts]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSettings {
    /// The bpftrace program.
    pub bpftrace: PathBuf,
    /// Largest data size of a bpftrace process, in bytes.
    pub memory: u64,
    /// Time after which a script ends if nobody fetches its values; `None` for never.
    pub expiry: Option<Duration>,
}

impl Default for ScriptSettings {
    fn default() -> ScriptSettings {
        ScriptSettings { bpftrace: "/usr/bin/bpftrace".into(), memory: 512 << 20, expiry: None }
    }
}

impl ScriptSettings {
    /// Reads the section; `None` if there is none. An option in error has its default, and the error is returned.
    pub fn read(config: &Config) -> (Option<ScriptSettings>, Vec<ConfigError>) {
        let Some(section) = config.section(SCRIPTS) else { return (None, Vec::new()) };
        let mut settings = ScriptSettings::default();
        let mut errors: Vec<ConfigError> = SettingDef::unknown(SCRIPT_OPTIONS, section, section.keys()).collect();
        match bpftrace(section) {
            Ok(Some(program)) => settings.bpftrace = program,
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
        let mut number = |key, range| {
            let number = section.get(key).and_then(|value| value.map(|value| value.int_in(range)).transpose());
            number.unwrap_or_else(|error| {
                errors.push(error);
                None
            })
        };
        let (memory, expiry) = (number("memory", 64..=65536_u64), number("expiry", 10..=86400));
        settings.memory = memory.map_or(settings.memory, |megabytes| megabytes << 20);
        settings.expiry = expiry.map(Duration::from_secs);
        (Some(settings), errors)
    }
}

fn bpftrace(section: Section<'_>) -> Result<Option<PathBuf>, ConfigError> {
    let Some(value) = section.get("bpftrace")? else { return Ok(None) };
    let path = PathBuf::from(value.text());
    match path.is_absolute() {
        true => Ok(Some(path)),
        false => Err(value.error("the absolute path of bpftrace")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<ScriptSettings>, Vec<String>) {
        let config = Config::parse("f.conf", text.as_bytes()).unwrap();
        let (settings, errors) = ScriptSettings::read(&config);
        (settings, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn scripts_run_where_there_is_a_section() {
        assert_eq!(read("[pmda]\n"), (None, vec![]));
        assert_eq!(read("[scripts]\n"), (Some(ScriptSettings::default()), vec![]));
        let expiry = Some(Duration::from_secs(60));
        let settings = ScriptSettings { bpftrace: "/opt/bpftrace".into(), memory: 100 << 20, expiry };
        let text = "[scripts]\nbpftrace = /opt/bpftrace\nmemory = 100\nexpiry = 60\n";
        assert_eq!(read(text), (Some(settings), vec![]));
    }

    #[test]
    fn what_cannot_be_used_is_told_and_has_its_default() {
        let (settings, errors) = read("[scripts]\nbpftrace = bpftrace\nmemory = 1\nmemroy = 2\nexpiry = 9\n");
        assert_eq!(settings, Some(ScriptSettings::default()));
        assert!(errors[0].contains("f.conf:4") && errors[0].contains("did you mean `memory`"), "{errors:?}");
        assert!(errors[1].contains("f.conf:2") && errors[1].contains("absolute path"), "{errors:?}");
        assert!(errors[2].contains("f.conf:3") && errors[2].contains("from 64 to 65536"), "{errors:?}");
        assert!(errors[3].contains("f.conf:5") && errors[3].contains("from 10 to 86400"), "{errors:?}");
    }
}
