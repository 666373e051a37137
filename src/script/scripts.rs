//! The scripts of a directory as modules: their names, the clusters of their tables, and what runs them.

use super::module::ScriptModule;
use super::runner::{self, Runnable};
use super::source::{Source, MAX_SOURCE};
use super::state::{ScriptState, SharedState};
use super::tables::{declare, keys, ScriptTable};
use crate::catalog::EnabledModule;
use crate::config::{ModuleSettings, ScriptSettings};
use crate::kit::{Spec, TableSpec};
use crate::loader::{Bpftrace, ScriptHelper};
use crate::state::Clusters;
use crate::user::{leak, read_trusted, word, PairError, CLUSTERS};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;

/// Scripts that are run.
const MAX_SCRIPTS: usize = 64;

/// The scripts of a directory.
pub struct Scripts {
    directory: PathBuf,
    settings: ScriptSettings,
    /// What is served.
    pub modules: Vec<(EnabledModule, ScriptModule)>,
    runnable: Vec<Runnable>,
    helper: Option<ScriptHelper>,
}

impl Scripts {
    /// Reads the scripts of a directory; none if it is not there. Clusters are kept in a file if one is given, which is that of pairs.
    pub fn find(
        settings: ScriptSettings,
        directory: &Path,
        prefix: &str,
        state: Option<&Path>,
        others: &[EnabledModule],
    ) -> Scripts {
        let files = files(directory);
        let mut scripts =
            Scripts { directory: directory.into(), settings, modules: vec![], runnable: vec![], helper: None };
        if files.is_empty() {
            return scripts;
        }
        let told =
            |path: &Path, error: io::Error| log::warn!("{}: {error}; clusters are handed out anew", path.display());
        let loaded = state.and_then(|path| Clusters::load(path, CLUSTERS).map_err(|error| told(path, error)).ok());
        let mut clusters = loaded.unwrap_or_else(|| Clusters::none(CLUSTERS));
        (scripts.modules, scripts.runnable) = modules(&files, prefix, &mut clusters, others);
        if let Some(path) = state {
            if let Err(error) = clusters.save(path) {
                log::warn!("{}: {error}; the next start hands out clusters anew", path.display());
            }
        }
        scripts
    }

    /// Starts the process that runs bpftrace, which calls `confine` first. To be called while there is one thread.
    pub fn start_helper(&mut self, confine: impl FnOnce() -> io::Result<()>) {
        if self.runnable.is_empty() {
            return;
        }
        let directory = self.directory.clone();
        let started = ScriptHelper::start(bpftrace(&self.settings), move |name| program(&directory, name), confine);
        self.helper = started.map_err(|error| self.refuse(&format!("no helper to run bpftrace: {error}"))).ok();
    }

    /// Runs the scripts in a thread, which calls `confine` first.
    pub fn run(mut self, confine: impl FnOnce() + Send + 'static) {
        let Some(helper) = self.helper.take() else { return };
        let runnable = std::mem::take(&mut self.runnable);
        let states: Vec<SharedState> = runnable.iter().map(|script| script.state.clone()).collect();
        let life = move || {
            confine();
            runner::run(&helper, runnable);
        };
        if let Err(error) = thread::Builder::new().name("scripts".into()).stack_size(512 << 10).spawn(life) {
            states.iter().for_each(|state| state.get().refuse(format!("cannot start a thread: {error}")));
        }
    }

    fn refuse(&self, why: &str) {
        log::warn!("scripts: {why}");
        self.runnable.iter().for_each(|script| script.state.get().refuse(why.into()));
    }
}

/// How bpftrace is run.
pub fn bpftrace(settings: &ScriptSettings) -> Bpftrace {
    Bpftrace { program: settings.bpftrace.clone(), memory: settings.memory }
}

/// What bpftrace is to run for a file, which nobody but root may be able to change.
fn program(directory: &Path, name: &str) -> io::Result<Vec<u8>> {
    let text = text(&directory.join(format!("{name}.bt"))).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Source::parse(&text).program(&text).into_bytes())
}

/// A script that nobody but root may be able to change.
pub fn text(file: &Path) -> Result<String, PairError> {
    read_trusted(file, MAX_SOURCE).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The scripts of a directory, in the order of their names; none if it is not there.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            log::error!("{}: {error}; no script of it is run", directory.display());
            return Vec::new();
        }
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "bt"));
    files.sort();
    if files.len() > MAX_SCRIPTS {
        log::error!("{}: expected at most {MAX_SCRIPTS} scripts, got {}", directory.display(), files.len());
        files.truncate(MAX_SCRIPTS);
    }
    files
}

