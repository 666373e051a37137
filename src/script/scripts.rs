//! The scripts of a directory as modules: their names, the clusters of their tables, and the process and thread that run them.

use super::module::ScriptModule;
use super::runner::{self, Runner};
use super::source::{Source, MAX_SOURCE};
use super::state::{ScriptState, SharedState};
use super::tables::{declare, keys, ScriptTable};
use crate::catalog::{EnabledModule, PAIR_CLUSTERS};
use crate::config::{ModuleSettings, ScriptSettings};
use crate::kit::{Spec, TableSpec};
use crate::loader::{Bpftrace, ScriptHelper};
use crate::state::{ClusterFile, Clusters};
use crate::user::{kept, leak, read_trusted, word, Changed, PairError, Watch};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::SystemTime;

/// Largest number of scripts that are run.
const MAX_SCRIPTS: usize = 64;

/// The scripts of a directory: those found, and those served.
pub struct Scripts {
    directory: PathBuf,
    settings: ScriptSettings,
    /// File of the clusters of scripts and pairs.
    state: Option<ClusterFile>,
    watch: Watch,
    /// Scripts that were found, by the names of their files.
    found: BTreeMap<String, Arc<Found>>,
    served: BTreeMap<String, Served>,
    runner: Arc<Runner>,
    helper: Option<ScriptHelper>,
}

/// The values from which a served module was made.
struct Served {
    script: Arc<Found>,
    prefix: String,
    clusters: Vec<u16>,
}

/// Clusters that modules of scripts cannot have.
pub struct Others<'a> {
    /// Clusters of the agent's own modules.
    pub modules: &'a [u16],
    /// Clusters of pairs.
    pub pairs: &'a [u16],
}

/// Changes of modules that follow from changed files.
#[derive(Default)]
pub struct ScriptChanges {
    /// Sections whose modules end.
    pub removed: Vec<String>,
    /// Modules that begin after that.
    pub added: Vec<(EnabledModule, ScriptModule)>,
}

impl Scripts {
    /// Prepares the scripts of a directory, which need not exist. Clusters are kept in `state` if it is given.
    pub fn new(settings: ScriptSettings, directory: PathBuf, state: Option<ClusterFile>) -> io::Result<Scripts> {
        let watch = Watch::scripts(directory.clone());
        let runner = Arc::new(Runner::new()?);
        let (found, served) = (BTreeMap::new(), BTreeMap::new());
        let mut scripts = Scripts { directory, settings, state, watch, found, served, runner, helper: None };
        scripts.read();
        Ok(scripts)
    }

    /// Returns the settings.
    pub fn settings(&self) -> &ScriptSettings {
        &self.settings
    }

    /// Returns the directory of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads all files.
    pub fn read(&mut self) {
        // As they are now: what changes from here on is seen by the next look.
        self.watch = Watch::scripts(self.directory.clone());
        self.found = files(&self.directory).iter().map(|file| Found::read(file)).collect();
    }

    /// Reads the files that have changed since they were read; returns true if there are any.
    pub fn scan(&mut self) -> bool {
        let Changed { removed, new } = self.watch.scan(SystemTime::now());
        self.found.retain(|file, _| !removed.contains(file));
        for file in &new {
            self.found.extend([Found::read(&self.directory.join(format!("{file}.bt")))]);
        }
        if self.found.len() > MAX_SCRIPTS {
            self.read();
        }
        !removed.is_empty() || !new.is_empty()
    }

    /// True if there is a script of a section, served or not.
    pub fn has(&self, section: &str) -> bool {
        self.served.contains_key(section) || self.found.values().any(|script| script.section() == section)
    }

    /// True if the script of a section is served.
    pub fn serves(&self, section: &str) -> bool {
        self.served.contains_key(section)
    }

