//! The configuration file, in the dialect of Python's `configparser` (that of every existing `bcc.conf`). The file and line of each
//! value are kept for messages. Reads bytes; returns [`Config`], and from it [`Settings`].

mod declared;
mod interpolate;
mod notes;
mod parse;
mod parts;
mod scripts;
mod settings;
mod similar;
mod text;
mod value;

pub use declared::{Line, SettingDef, DEFAULT_MODULES, MODULE_OPTIONS, PMDA, SCRIPT_OPTIONS};
pub use notes::Notes;
pub use scripts::{ScriptSettings, SCRIPTS};
pub use settings::{Cost, Fault, ModuleSettings, Settings, GUARDED_HELPERS};
pub use similar::did_you_mean;
pub use value::Value;

use log::Level;
use nix::libc::O_NONBLOCK;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// The section whose options appear in every other one.
pub const DEFAULT: &str = "DEFAULT";

/// Largest configuration in bytes, far beyond any real one: a device or a log given by mistake is refused before it fills the memory.
const MAX_BYTES: u64 = 4 << 20;

/// Reason why a configuration cannot be used. Each message has the place, the text found and the text to write instead.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{path}: cannot read the configuration: {reason}")]
    Read {
        /// The file as the user named it.
        path: String,
        /// The system's reason and, where there is one, the remedy.
        reason: String,
    },
    /// A line that is not of the grammar, or that begins a section which lacks something.
    #[error("{path}:{line}: {reason}")]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The error and the expected form.
        reason: String,
    },
    /// An option that its section requires is missing or has no value.
    #[error("{path}:{line}: {reason}")]
    Required {
        /// The file.
        path: String,
        /// The line of the option, or of its section, from 1.
        line: usize,
        /// The missing option and the line to write.
        reason: String,
    },
    /// A required section is missing.
    #[error("{path}: {reason}")]
    Missing {
        /// The file.
        path: String,
        /// The missing section and the lines to add.
        reason: String,
    },
    /// An option has a wrong value, or must not be there.
    #[error("{path}:{line}: [{section}] {key}: {reason}")]
    Value {
        /// The file.
        path: String,
        /// The line of the key, from 1, also if the value continues below it.
        line: usize,
        /// The section that contains the line, which can be `DEFAULT`.
        section: String,
        /// The option, in lower case.
        key: String,
        /// The expected value and the one found.
        reason: String,
    },
    /// Several errors.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<ConfigError>),
}

impl ConfigError {
    /// Returns the errors one by one.
    pub fn each(&self) -> Vec<&ConfigError> {
        match self {
            ConfigError::Several(errors) => errors.iter().flat_map(ConfigError::each).collect(),
            error => vec![error],
        }
    }

    /// Returns the errors one by one, by value.
    pub fn into_each(self) -> Vec<ConfigError> {
        match self {
            ConfigError::Several(errors) => errors.into_iter().flat_map(ConfigError::into_each).collect(),
            error => vec![error],
        }
    }

    /// Returns the line in the file, from 1; 0 for an error of the whole file.
    pub fn line(&self) -> usize {
        match self {
            ConfigError::Line { line, .. } | ConfigError::Required { line, .. } | ConfigError::Value { line, .. } => {
                *line
            }
            ConfigError::Several(errors) => errors.first().map_or(0, ConfigError::line),
            ConfigError::Read { .. } | ConfigError::Missing { .. } => 0,
        }
    }

    /// Returns the file, as the user named it.
    fn path(&self) -> &str {
        match self {
            ConfigError::Read { path, .. }
            | ConfigError::Line { path, .. }
            | ConfigError::Required { path, .. }
            | ConfigError::Missing { path, .. }
            | ConfigError::Value { path, .. } => path,
            ConfigError::Several(errors) => errors.first().map_or("", ConfigError::path),
        }
    }

    fn unread(path: &str, error: &Error) -> ConfigError {
        ConfigError::Read { path: path.to_owned(), reason: error.to_string() }
    }
}

/// A collection of errors, for reporting all of them instead of the first only.
#[derive(Debug, Default)]
pub struct Errors(Vec<ConfigError>);