/// The modules of files, and what is to run.
fn modules(
    files: &[PathBuf],
    prefix: &str,
    clusters: &mut Clusters,
    others: &[EnabledModule],
) -> (Vec<(EnabledModule, ScriptModule)>, Vec<Runnable>) {
    let (mut taken, mut found) = (BTreeSet::new(), Vec::new());
    for file in files {
        let script = Found::read(file);
        match taken.insert(script.name.clone()) {
            true => found.push(script),
            false => {
                log::error!("{}: expected a name that is free, got `{}`; it is not run", file.display(), script.name)
            }
        }
    }
    let all: Vec<String> = found.iter().flat_map(|script| keys(&script.name, &script.source)).collect();
    let assigned = assign(clusters, &all, others);
    let mut assigned = assigned.as_slice();
    let (mut modules, mut runnable) = (Vec::new(), Vec::new());
    for script in found {
        let (own, rest) = assigned.split_at(keys(&script.name, &script.source).len().min(assigned.len()));
        assigned = rest;
        let tables = declare(&script.name, &script.source, own);
        // Without a cluster there is not even a status.
        let Some(enabled) = enabled(&script.name, prefix, &tables) else {
            log::error!("script.{}: expected fewer metrics: all clusters are taken; it is not run", script.name);
            continue;
        };
        let mut state = ScriptState::new(script.code, script.source);
        if let Some(refusal) = script.refusal {
            log::error!("script.{}: {refusal}", script.name);
            state.refuse(refusal);
        }
        let state = SharedState::new(state);
        if state.get().error.is_empty() {
            runnable.push(Runnable { file: script.file, name: script.name, state: state.clone() });
        }
        modules.push((enabled, ScriptModule { state, tables }));
    }
    (modules, runnable)
}

/// A script that was found.
struct Found {
    /// The name of the file without `.bt`.
    file: String,
    /// The name in metrics.
    name: String,
    code: String,
    source: Source,
    /// Why it is not to run.
    refusal: Option<String>,
}

impl Found {
    fn read(path: &Path) -> Found {
        let file = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (code, mut refusal) = match text(path) {
            Ok(code) => (code, None),
            Err(error) => (String::new(), Some(error.to_string())),
        };
        let source = Source::parse(&code);
        let named = source.name.clone().unwrap_or_else(|| word(&file));
        let name = word(&named);
        if source.name.is_some() && name != named {
            refusal = Some(format!(
                "{}: `// name:`: expected letters, digits and `_`, a letter first, got `{named}`",
                path.display()
            ));
        }
        Found { file, name, code, source, refusal }
    }
}

/// The clusters of these names. Those of pairs are in the same file.
fn assign(clusters: &mut Clusters, names: &[String], others: &[EnabledModule]) -> Vec<Option<u16>> {
    let numbers = |of_pairs: bool| -> Vec<u16> {
        let modules = others.iter().filter(|module| module.settings.section.starts_with("user.") == of_pairs);
        modules.flat_map(EnabledModule::tables).map(|table| table.id.cluster() as u16).collect()
    };
    let of_pairs = clusters.names_of(&numbers(true));
    let before = of_pairs.len();
    let all: Vec<String> = of_pairs.into_iter().chain(names.iter().cloned()).collect();
    clusters.assign(&all, &numbers(false)).split_off(before)
}

/// A script as the agent knows a module.
fn enabled(script: &str, prefix: &str, tables: &[ScriptTable]) -> Option<EnabledModule> {
    let name = leak(format!("script.{script}"));
    let tables: Vec<&'static TableSpec> = tables.iter().map(|table| table.spec).collect();
    let first = tables.first()?.cluster;
    let spec = Spec { name, summary: "a bpftrace script of this site", tables: Vec::leak(tables), ..Spec::NEW };
    Some(EnabledModule {
        settings: ModuleSettings {
            section: name.into(),
            module: name.into(),
            cluster: first as u16,
            prefix: prefix.into(),
            indom_cache: true,
            debug: false,
            pin: None,
        },
        spec: Box::leak(Box::new(spec)),
        rows: 0,
        bpf_names: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters_of(modules: &[(EnabledModule, ScriptModule)]) -> Vec<u32> {
        modules.iter().flat_map(|(module, _)| module.tables()).map(|table| table.id.cluster()).collect()
    }

    /// Directories below /tmp are anybody's, so that a script in them is named and refused.
    #[test]
    fn a_script_that_others_may_change_has_a_status_only() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("a.bt"), "BEGIN { @a = 1; }").unwrap();
        fs::write(home.path().join("b.txt"), "").unwrap();
        let state = home.path().join("149.programs");
        fs::write(&state, "500 a_pair.x\n").unwrap();
        let find = || Scripts::find(ScriptSettings::default(), home.path(), "bcc.", Some(&state), &[]);
        let scripts = find();
        assert_eq!(clusters_of(&scripts.modules), [501], "500 is a pair's");
        assert!(scripts.runnable.is_empty());
        let known = scripts.modules[0].1.state.get();
        assert!(known.error.contains("expected owner root"), "{}", known.error);
        assert_eq!(scripts.modules[0].0.settings.section, "script.a");
        assert_eq!(fs::read_to_string(&state).unwrap(), "500 a_pair.x\n501 script.a\n");
        assert_eq!(clusters_of(&find().modules), [501]);
    }

    #[test]
    fn no_directory_has_no_scripts() {
        let home = tempfile::tempdir().unwrap();
        assert!(Scripts::find(ScriptSettings::default(), &home.path().join("x"), "", None, &[]).modules.is_empty());
    }
}
