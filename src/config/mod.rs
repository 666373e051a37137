//! The configuration file: the dialect of Python's `configparser` (which every existing `bcc.conf` is written in), with
//! the file and line of each value kept for messages. Reads bytes; yields [`Config`], and from it [`Settings`].

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
pub use notes::noting;
pub use scripts::{ScriptSettings, SCRIPTS};
pub use settings::{Cost, Fault, ModuleSettings, Settings, GUARDED_HELPERS};
pub use similar::did_you_mean;
pub use value::Value;

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

/// No configuration is near this size; a device or a log given by mistake is refused before it fills the memory.
const MAX_BYTES: u64 = 4 << 20;

/// Why a configuration cannot be used. Each message says where, what was found and what to write instead.
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
    /// A line is not of the grammar, or the section that it begins lacks something.
    #[error("{path}:{line}: {reason}")]
    Line {
        /// The file.
        path: String,
        /// From 1.
        line: usize,
        /// What is wrong with the line and how it should look.
        reason: String,
    },
    /// An option that a section cannot do without is not there, or has no value.
    #[error("{path}:{line}: {reason}")]
    Required {
        /// The file.
        path: String,
        /// From 1; the line of the option, or of its section.
        line: usize,
        /// What is missing and what to write.
        reason: String,
    },
    /// A section that must be in the file is not.
    #[error("{path}: {reason}")]
    Missing {
        /// The file.
        path: String,
        /// What is missing and what to add.
        reason: String,
    },
    /// An option has a value it cannot have, or should not be there.
    #[error("{path}:{line}: [{section}] {key}: {reason}")]
    Value {
        /// The file.
        path: String,
        /// From 1; the line of the key, also when the value goes on below it.
        line: usize,
        /// The section the line stands in, which can be `DEFAULT`.
        section: String,
        /// The option, in lower case.
        key: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// Two errors or more.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<ConfigError>),
}

impl ConfigError {
    /// The errors one by one.
    pub fn each(&self) -> Vec<&ConfigError> {
        match self {
            ConfigError::Several(errors) => errors.iter().flat_map(ConfigError::each).collect(),
            error => vec![error],
        }
    }

    /// The same, owned.
    pub fn into_each(self) -> Vec<ConfigError> {
        match self {
            ConfigError::Several(errors) => errors.into_iter().flat_map(ConfigError::into_each).collect(),
            error => vec![error],
        }
    }

    /// The line of the file, from 1; 0 for an error of the whole file.
    pub fn line(&self) -> usize {
        match self {
            ConfigError::Line { line, .. } | ConfigError::Required { line, .. } | ConfigError::Value { line, .. } => {
                *line
            }
            ConfigError::Several(errors) => errors.first().map_or(0, ConfigError::line),
            ConfigError::Read { .. } | ConfigError::Missing { .. } => 0,
        }
    }

    /// The file, as the user named it.
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

/// Errors collected on the way, so that all of them are reported at once and not only the first.
#[derive(Debug, Default)]
pub struct Errors(Vec<ConfigError>);

impl Errors {
    /// The value; an error is kept.
    pub fn take<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    /// Keeps an error.
    pub fn push(&mut self, error: ConfigError) {
        self.0.push(error);
    }

    /// All of them as one error, if there are any.
    pub fn end(mut self) -> Result<(), ConfigError> {
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            _ => Err(ConfigError::Several(self.0)),
        }
    }
}

/// A parsed file with those of its `conf.d`: sections and options in file order, values as written.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file, and those of its `conf.d` in the order in which they were read.
    files: Vec<Arc<str>>,
    defaults: Options,
    sections: Vec<(String, Options)>,
    by_name: HashMap<String, usize>,
}

impl Config {
    /// Reads and parses the file at `path`, and then `conf.d/*.conf` beside it in the order of their names: what a section of these says
    /// is added to the section of that name, or replaces what was said before.
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

    /// Parses `bytes`, in time linear in their number. `path` is for messages only. Never panics (a fuzz target).
    pub fn parse(path: &str, bytes: &[u8]) -> Result<Config, ConfigError> {
        parse::parse(path, bytes)
    }

    /// The file as it was named to [`Config::read`].
    pub fn path(&self) -> &str {
        self.files.first().map_or("", |path| path)
    }