impl Errors {
    /// Returns the value, or keeps the error.
    pub fn take<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    /// Keeps an error.
    pub fn push(&mut self, error: ConfigError) {
        self.0.push(error);
    }

    /// Returns all kept errors as one.
    pub fn end(mut self) -> Result<(), ConfigError> {
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            _ => Err(ConfigError::Several(self.0)),
        }
    }
}

/// A parsed file together with those of its `conf.d`: sections and options in file order, values as written.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of the file and of those of its `conf.d`, in the order of reading.
    files: Vec<Arc<str>>,
    defaults: Options,
    sections: Vec<(String, Options)>,
    by_name: HashMap<String, usize>,
}

impl Config {
    /// Reads and parses the file at `path`, then `conf.d/*.conf` beside it in the order of their names. A section of these files adds
    /// to the section of the same name, and replaces options that it has.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let shown = path.display().to_string();
        let own = open(path).and_then(bytes).map_err(|error| ConfigError::unread(&shown, &error));
        let own = own.and_then(|bytes| Config::parse(&shown, &bytes));
        let mut errors = Errors::default();
        let parts = parts::parts(path).into_iter();
        let parts = parts.map(|(path, bytes)| bytes.and_then(|bytes| Config::parse(&path, &bytes)));
        let parts: Vec<Config> = parts.filter_map(|part| errors.take(part)).collect();
        match (own, errors.end()) {
            (Ok(own), Ok(())) => Ok(parts.into_iter().fold(own, Config::with_file)),
            (Ok(_), Err(error)) | (Err(error), Ok(())) => Err(error),
            (Err(own), Err(parts)) => Err(ConfigError::Several(vec![own, parts])),
        }
    }

    /// Parses `bytes`, in time linear in their number. `path` is used in messages only. Never panics (a fuzz target).
    pub fn parse(path: &str, bytes: &[u8]) -> Result<Config, ConfigError> {
        parse::parse(path, bytes)
    }

    /// Returns the file's path as it was given to [`Config::read`].
    pub fn path(&self) -> &str {
        self.files.first().map_or("", |path| path)
    }

    /// Returns the names of the file and of those of its `conf.d`, in the order of reading.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|path| &**path)
    }

    /// Returns an error's place among all lines that were read, for ordering errors.
    pub fn position(&self, error: &ConfigError) -> (usize, usize) {
        (self.files().position(|path| path == error.path()).unwrap_or(0), error.line())
    }

    /// Returns the section of exactly this name, other than `DEFAULT`.
    pub fn section(&self, name: &str) -> Option<Section<'_>> {
        let (name, own) = &self.sections[*self.by_name.get(name)?];
        Some(Section { config: self, name, own, notes: None })
    }

    /// Returns every section but `DEFAULT`, in file order.
    pub fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        self.sections.iter().map(|(name, own)| Section { config: self, name, own, notes: None })
    }

    /// Returns this configuration with these sections enabled instead of its own. Missing sections and options are taken from
    /// `others`.
    pub fn enabling(mut self, names: &[&str], others: &Config) -> Config {
        for (name, options) in
            others.sections.iter().filter(|(name, _)| name == "pmda" || names.contains(&name.as_str()))
        {
            let at = self.place(name, options);
            for entry in &options.entries {
                let Config { defaults, sections, .. } = &mut self;
                let known = sections[at].1.find(&entry.key).or(defaults.find(&entry.key));
                if known.is_none_or(|known| known.raw.trim().is_empty()) {
                    sections[at].1.insert(entry.clone());
                }
            }
        }
        for (name, options) in &mut self.sections {
            let (key, raw) = match name.as_str() {
                "pmda" => ("modules", names.join(",")),
                _ => ("enabled", names.contains(&name.as_str()).to_string()),
            };
            let line = options.find(key).map_or(options.line, |entry| entry.line);
            options.insert(Entry { key: key.into(), path: options.path.clone(), line, continued: None, raw });
        }
        self
    }

    /// Returns this configuration with what it lacks taken from `usual`: the module of a section by the section's name, the cluster
    /// by the module. Names in the option `modules` need no section.
    pub fn with_usual(mut self, usual: &Config) -> Config {
        for (name, options) in usual.sections.iter().filter(|(name, _)| name != "pmda") {
            let Some(module) = options.find("module") else { continue };
            if let Some(list) = self.list_instead_of_section(name) {
                self.place(name, &list);
            }
            if let Some(&at) = self.by_name.get(name) {
                self.complete(at, module);
            }
            let Some(cluster) = options.find("cluster") else { continue };
            for at in 0..self.sections.len() {
                let other = self.sections[at].1.find("module").or(self.defaults.find("module"));
                if other.is_some_and(|other| [&module.raw, name].contains(&&other.raw)) {
                    self.complete(at, cluster);
                }
            }
        }
        self
    }

    /// Returns the place of the list `modules` for an empty section, if the list has this name and neither a section nor a module has
    /// it.
    fn list_instead_of_section(&self, name: &str) -> Option<Options> {
        let is_of_it = |(section, options): &(String, Options)| {
            section == name || options.find("module").is_some_and(|module| module.raw.rsplit('.').next() == Some(name))
        };
        let list = self.sections[*self.by_name.get("pmda")?].1.find("modules")?;
        let is_listed = self.section("pmda")?.get("modules").ok()??.list().contains(&name);
        let place = || Options { path: list.path.clone(), line: list.line, ..Options::default() };
        (is_listed && !self.sections.iter().any(is_of_it)).then(place)
    }

    /// Adds an option to a section that lacks it, as if it were in the line of the section's header.
    fn complete(&mut self, at: usize, entry: &Entry) {
        let (name, options) = &mut self.sections[at];
        if name != "pmda" && options.find(&entry.key).or(self.defaults.find(&entry.key)).is_none() {
            options.insert(Entry { path: options.path.clone(), line: options.line, ..entry.clone() });
        }
    }

    /// Returns this configuration with an option of an existing section set to a value.
    pub fn with_option(mut self, section: &str, key: &str, value: &str) -> Config {
        if let Some(&at) = self.by_name.get(section) {
            let key = key.to_lowercase();
            let options = &mut self.sections[at].1;
            let (path, raw) = (options.path.clone(), value.to_owned());
            options.insert(Entry { key, path, line: 0, continued: None, raw });
        }
        self
    }

    /// Returns this configuration with the sections and options of another file added; options of the latter replace earlier ones.
    fn with_file(mut self, part: Config) -> Config {
        self.files.extend(part.files);
        part.defaults.entries.into_iter().for_each(|entry| self.defaults.insert(entry));
        for (name, options) in part.sections {
            let at = self.place(&name, &options);
            options.entries.into_iter().for_each(|entry| self.sections[at].1.insert(entry));
        }
        self
    }

    /// Returns the index of a section; if it is missing, adds it with the place of `model`.
    fn place(&mut self, name: &str, model: &Options) -> usize {
        *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            let empty = Options { path: model.path.clone(), line: model.line, ..Options::default() };
            self.sections.push((name.to_owned(), empty));
            self.sections.len() - 1
        })
    }

    fn missing(&self, reason: String) -> ConfigError {
        ConfigError::Missing { path: self.path().to_owned(), reason }
    }
}

