//! How often the agent was started since the machine was, kept in a file below PCP's run directory, which a boot empties.

use std::fs;
use std::path::{Path, PathBuf};

/// The starts so far.
#[derive(Clone, Debug)]
pub struct Restarts {
    file: PathBuf,
    /// But for the first.
    pub count: u64,
    /// Of these, those after an agent that did not say when it ended.
    pub crashes: u64,
}

/// The last word of the file: how the agent that wrote it is.
const RUNNING: &str = "running";
const ENDED: &str = "ended";

impl Restarts {
    /// Counts this start; `None` (and a line in the log) where the file cannot be written.
    pub fn begin(file: &Path) -> Option<Restarts> {
        let text = fs::read_to_string(file).unwrap_or_default();
        let words: Vec<&str> = text.split_whitespace().collect();
        let (count, crashes) = match words[..] {
            [count, crashes, state] => {
                let number = |word: &str| word.parse::<u64>().unwrap_or(0);
                (number(count).saturating_add(1), number(crashes).saturating_add(u64::from(state != ENDED)))
            }
            _ => (0, 0),
        };
        let restarts = Restarts { file: file.into(), count, crashes };
        restarts.write(RUNNING).then_some(restarts)
    }

    /// To be called at an orderly end.
    pub fn end(&self) {
        self.write(ENDED);
    }

    fn write(&self, state: &str) -> bool {
        let written = fs::write(&self.file, format!("{} {} {state}\n", self.count, self.crashes));
        written.inspect_err(|error| log::warn!("restarts are not counted: {}: {error}", self.file.display())).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Restarts::begin(&file).unwrap().end();
        assert_eq!(begin(), (3, 2));
        fs::write(&file, "no such words").unwrap();
        assert_eq!(begin(), (1, 1));
        fs::write(&file, "").unwrap();
        assert_eq!(begin(), (0, 0));
        assert!(Restarts::begin(&dir.path().join("no/folder")).is_none());
    }
}
