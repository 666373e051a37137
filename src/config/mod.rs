//! The configuration file: the dialect of Python's `configparser` (which every existing `bcc.conf` is written in), with
//! the file and line of each value kept for messages. Reads bytes; yields [`Config`], and from it [`Settings`].

mod interpolate;
mod parse;
mod settings;
mod text;
mod value;

pub use settings::{Cost, Fault, ModuleSettings, Settings};
pub use value::Value;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
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

    /// The line of the file, from 1; 0 for an error of the whole file.
    pub fn line(&self) -> usize {
        match self {
            ConfigError::Line { line, .. } | ConfigError::Value { line, .. } => *line,
            ConfigError::Several(errors) => errors.first().map_or(0, ConfigError::line),
            ConfigError::Read { .. } | ConfigError::Missing { .. } => 0,
        }
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

/// A parsed file: sections and options in file order, values as written.
#[derive(Clone, Debug)]
pub struct Config {
    path: String,
    defaults: Options,
    sections: Vec<(String, Options)>,
    by_name: HashMap<String, usize>,
}

impl Config {
    /// Reads and parses the file at `path`.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let shown = path.display().to_string();
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Err(error) => Err(ConfigError::Read { path: shown, reason: error.to_string() }),
            Ok(_) if bytes.len() as u64 > MAX_BYTES => {
                let reason = format!("larger than {MAX_BYTES} bytes; is this the right file?");
                Err(ConfigError::Read { path: shown, reason })
            }
            Ok(_) => Config::parse(&shown, &bytes),
        }
    }

    /// Parses `bytes`, in time linear in their number. `path` is for messages only. Never panics (a fuzz target).
    pub fn parse(path: &str, bytes: &[u8]) -> Result<Config, ConfigError> {
        parse::parse(path, bytes)
    }

    /// The file as it was named to [`Config::read`].
    pub fn path(&self) -> &str {
        &self.path
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
            let at = *self.by_name.entry(name.clone()).or_insert_with(|| {
                self.sections.push((name.clone(), Options::default()));
                self.sections.len() - 1
            });
            for entry in &options.entries {
                let Config { defaults, sections, .. } = &mut self;
                let known = sections[at].1.find(&entry.key).or(defaults.find(&entry.key));
                if known.is_none_or(|known| known.raw.trim().is_empty()) {
                    sections[at].1.insert(entry.clone());
                }
            }
        }
        if let Some(&at) = self.by_name.get("pmda") {
            let modules = &mut self.sections[at].1;
            let line = modules.find("modules").map_or(0, |entry| entry.line);
            modules.insert(Entry { key: "modules".into(), line, raw: names.join(",") });
        }
        self
    }

    /// The same with this value for an option of a section that it has.
    pub fn with(mut self, section: &str, key: &str, value: &str) -> Config {
        if let Some(&at) = self.by_name.get(section) {
            let key = key.to_lowercase();
            self.sections[at].1.insert(Entry { key, line: 0, raw: value.to_owned() });
        }
        self
    }

    fn missing(&self, reason: String) -> ConfigError {
        ConfigError::Missing { path: self.path.clone(), reason }
    }
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
                let mut value = Value::new(&self.config.path, section, entry);
                value.resolve(|key| self.raw(key).map(|(_, entry)| entry.raw.as_str()), self.name)?;
                Ok(Some(value).filter(|value| !value.text().trim().is_empty()))
            }
        }
    }

    /// As [`Section::get`], but not having the option is an error that says what to write.
    pub fn require(&self, key: &str, example: &str) -> Result<Value<'a>, ConfigError> {
        self.get(key)?.ok_or_else(|| match self.raw(key) {
            Some(_) => self.reject(key, format!("there is no value; write `{key} = {example}`")),
            None => ConfigError::Line {
                path: self.config.path.clone(),
                line: self.own.line,
                reason: format!("[{}] has no option `{key}`; add a line `{key} = {example}`", self.name),
            },
        })
    }

    /// The section's own options with their lines, in file order; those of `[DEFAULT]` are not among them.
    pub fn keys(&self) -> impl Iterator<Item = (&'a str, usize)> + use<'a> {
        self.own.entries.iter().map(|entry| (entry.key.as_str(), entry.line))
    }

    /// An error at an option of this section, for an option that should not be there.
    pub fn reject(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        let key = key.to_lowercase();
        match self.raw(&key) {
            Some((section, entry)) => Value::new(&self.config.path, section, entry).reject(reason),
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
    /// The line of the section's header.
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
    line: usize,
    raw: String,
}
