//! Lists of probes in the configuration: in place, or in a file with one per line.

use super::OptionType;
use crate::config::{ConfigError, Value};
use std::fs;
use std::path::{Path, PathBuf};

/// Entries such as `sched:sched_switch` or `c:malloc`, in order, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeList {
    entries: Vec<String>,
}

impl ProbeList {
    /// Returns the entries.
    pub fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Returns the list, or an error for the option `key` if it is empty.
    pub fn required(&self, section: &crate::config::Section<'_>, key: &str) -> Result<&ProbeList, ConfigError> {
        if self.entries.is_empty() {
            return Err(section.reject(key, format!("expected {}, got none", ProbeList::EXPECTED)));
        }
        let kind = if key == "usdts" { "USDTs" } else { key };
        section.info(format!("Configured {kind}: ['{}']", self.entries.join("', '")));
        Ok(self)
    }

    /// Makes a list of trimmed entries; empty ones and duplicates are left out.
    pub fn new<'a>(entries: impl Iterator<Item = &'a str>) -> ProbeList {
        let mut list = ProbeList::default();
        for entry in entries.map(str::trim).filter(|entry| !entry.is_empty()) {
            if !list.entries.iter().any(|known| known == entry) {
                list.entries.push(entry.to_owned());
            }
        }
        list
    }

    /// Parses the lines of a file. A `#` begins a comment at the beginning of a line or after a blank.
    fn lines(text: &str) -> ProbeList {
        ProbeList::new(text.lines().map(|line| {
            let comment = line
                .match_indices('#')
                .find(|&(at, _)| line[..at].chars().next_back().is_none_or(char::is_whitespace))
                .map_or(line.len(), |(at, _)| at);
            &line[..comment]
        }))
    }
}

impl OptionType for ProbeList {
    const EXPECTED: &'static str = "entries with a colon, separated by commas, or a file with an entry per line";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        if value.text().contains(':') {
            return Ok(ProbeList::new(value.list().into_iter()));
        }
        let name = value.text().trim();
        let places = places(Path::new(name), Path::new(value.path()));
        let tried = || places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
        let found = places.iter().find(|place| place.exists());
        let found = found.ok_or_else(|| value.error(format!("{} (looked for {})", Self::EXPECTED, tried())))?;
        let text =
            fs::read(found).map_err(|error| value.reject(format!("{}: cannot be read: {error}", found.display())))?;
        Ok(ProbeList::lines(&String::from_utf8_lossy(&text)))
    }
    fn show(&self) -> String {
        self.entries.join(",")
    }
}

/// Returns the possible paths of a file of probes: beside the configuration, and in the directories of this agent and
/// of the Python agent, which searched its own.
fn places(name: &Path, configuration: &Path) -> Vec<PathBuf> {
    if name.is_absolute() {
        return vec![name.to_path_buf()];
    }
    let mut places = vec![configuration.with_file_name(name)];
    if let Some(own) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(own.join(name));
        places.push(own.with_file_name("bcc").join(name));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(path: &str, value: &str) -> Result<ProbeList, String> {
        let config = Config::parse(path, format!("[s]\nprobes = {value}\n").as_bytes()).unwrap();
        let value = config.section("s").unwrap().get("probes").unwrap().unwrap();
        ProbeList::read(&value).map_err(|error| error.to_string())
    }

    #[test]
    fn entries_in_place_are_trimmed_and_stand_once() {
        assert_eq!(read("x", "c:malloc, c:strlen,c:malloc,").unwrap().entries(), ["c:malloc", "c:strlen"]);
    }

    #[test]
    fn a_probe_file_has_an_entry_per_line_and_comments() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("list"), "# all\n  c:malloc \n\n/opt/a#b.so:f  # why\n\tc:free\n").unwrap();
        let wanted = ["c:malloc", "/opt/a#b.so:f", "c:free"];
        let absolute = dir.path().join("list").display().to_string();
        assert_eq!(read("x", &absolute).unwrap().entries(), wanted);
        let beside = dir.path().join("corebcc.conf").display().to_string();
        assert_eq!(read(&beside, "list").unwrap().entries(), wanted);
    }

    #[test]
    fn a_missing_probe_file_says_where_it_was_looked_for() {
        let error = read("/nonexistent/x.conf", "sched_fork").unwrap_err();
        assert!(error.starts_with("/nonexistent/x.conf:2: [s] probes: expected entries with a colon"), "{error}");
        assert!(error.contains("/nonexistent/sched_fork"), "{error}");
    }
}