    /// The file, and those of its `conf.d` in the order in which they were read.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|path| &**path)
    }

    /// Where an error stands among all lines that were read: to order errors by.
    pub fn position(&self, error: &ConfigError) -> (usize, usize) {
        (self.files().position(|path| path == error.path()).unwrap_or(0), error.line())
    }

    /// The section of exactly this name; `DEFAULT` is none.
    pub fn section(&self, name: &str) -> Option<Section<'_>> {
        let (name, own) = &self.sections[*self.by_name.get(name)?];
        Some(Section { config: self, name, own })
    }

    /// Every section but `DEFAULT`, in file order.
    pub fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        self.sections.iter().map(|(name, own)| Section { config: self, name, own })
    }

    /// The same with these sections enabled instead of its own. What is not in it, sections and options, is taken from `others`.
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

    /// The same with what `usual` says in the place of what this lacks: the module of a section by the section's name, the cluster by the
    /// module. A name in the option `modules` needs no section.
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

    /// Where the list `modules` stands, if it has this name and no section has, nor a module of this name.
    fn list_instead_of_section(&self, name: &str) -> Option<Options> {
        let is_of_it = |(section, options): &(String, Options)| {
            section == name || options.find("module").is_some_and(|module| module.raw.rsplit('.').next() == Some(name))
        };
        let list = self.sections[*self.by_name.get("pmda")?].1.find("modules")?;
        let is_listed = self.section("pmda")?.get("modules").ok()??.list().contains(&name);
        let place = || Options { path: list.path.clone(), line: list.line, ..Options::default() };
        (is_listed && !self.sections.iter().any(is_of_it)).then(place)
    }

    /// Adds an option to a section that lacks it, as if it stood in the section's header.
    fn complete(&mut self, at: usize, entry: &Entry) {
        let (name, options) = &mut self.sections[at];
        if name != "pmda" && options.find(&entry.key).or(self.defaults.find(&entry.key)).is_none() {
            options.insert(Entry { path: options.path.clone(), line: options.line, ..entry.clone() });
        }
    }

    /// The same with this value for an option of a section that it has.
    pub fn with_option(mut self, section: &str, key: &str, value: &str) -> Config {
        if let Some(&at) = self.by_name.get(section) {
            let key = key.to_lowercase();
            let options = &mut self.sections[at].1;
            let (path, raw) = (options.path.clone(), value.to_owned());
            options.insert(Entry { key, path, line: 0, continued: None, raw });
        }
        self
    }

    /// The same with what another file says added, or in the place of what was said before.
    fn with_file(mut self, part: Config) -> Config {
        self.files.extend(part.files);
        part.defaults.entries.into_iter().for_each(|entry| self.defaults.insert(entry));
        for (name, options) in part.sections {
            let at = self.place(&name, &options);
            options.entries.into_iter().for_each(|entry| self.sections[at].1.insert(entry));
        }
        self
    }

    /// The place of a section, which is made where `model` has its header if it is not there.
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

/// Opens the file that was named. A pipe that nobody writes to is not waited for: a reload, and all orders behind it, would be.
fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    match file.metadata()?.file_type().is_fifo() {
        true => Err(Error::other("expected a file, got a named pipe")),
        false => Ok(file),
    }
}

/// What is in a file, if it can be a configuration by its size.
fn bytes(file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::other(format!("larger than {MAX_BYTES} bytes; is this the right file?")));
    }
    Ok(bytes)
}

/// One section, looking through to `[DEFAULT]`.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    config: &'a Config,
    name: &'a str,
    own: &'a Options,
}

impl<'a> Section<'a> {
    /// The name as written.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The value of an option, percent references resolved; `None` if neither this section nor `[DEFAULT]` has it, or if
    /// nothing stands behind the `=`: sample lines look like that. `key` is folded to lower case, as in the file. A bad
    /// percent sign shows here, as in Python: a value nobody asks for does no harm.
    pub fn get(&self, key: &str) -> Result<Option<Value<'a>>, ConfigError> {
        match self.raw(&key.to_lowercase()) {
            None => Ok(None),
            Some((section, entry)) => {
                let mut value = Value::new(section, entry);
                value.resolve(|key| self.raw(key).map(|(_, entry)| entry.raw.as_str()), self.name)?;
                Ok(Some(value).filter(|value| !value.text().trim().is_empty()))
            }
        }
    }

    /// As [`Section::get`], but not having the option is an error that says what to write.
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

    /// The names of the section's own options, in file order; those of `[DEFAULT]` are not among them.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.own.entries.iter().map(|entry| entry.key.as_str())
    }

    /// All that the section says, `[DEFAULT]` included: a change of anything that its module reads changes it.
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

    /// An error in the line where the section begins.
    pub fn error(&self, reason: impl Into<String>) -> ConfigError {
        ConfigError::Line { path: self.own.path.to_string(), line: self.own.line, reason: reason.into() }
    }

    /// An error at an option of this section, for an option that should not be there.
    pub fn reject(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        let key = key.to_lowercase();
        match self.raw(&key) {
            Some((section, entry)) => Value::new(section, entry).reject(reason),
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

    /// Puts it behind the others, or in the place of the one that has the key.
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
    /// The first line that begins with a blank and so goes on with the value.
    continued: Option<usize>,
    raw: String,
}