/// Opens the configuration file. A pipe without a writer is not waited for: a reload, and all orders behind it, would wait too.
fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    match file.metadata()?.file_type().is_fifo() {
        true => Err(Error::other("expected a file, got a named pipe")),
        false => Ok(file),
    }
}

/// Reads a file, unless it is too large to be a configuration.
fn bytes(file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::other(format!("larger than {MAX_BYTES} bytes; is this the right file?")));
    }
    Ok(bytes)
}

/// One section, with the options of `[DEFAULT]` behind its own.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    config: &'a Config,
    name: &'a str,
    own: &'a Options,
    notes: Option<&'a Notes>,
}

impl<'a> Section<'a> {
    /// Returns the section with a place for the notes of its readers; without one, notes are dropped.
    pub fn noted_in(self, notes: &'a Notes) -> Section<'a> {
        Section { notes: Some(notes), ..self }
    }

    /// Adds a line for the log, written once the section is in effect.
    pub fn info(&self, line: impl Into<String>) {
        self.remark(Level::Info, line.into());
    }

    /// Adds a warning for the log, written once the section is in effect.
    pub fn warn(&self, line: impl Into<String>) {
        self.remark(Level::Warn, line.into());
    }

    fn remark(&self, level: Level, line: String) {
        if let Some(notes) = self.notes {
            notes.remark(level, line);
        }
    }

    /// Returns the name as written.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the value of an option, with percent references resolved; `None` if neither this section nor `[DEFAULT]` has it, or if
    /// nothing follows the `=`, as in samples. `key` is folded to lower case, as in the file. A wrong percent sign is an error here
    /// only, as in Python: it does no harm in a value that is never read.
    pub fn get(&self, key: &str) -> Result<Option<Value<'a>>, ConfigError> {
        match self.raw(&key.to_lowercase()) {
            None => Ok(None),
            Some((section, entry)) => {
                let mut value = Value::new(section, entry, self.notes);
                value.resolve(|key| self.raw(key).map(|(_, entry)| entry.raw.as_str()), self.name)?;
                Ok(Some(value).filter(|value| !value.text().trim().is_empty()))
            }
        }
    }

