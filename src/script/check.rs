//! `--check NAME.bt`: the metrics that a script would have, and bpftrace's verdict on it.

use super::runner::SETTLES;
use super::scripts::{bpftrace, text};
use super::source::{Source, MAX_SOURCE};
use super::state::{ScriptState, Status};
use super::tables::{declare, keys};
use crate::config::ScriptSettings;
use crate::loader::run_bpftrace;
use crate::user::word;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

/// Largest output, in bytes, that is read before the probes are attached.
const MAX_OUTPUT: u64 = 16 << 20;

/// The result of checking a script.
pub struct Checked {
    /// The names of its metrics below the prefix.
    pub metrics: Vec<&'static str>,
    /// Reason why the agent would not run it.
    pub refusal: Option<String>,
    /// The number of attached probes, or bpftrace's error; `None` if the script was not run.
    pub probes: Option<io::Result<u64>>,
    /// Reason why it would count nothing though it runs.
    pub failure: Option<String>,
}

/// Checks a script, which may be outside the agent's directory. It is run until its probes are attached if `run` is true and nobody
/// but root may change it.
pub fn check(file: &Path, settings: &ScriptSettings, run: bool) -> io::Result<Checked> {
    let (code, refusal) = match text(file) {
        Ok(code) => (code, None),
        Err(error) => (untrusted(file)?, Some(error.to_string())),
    };
    let source = Source::parse(&code);
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = word(source.name.as_deref().unwrap_or(&stem));
    let clusters: Vec<Option<u16>> = keys(&name, &source).iter().map(|_| Some(0)).collect();
    let tables = declare(&name, &source, &clusters);
    let metrics = tables.iter().flat_map(|table| table.spec.metrics).map(|metric| metric.name).collect();
    let mut state = ScriptState::new(code, source);
    let runs = run && refusal.is_none();
    let probes = runs.then(|| attached(&format!("{stem}.bt"), &mut state, settings).map(|()| state.probes()));
    Ok(Checked { metrics, refusal, probes, failure: state.failure() })
}

fn untrusted(file: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(file)?.take(MAX_SOURCE).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Runs a script until its probes are attached, and adds bpftrace's output to its state.
fn attached(file: &str, state: &mut ScriptState, settings: &ScriptSettings) -> io::Result<()> {
    let program = state.program();
    let mut child = run_bpftrace(&bpftrace(settings), program.as_bytes())?;
    state.start(child.id());
    let (send, said) = mpsc::channel();
    let mut readers = Vec::new();
    if let Some(output) = child.stdout.take() {
        let send = send.clone();
        readers.push(thread::spawn(move || {
            for line in BufReader::new(output.take(MAX_OUTPUT)).split(b'\n').map_while(Result::ok) {
                drop(send.send((true, line)));
            }
        }));
    }
    if let Some(errors) = child.stderr.take() {
        readers.push(thread::spawn(move || {
            for line in BufReader::new(errors.take(MAX_OUTPUT)).split(b'\n').map_while(Result::ok) {
                drop(send.send((false, line)));
            }
        }));
    }
    while state.status == Status::Starting {
        let said = match state.attaches() {
            true => said.recv_timeout(SETTLES),
            false => said.recv().map_err(Into::into),
        };
        match said {
            Ok((true, line)) => state.line(&line),
            Ok((false, line)) => state.complain(&[&line[..], b"\n"].concat(), file),
            Err(RecvTimeoutError::Timeout) => state.settle(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let is_over = state.status == Status::Starting;
    // It may have ended by itself.
    let _ = child.kill();
    let status = child.wait()?;
    for reader in readers {
        drop(reader.join());
    }
    // What the other output has to say may come after what settled it.
    for (_, line) in said.try_iter().filter(|(is_output, _)| !is_output) {
        state.complain(&[&line[..], b"\n"].concat(), file);
    }
    match is_over && !(status.success() && state.attaches()) {
        true => Err(io::Error::other(state.messages.trim().to_owned())),
        false => Ok(()),
    }
}