    /// Brings the served modules in line with the files, for sections that `is_meant` allows. `restart` names a section that is
    /// restarted in any case.
    pub fn change(
        &mut self,
        prefix: &str,
        is_meant: impl Fn(&str) -> bool,
        restart: Option<&str>,
        others: &Others<'_>,
    ) -> ScriptChanges {
        let mut wanted = self.named();
        wanted.retain(|section, _| is_meant(section));
        let stays = |section: &str, served: &Served| {
            let is_same = wanted.get(section).is_some_and(|script| *script == served.script);
            is_same && served.prefix == prefix && restart != Some(section)
        };
        let removed: Vec<String> = self
            .served
            .iter()
            .filter(|(section, served)| !stays(section, served))
            .map(|(name, _)| name.clone())
            .collect();
        removed.iter().for_each(|section| drop(self.served.remove(section)));
        wanted.retain(|section, _| !self.served.contains_key(section));
        let added = if wanted.is_empty() { Vec::new() } else { self.modules(wanted.into_values(), prefix, others) };
        ScriptChanges { removed, added }
    }

    /// Returns the scripts by section. Of two with the same name the served one is chosen, or else the first.
    fn named(&self) -> BTreeMap<String, Arc<Found>> {
        let is_served =
            |script: &Found| self.served.get(&script.section()).is_some_and(|own| own.script.file == script.file);
        let (first, then): (Vec<_>, Vec<_>) = self.found.values().partition(|script| is_served(script));
        let mut named = BTreeMap::new();
        for script in first.into_iter().chain(then) {
            if named.contains_key(&script.section()) {
                let (file, name) = (self.directory.join(format!("{}.bt", script.file)), &script.name);
                log::error!("{}: expected a name that is free, got `{name}`; it is not run", file.display());
                continue;
            }
            named.insert(script.section(), Arc::clone(script));
        }
        named
    }

    fn modules(
        &mut self,
        scripts: impl Iterator<Item = Arc<Found>>,
        prefix: &str,
        others: &Others<'_>,
    ) -> Vec<(EnabledModule, ScriptModule)> {
        let scripts: Vec<Arc<Found>> = scripts.collect();
        let assigned = self.assign(&scripts, others);
        let mut modules = Vec::new();
        for (script, clusters) in scripts.into_iter().zip(assigned) {
            let tables = declare(&script.name, &script.source, &clusters);
            // Without a cluster there is not even a status.
            let Some(enabled) = enabled(&script.name, prefix, &tables) else {
                log::error!("script.{}: expected fewer metrics: all clusters are taken; it is not run", script.name);
                continue;
            };
            let mut state = ScriptState::new(script.code.clone(), script.source.clone());
            if let Some(refusal) = &script.refusal {
                log::error!("script.{}: {refusal}", script.name);
                state.refuse(refusal.clone());
            }
            let names = script.refusal.is_none().then(|| (script.file.clone(), script.name.clone()));
            let runner = Arc::clone(&self.runner);
            let (name, state) = (script.name.clone(), SharedState::new(state));
            modules.push((enabled, ScriptModule { name, state, tables, names, runner }));
            let clusters = clusters.into_iter().flatten().collect();
            self.served.insert(script.section(), Served { script, prefix: prefix.into(), clusters });
        }
        modules
    }

    /// Returns the clusters of each script.
    fn assign(&self, scripts: &[Arc<Found>], others: &Others<'_>) -> Vec<Vec<Option<u16>>> {
        let state = self.state.as_ref();
        let mut clusters = state.map_or_else(|| Clusters::none(PAIR_CLUSTERS), |file| file.load(PAIR_CLUSTERS));
        let served = self.served.values().flat_map(|served| &served.clusters);
        let taken: Vec<u16> = others.pairs.iter().chain(served).copied().collect();
        let taken = clusters.names_of(&taken);
        let own: Vec<Vec<String>> = scripts.iter().map(|script| keys(&script.name, &script.source)).collect();
        let all: Vec<String> = taken.iter().chain(own.iter().flatten()).cloned().collect();
        let mut assigned = clusters.assign(&all, others.modules).into_iter().skip(taken.len());
        let assigned = own.iter().map(|own| assigned.by_ref().take(own.len()).collect()).collect();
        if let Some(file) = state {
            file.save(&clusters);
        }
        assigned
    }

    /// Starts the helper process that runs bpftrace and that calls `confine` first. Must be called while the agent has one thread.
    pub fn start_helper(&mut self, confine: impl FnOnce() -> io::Result<()>) {
        let directory = self.directory.clone();
        let started = ScriptHelper::start(bpftrace(&self.settings), move |name| program(&directory, name), confine);
        self.helper = started.map_err(|error| self.fail(&format!("no helper to run bpftrace: {error}"))).ok();
    }

