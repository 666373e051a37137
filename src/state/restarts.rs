//! How often the agent was started since the machine was, kept in a file below PCP's run directory, which a boot empties.

use super::file::{read_state, replace_state};
use super::Writer;
use std::path::{Path, PathBuf};

/// The starts so far.
#[derive(Clone, Debug)]
pub struct Restarts {
    file: PathBuf,
    /// But for the first.
    pub count: u64,
    /// Number of starts after an agent that did not end in order.
    pub crashes: u64,
}

/// The third word of the file: how the agent that wrote it is. The fourth is its process id.
const RUNNING: &str = "running";
const ENDED: &str = "ended";

impl Restarts {
    /// Counts this start; `None` (and a line in the log) where the file cannot be written.
    pub fn begin(file: &Path) -> Option<Restarts> {
        let text = read_state(file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let words: Vec<&str> = text.split_whitespace().collect();
        let (count, crashes) = match words[..] {
            [count, crashes, state, ..] => {
                let number = |word: &str| word.parse::<u64>().unwrap_or(0);
                (number(count).saturating_add(1), number(crashes).saturating_add(u64::from(state != ENDED)))
            }
            _ => (0, 0),
        };
        let restarts = Restarts { file: file.into(), count, crashes };
        let written = replace_state(file, restarts.line(RUNNING).as_bytes());
        written
            .map(|()| restarts)
            .inspect_err(|error| log::warn!("restarts are not counted: {}: {error}", file.display()))
            .ok()
    }

    /// To be called at an orderly end. An agent that pmcd took for dead, and that has a successor by now, leaves the file alone.
    pub fn end(&self, writer: &Writer) {
        if self.is_latest() {
            writer.write(&self.file, self.line(ENDED).into_bytes());
        }
    }

    /// Returns true if no agent was started after this one.
    pub fn is_latest(&self) -> bool {
        read_state(&self.file)
            .map_or(true, |text| [RUNNING, ENDED].iter().any(|state| text == self.line(state).as_bytes()))
    }

    fn line(&self, state: &str) -> String {
        format!("{} {} {state} {}\n", self.count, self.crashes, std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn starts_are_counted_and_those_after_no_orderly_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("starts");
        let begin = || {
            let restarts = Restarts::begin(&file).unwrap();
            (restarts.count, restarts.crashes)
        };
        assert_eq!(begin(), (0, 0));
        assert_eq!(begin(), (1, 1));
        Restarts::begin(&file).unwrap().end(&Writer::new(dir.path().into()));
        assert_eq!(begin(), (3, 2));
        fs::write(&file, "no such words").unwrap();
        assert_eq!(begin(), (1, 1));
        fs::write(&file, "").unwrap();
        assert_eq!(begin(), (0, 0));
        assert!(Restarts::begin(&dir.path().join("no/folder")).is_none());
    }

    #[test]
    fn an_agent_with_a_successor_leaves_its_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, writer) = (dir.path().join("starts"), Writer::new(dir.path().into()));
        let dropped = Restarts::begin(&file).unwrap();
        assert!(dropped.is_latest());
        let successor = Restarts::begin(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        dropped.end(&writer);
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert!(!dropped.is_latest() && successor.is_latest());
        successor.end(&writer);
        assert!(fs::read_to_string(&file).unwrap().starts_with("1 1 ended "));
        assert!(successor.is_latest());
    }

    #[test]
    fn a_file_of_an_earlier_version_counts_on() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("starts");
        fs::write(&file, "6 1 running\n").unwrap();
        let restarts = Restarts::begin(&file).unwrap();
        assert_eq!((restarts.count, restarts.crashes), (7, 2));
    }
}
