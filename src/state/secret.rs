//! The secret by which names of strangers are hashed, kept so that identifiers and pinned counts that depend on it outlive the agent.

use super::file::{read_state, replace_private_state};
use crate::kit::{self, Secret};
use std::io;
use std::path::Path;

/// Makes the secret of a file that of this process.
pub fn keep_secret(path: &Path) {
    kit::keep_secret(load_secret(path));
}

/// The secret of a file, which only its owner can read; a new one if there is none, or none that can be read.
fn load_secret(path: &Path) -> Secret {
    let lost = match read_state(path) {
        Ok(text) => match Secret::read(&text) {
            Some(secret) => return secret,
            None => Some("expected 32 hexadecimal digits".into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(error.to_string()),
    };
    const WHAT: &str = "identifiers of stacks and pinned counts of exectop";
    if let Some(why) = lost {
        log::warn!("{}: {why}; {WHAT} restart", path.display());
    }
    let secret = Secret::random();
    if let Err(error) = replace_private_state(path, secret.text().as_bytes()) {
        log::warn!("{}: {error}; {WHAT} will not outlive the agent", path.display());
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_outlives_the_agent_and_is_nobody_elses() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("149.secret");
        let first = load_secret(&path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(load_secret(&path) == first);
        fs::write(&path, "rubbish").unwrap();
        let second = load_secret(&path);
        assert!(second != first && load_secret(&path) == second);
        assert!(load_secret(&home.path().join("no/folder")) != second);
    }
}