    /// Returns a value as [`Section::get`]; if it is missing, the error tells what to write.
    pub fn require(&self, key: &str, example: &str) -> Result<Value<'a>, ConfigError> {
        self.get(key)?.ok_or_else(|| match self.raw(key) {
            Some((section, entry)) => ConfigError::Required {
                path: entry.path.to_string(),
                line: entry.line,
                reason: format!("[{section}] {key}: there is no value; write `{key} = {example}`"),
            },
            None => {
                let reason = format!("[{}] has no option `{key}`; add a line `{key} = {example}`", self.name);
                ConfigError::Required { path: self.own.path.to_string(), line: self.own.line, reason }
            }
        })
    }

    /// Returns the names of the section's own options, in file order, without those of `[DEFAULT]`.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.own.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Returns all options of the section, including those of `[DEFAULT]`, sorted. It differs if anything that the module reads
    /// differs.
    pub fn said(&self) -> Vec<(String, String)> {
        let keys = self.keys().chain(self.config.defaults.entries.iter().map(|entry| entry.key.as_str()));
        let value = |key: &str| match self.get(key) {
            Ok(value) => value.map(|value| value.text().to_owned()),
            Err(error) => Some(error.to_string()),
        };
        let mut said: Vec<(String, String)> = keys.filter_map(|key| Some((key.to_owned(), value(key)?))).collect();
        said.sort();
        said.dedup();
        said
    }

    /// Makes an error at the line of the section's header.
    pub fn error(&self, reason: impl Into<String>) -> ConfigError {
        ConfigError::Line { path: self.own.path.to_string(), line: self.own.line, reason: reason.into() }
    }

    /// Makes an error at an option of this section that must not be there.
    pub fn reject(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        let key = key.to_lowercase();
        match self.raw(&key) {
            Some((section, entry)) => Value::new(section, entry, None).reject(reason),
            None => self.config.missing(format!("[{}] {key}: {}", self.name, reason.into())),
        }
    }

    fn raw(&self, key: &str) -> Option<(&'a str, &'a Entry)> {
        let own = self.own.find(key).map(|entry| (self.name, entry));
        own.or_else(|| self.config.defaults.find(key).map(|entry| (DEFAULT, entry)))
    }
}

#[derive(Clone, Debug, Default)]
struct Options {
    /// The file that has the section's header.
    path: Arc<str>,
    /// The line of the header.
    line: usize,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
}

impl Options {
    fn find(&self, key: &str) -> Option<&Entry> {
        self.by_key.get(key).map(|&at| &self.entries[at])
    }

    /// Adds an entry at the end, or replaces the one with the same key.
    fn insert(&mut self, entry: Entry) {
        match self.by_key.get(&entry.key) {
            Some(&at) => self.entries[at] = entry,
            None => {
                self.by_key.insert(entry.key.clone(), self.entries.len());
                self.entries.push(entry);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    /// The file.
    path: Arc<str>,
    line: usize,
    /// The first line that begins with a blank and so continues the value.
    continued: Option<usize>,
    raw: String,
}