    /// Starts the thread that runs scripts, and waits until `confine` has returned in it: the system calls that it takes are forbidden to all
    /// threads a moment later.
    pub fn start_thread(&mut self, confine: impl FnOnce() + Send + 'static) {
        let Some(helper) = self.helper.take() else { return };
        let (runner, expiry) = (Arc::clone(&self.runner), self.settings.expiry);
        let (confined, is_confined) = mpsc::channel::<()>();
        let run = move || {
            confine();
            drop(confined);
            runner::run(&helper, &runner, expiry);
        };
        if let Err(error) = thread::Builder::new().name("scripts".into()).stack_size(512 << 10).spawn(run) {
            self.fail(&format!("cannot start a thread: {error}"));
        }
        let _ = is_confined.recv();
    }

    fn fail(&self, why: &str) {
        log::warn!("scripts: {why}");
        self.runner.fail(why);
    }
}

/// Returns the way to run bpftrace according to the settings.
pub fn bpftrace(settings: &ScriptSettings) -> Bpftrace {
    Bpftrace { program: settings.bpftrace.clone(), memory: settings.memory }
}

/// True for the name of a file in the directory of scripts: it leads to no other directory.
fn is_file_name(name: &str) -> bool {
    let may_have = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(may_have)
}

/// Returns the program that bpftrace is to run for a file, which nobody but root may be able to change. The name comes from the
/// agent: even one that was taken over gets no scripts from outside the directory.
fn program(directory: &Path, name: &str) -> io::Result<Vec<u8>> {
    if !is_file_name(name) {
        let shown = name.escape_debug();
        return Err(io::Error::other(format!(
            "expected letters, digits, `_`, `.` and `-` in a script's name, got `{shown}`"
        )));
    }
    let text = text(&directory.join(format!("{name}.bt"))).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Source::parse(&text).program(&text).into_bytes())
}

/// Reads a script. Fails if others than root may change it.
pub fn text(file: &Path) -> Result<String, PairError> {
    read_trusted(file, MAX_SOURCE).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the scripts of a directory, in the order of their names; none if the directory does not exist.
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

/// A script that was found.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// The name of the file without `.bt`.
    file: String,
    /// The name in metrics.
    name: String,
    code: String,
    source: Source,
    /// Reason why it must not run.
    refusal: Option<String>,
}

impl Found {
    /// Reads a script. Returns the name of its file without `.bt`, and the script.
    fn read(path: &Path) -> (String, Arc<Found>) {
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
        (file.clone(), Arc::new(Found { file, name, code, source, refusal }))
    }

    fn section(&self) -> String {
        section_of(&self.name)
    }
}

/// Returns the section of a script with a name in metrics.
fn section_of(name: &str) -> String {
    format!("script.{name}")
}

