//! `--check NAME.bt`: what a script's metrics would be, and whether bpftrace takes it.

use super::output::{cut, Line, MAX_TEXT};
use super::scripts::{bpftrace, text};
use super::source::{Source, MAX_SOURCE};
use super::tables::{declare, keys};
use crate::config::ScriptSettings;
use crate::loader::run_bpftrace;
use crate::user::word;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Bytes of output that are read before the probes are attached.
const MAX_OUTPUT: u64 = 16 << 20;

/// What is to be said of a script.
pub struct Checked {
    /// The names of its metrics below the prefix.
    pub metrics: Vec<&'static str>,
    /// Why the agent would not run it.
    pub refusal: Option<String>,
    /// The number of probes that were attached, or what bpftrace says; `None` if it was not run.
    pub probes: Option<io::Result<u64>>,
}

/// Checks a script, which need not be where the agent looks for it. It is run until its probes are attached if `run` is true and nobody
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
    let own = u64::from(source.adds_probe());
    let probes = (run && refusal.is_none()).then(|| {
        attached(&format!("{stem}.bt"), &source.program(&code), settings).map(|probes| probes.saturating_sub(own))
    });
    Ok(Checked { metrics, refusal, probes })
}

fn untrusted(file: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(file)?.take(MAX_SOURCE).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Runs a program until its probes are attached, and yields their number.
fn attached(file: &str, program: &str, settings: &ScriptSettings) -> io::Result<u64> {
    let mut child = run_bpftrace(&bpftrace(settings), program.as_bytes())?;
    let output = child.stdout.take().map(|output| BufReader::new(output.take(MAX_OUTPUT)));
    let lines = output.into_iter().flat_map(|output| output.split(b'\n')).map_while(Result::ok);
    let probes = lines.filter_map(|line| Line::parse(&line)).find_map(|line| match line {
        Line::Attached(probes) => Some(probes),
        _ => None,
    });
    // It may have ended by itself.
    let _ = child.kill();
    let mut said = Vec::new();
    if let Some(error) = child.stderr.take() {
        error.take(MAX_TEXT as u64).read_to_end(&mut said)?;
    }
    child.wait()?;
    let said = String::from_utf8_lossy(&said).replace("stdin:", &format!("{file}:"));
    probes.ok_or_else(|| io::Error::other(cut(said, MAX_TEXT).trim().to_owned()))
}
