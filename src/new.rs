//! `pmdacorebcc new NAME`: writes the sources of a new pair into the working directory.

use crate::cli::{print, PrintError};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;
use thiserror::Error;

const PROGRAM: &str = include_str!("new/pair.bpf.c");
const METRICS: &str = include_str!("new/pair.yaml");
/// A Makefile that compiles every pair of its directory.
const MAKEFILE: &str = include_str!("../examples/Makefile");

/// Largest name in bytes.
const MAX_NAME: usize = 64;

/// Reason why no sources were written.
#[derive(Debug, Error)]
pub enum NewError {
    /// The name would differ from that in metrics.
    #[error("new expects a NAME of letters, digits and `_`, a letter first, at most {MAX_NAME}, got `{0}`")]
    Name(String),
    /// The name is `status`: the agent has `bcc.user.status`.
    #[error("new expects a NAME other than `status`, which is where the states of pairs are")]
    Taken,
    /// A file exists already; it is not changed.
    #[error("{0} is there already; take another NAME, or remove it")]
    Exists(String),
    /// A file cannot be written, with the kernel's reason.
    #[error("{0}: {1}")]
    Write(String, std::io::Error),
    /// Standard output cannot be written; the files are written.
    #[error(transparent)]
    Print(#[from] PrintError),
}

/// Writes the sources of a pair, and prints what to do with them. No file is overwritten; an existing Makefile compiles this pair
/// too, or is the user's own.
pub fn run(name: &str) -> Result<(), NewError> {
    let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= MAX_NAME;
    if !is_word {
        return Err(NewError::Name(name.into()));
    }
    if name == "status" {
        return Err(NewError::Taken);
    }
    let sources = [(format!("{name}.bpf.c"), PROGRAM), (format!("{name}.yaml"), METRICS)];
    // Both or none.
    if let Some((file, _)) = sources.iter().find(|(file, _)| Path::new(file).symlink_metadata().is_ok()) {
        return Err(NewError::Exists(file.clone()));
    }
    for (file, text) in &sources {
        write(file, &text.replace("@NAME@", name))?;
    }
    let makefile = match write("Makefile", MAKEFILE) {
        Ok(()) => "Makefile",
        Err(NewError::Exists(_)) => "Makefile (as it was)",
        Err(error) => return Err(error),
    };
    print(&format!(
        "{name}.bpf.c, {name}.yaml, {makefile}\n\n\
         make                                   # {name}.bpf.o; it takes clang and libbpf-dev\n\
         sudo pmdacorebcc --check {name}.yaml\n\
         sudo install -m 644 {name}.yaml {name}.bpf.o /etc/pcp/corebcc/programs.d\n"
    ))?;
    Ok(())
}

fn write(file: &str, text: &str) -> Result<(), NewError> {
    let opened = OpenOptions::new().write(true).create_new(true).open(file);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => NewError::Exists(file.into()),
        _ => NewError::Write(file.into(), error),
    })
}