/// Describes a script as a module. Returns `None` if a name or cluster is not valid.
fn enabled(script: &str, prefix: &str, tables: &[ScriptTable]) -> Option<EnabledModule> {
    let name = leak(section_of(script));
    let tables: Vec<&'static TableSpec> = tables.iter().map(|table| table.spec).collect();
    let first = tables.first()?.cluster;
    // Equal tables are the same ones.
    let places: Vec<*const TableSpec> = tables.iter().map(|table| &raw const **table).collect();
    let of = format!("{name} {places:?}");
    let tables = kept(of.clone(), || tables);
    let spec = kept(of, || Spec { name, summary: "a bpftrace script of this site", tables, ..Spec::NEW });
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
        spec,
        rows: 0,
        bpf_names: false,
        off: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Writer;

    const NO_OTHERS: Others<'static> = Others { modules: &[], pairs: &[500] };

    fn scripts(directory: &Path, state: Option<&Path>) -> Scripts {
        let file = |of: &Path| ClusterFile::new(&Arc::new(Writer::new(of.into())), "149.programs");
        Scripts::new(ScriptSettings::default(), directory.into(), state.map(file)).unwrap()
    }

    fn change(scripts: &mut Scripts, stopped: &[&str], restart: Option<&str>) -> (Vec<String>, Vec<String>) {
        let changes = scripts.change("bcc.", |section| !stopped.contains(&section), restart, &NO_OTHERS);
        (changes.removed, changes.added.iter().map(|(module, _)| module.settings.section.clone()).collect())
    }

    fn sections(removed: &[&str], added: &[&str]) -> (Vec<String>, Vec<String>) {
        let names = |names: &[&str]| names.iter().map(|name| format!("script.{name}")).collect();
        (names(removed), names(added))
    }

    /// Directories below /tmp can be changed by anybody, so a script in them is found and refused.
    #[test]
    fn a_name_leads_to_no_other_directory() {
        let directory = tempfile::tempdir_in("/var/lib").or_else(|_| tempfile::tempdir()).unwrap();
        for name in ["../x", "/usr/sbin/bashreadline", "a/b", "", ".", "..", ".hidden", "a b", "a\0"] {
            let refusal = program(&directory.path().join("scripts.d"), name).unwrap_err().to_string();
            assert!(refusal.contains("in a script's name"), "{name:?}: {refusal}");
        }
        let missing = program(directory.path(), "opens-by.process_2").unwrap_err().to_string();
        assert!(missing.contains("opens-by.process_2.bt"), "{missing}");
    }

    #[test]
    fn a_script_that_others_may_change_has_a_status_only() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("a.bt"), "BEGIN { @a = 1; }").unwrap();
        fs::write(home.path().join("b.txt"), "").unwrap();
        let state = home.path().join("149.programs");
        fs::write(&state, "500 a_pair.x\n").unwrap();
        let clusters = || {
            let changes = scripts(home.path(), Some(home.path())).change("bcc.", |_| true, None, &NO_OTHERS);
            let (module, script) = &changes.added[0];
            assert!(script.names.is_none(), "it is not to run");
            let error = script.state.get().error.clone();
            assert!(error.contains("expected owner root"), "{error}");
            assert_eq!(module.settings.section, "script.a");
            module.tables().map(|table| table.id.cluster()).collect::<Vec<_>>()
        };
        assert_eq!(clusters(), [501], "500 is a pair's");
        assert_eq!(fs::read_to_string(&state).unwrap(), "500 a_pair.x\n501 script.a\n");
        assert_eq!(clusters(), [501]);
    }

    #[test]
    fn only_scripts_that_change_end_and_begin() {
        let home = tempfile::tempdir().unwrap();
        let mut scripts = scripts(&home.path().join("none"), None);
        assert_eq!(change(&mut scripts, &[], None), sections(&[], &[]), "no directory");
        let write = |scripts: &mut Scripts, file: &str, code: &str| {
            let source = Source::parse(code);
            let name = source.name.clone().unwrap_or_else(|| file.into());
            let script = Found { file: file.into(), name, code: code.into(), source, refusal: None };
            scripts.found.insert(file.into(), Arc::new(script));
        };
        write(&mut scripts, "a", "BEGIN { @a = 1; }");
        write(&mut scripts, "b", "BEGIN { @b = 1; }");
        assert_eq!(change(&mut scripts, &[], None), sections(&[], &["a", "b"]));
        write(&mut scripts, "a", "BEGIN { @a = 1; }");
        assert_eq!(change(&mut scripts, &[], None), sections(&[], &[]), "the same text");
        write(&mut scripts, "a", "BEGIN { @a = 2; }");
        assert_eq!(change(&mut scripts, &[], None), sections(&["a"], &["a"]));
        assert_eq!(change(&mut scripts, &[], Some("script.b")), sections(&["b"], &["b"]));
        assert_eq!(change(&mut scripts, &["script.b"], None), sections(&["b"], &[]));
        write(&mut scripts, "b", "BEGIN { @b = 2; }");
        assert_eq!(change(&mut scripts, &["script.b"], None), sections(&[], &[]), "stopped");
        assert!(scripts.has("script.b") && !scripts.serves("script.b") && !scripts.has("script.c"));
        assert_eq!(change(&mut scripts, &[], None), sections(&[], &["b"]));
        write(&mut scripts, "0", "// name: a\nBEGIN { }");
        assert_eq!(change(&mut scripts, &[], None), sections(&[], &[]), "the name is taken");
        scripts.found.remove("a");
        assert_eq!(change(&mut scripts, &[], None), sections(&["a"], &["a"]), "the name is free");
    }
}
