//! Parser from bytes to sections and options, line by line, as `configparser.RawConfigParser._read` of Python 3 with its default
//! settings: `=` and `:` as delimiters, `#` and `;` for whole-line comments, no duplicates.

use super::text::{blank, shown, trim};
use super::{Config, ConfigError, Entry, Errors, Options, DEFAULT};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn parse(path: &str, bytes: &[u8]) -> Result<Config, ConfigError> {
    let syntax = |line: usize, reason: String| ConfigError::Line { path: path.to_owned(), line, reason };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        syntax(lines(good).max(1), "not valid UTF-8 text; save the file in the UTF-8 encoding".to_owned())
    })?;
    // An editor's byte order mark would otherwise read as text before the first section.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);

    let file: Arc<str> = path.into();
    let mut config = Config {
        files: vec![file.clone()],
        defaults: Options::default(),
        sections: Vec::new(),
        by_name: HashMap::new(),
    };
    let mut errors = Errors::default();
    let mut scope = Scope::Start;
    // The option that an indented line continues, and the indentation it must exceed.
    let mut open = false;
    let mut indent = 0;

    for (at, line) in Lines(text).enumerate().map(|(at, line)| (at + 1, line)) {
        let content = trim(line);
        if content.starts_with(['#', ';']) {
            continue;
        }
        if content.is_empty() {
            // An empty line can stand inside a value; at its end the trimming below takes it off again.
            if open {
                scope.last(&mut config).raw.push('\n');
            }
            continue;
        }
        let depth = line.chars().take_while(|&c| blank(c)).count();
        if open && depth > indent {
            let entry = scope.last(&mut config);
            entry.continued = entry.continued.or(Some(at));
            entry.raw.push('\n');
            entry.raw.push_str(content);
            continue;
        }
        indent = depth;
        if let Some(name) = header(content) {
            open = false;
            scope = if name == DEFAULT {
                Scope::Defaults
            } else if config.by_name.contains_key(name) {
                errors.push(syntax(at, format!("section [{name}] is already above; join the two")));
                Scope::Nowhere
            } else {
                config.by_name.insert(name.to_owned(), config.sections.len());
                let options = Options { path: file.clone(), line: at, ..Options::default() };
                config.sections.push((name.to_owned(), options));
                Scope::Section
            };
            continue;
        }
        let (section, options) = match scope {
            Scope::Start => {
                let shown = shown(content);
                let what = if content.starts_with('[') {
                    "[section]"
                } else {
                    "a section such as [pmda] before anything else"
                };
                let reason = format!("expected {what}, got {shown}");
                errors.push(syntax(at, reason));
                scope = Scope::Nowhere;
                continue;
            }
            Scope::Nowhere => continue,
            Scope::Defaults => (DEFAULT, &mut config.defaults),
            // `Scope::Section` is set right after a push.
            Scope::Section => match config.sections.last_mut() {
                Some((name, options)) => (name.as_str(), options),
                None => continue,
            },
        };
        let (key, value) = match content.find(['=', ':']) {
            Some(split) if !trim(&content[..split]).is_empty() => {
                (trim(&content[..split]), trim(&content[split + 1..]))
            }
            _ => {
                let shown = shown(content);
                errors.push(syntax(at, format!("expected [section], `option = value` or a comment, got {shown}")));
                if content.starts_with('[') {
                    (scope, open) = (Scope::Nowhere, false);
                }
                continue;
            }
        };
        let key = key.to_lowercase();
        if let Some(&before) = options.by_key.get(&key) {
            let before = options.entries[before].line;
            let reason = format!("option `{key}` of [{section}] is already set in line {before}; keep one of the two");
            errors.push(syntax(at, reason));
            open = true;
            continue;
        }
        options.by_key.insert(key.clone(), options.entries.len());
        options.entries.push(Entry { key, path: file.clone(), line: at, continued: None, raw: value.to_owned() });
        open = true;
    }

    errors.end()?;
    let all = config.sections.iter_mut().map(|(_, options)| options).chain([&mut config.defaults]);
    for entry in all.flat_map(|options| &mut options.entries) {
        entry.raw.truncate(entry.raw.trim_end_matches(blank).len());
    }
    Ok(config)
}

#[derive(Clone, Copy)]
enum Scope {
    Start,
    Defaults,
    Section,
    /// No section, below a wrong header: its lines are left out, since they would cause further errors.
    Nowhere,
}

impl Scope {
    /// Returns the option read last. May only be called while one is open.
    fn last(self, config: &mut Config) -> &mut Entry {
        let options = match self {
            Scope::Section => config.sections.last_mut().map(|(_, options)| options),
            Scope::Start | Scope::Defaults | Scope::Nowhere => Some(&mut config.defaults),
        };
        options.and_then(|options| options.entries.last_mut()).expect("`open` is set only in a section with an entry")
    }
}

/// Returns the name in `[name]`. As in Python it ends at the last bracket of the line, and the rest is ignored.
fn header(content: &str) -> Option<&str> {
    let inside = content.strip_prefix('[')?;
    inside.rfind(']').filter(|&end| end > 0).map(|end| &inside[..end])
}

fn lines(bytes: &[u8]) -> usize {
    let returns = bytes.iter().enumerate().filter(|&(at, &b)| b == b'\r' && bytes.get(at + 1) != Some(&b'\n')).count();
    bytes.iter().filter(|&&b| b == b'\n').count() + returns + 1
}

/// Lines that end as Python's universal newlines: with `\n`, `\r\n` or a lone `\r`.
struct Lines<'a>(&'a str);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.find(['\n', '\r']).unwrap_or(self.0.len());
        let (line, rest) = self.0.split_at(end);
        self.0 = rest.strip_prefix("\r\n").or_else(|| rest.get(1..)).unwrap_or("");
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Config {
        Config::parse("f.conf", text.as_bytes()).unwrap()
    }

    fn text(text: &str, section: &str, key: &str) -> Option<String> {
        read(text).section(section).unwrap().get(key).unwrap().map(|value| value.text().to_owned())
    }

    fn fault(text: impl AsRef<[u8]>) -> String {
        Config::parse("f.conf", text.as_ref()).unwrap_err().to_string()
    }

    #[test]
    fn both_delimiters_and_blanks_around_them_are_taken() {
        let file = "[s]\na = 1\nb:2\nc  :  x = y \nd=\n e\u{a0}= 5";
        assert_eq!(text(file, "s", "a").as_deref(), Some("1"));
        assert_eq!(text(file, "s", "b").as_deref(), Some("2"));
        assert_eq!(text(file, "s", "c").as_deref(), Some("x = y"));
        assert_eq!(text(file, "s", "d").as_deref(), Some("\ne\u{a0}= 5"), "an indented line goes on");
        assert_eq!(text(file, "s", "f"), None);
    }

    #[test]
    fn keys_fold_case_and_sections_do_not() {
        let config = read("[PMDA]\nModules = NetProc\n");
        assert!(config.section("pmda").is_none());
        let section = config.section("PMDA").unwrap();
        assert_eq!(section.get("MODULES").unwrap().unwrap().text(), "NetProc");
        assert_eq!(section.keys().collect::<Vec<_>>(), ["modules"]);
    }

    #[test]
    fn comments_are_whole_lines() {
        let file = "# top\n[s] # after\n  ; x\na = 1 # kept\n  # dropped, and the value goes on:\n  two\n";
        assert_eq!(text(file, "s", "a").as_deref(), Some("1 # kept\ntwo"));
    }

    #[test]
    fn values_go_on_in_indented_lines_and_over_empty_ones() {
        let file = "[s]\n  a = 1\n\n    2\n\n  b = 3\n\n[t]\nc = 4\r\n\t[u]\r\n";
        assert_eq!(text(file, "s", "a").as_deref(), Some("1\n\n2"));
        assert_eq!(text(file, "s", "b").as_deref(), Some("3"));
        assert_eq!(text(file, "t", "c").as_deref(), Some("4\n[u]"), "an indented header is no header");
        assert_eq!(read(file).sections().map(|s| s.name().to_owned()).collect::<Vec<_>>(), ["s", "t"]);
    }

    #[test]
    fn defaults_show_in_every_section_and_may_be_reopened() {
        let file = "[DEFAULT]\na = 1\n[s]\nb = 2\n[DEFAULT]\nc = 3\n[t]\na = 4\n";
        assert_eq!(text(file, "s", "a").as_deref(), Some("1"));
        assert_eq!(text(file, "s", "c").as_deref(), Some("3"));
        assert_eq!(text(file, "t", "a").as_deref(), Some("4"));
        assert!(read(file).section("DEFAULT").is_none());
    }

    #[test]
    fn faults_name_file_and_line() {
        assert_eq!(
            fault("\n\nmodules = x\n[s]"),
            "f.conf:3: expected a section such as [pmda] before anything else, got `modules = x`"
        );
        assert_eq!(
            fault("[s]\n\nnovalue\n"),
            "f.conf:3: expected [section], `option = value` or a comment, got `novalue`"
        );
        assert_eq!(fault("[s\na = 1"), "f.conf:1: expected [section], got `[s`");
        assert_eq!(fault("[s]\n= 5\n"), "f.conf:2: expected [section], `option = value` or a comment, got `= 5`");
        assert_eq!(fault("[s]\n[]\n"), "f.conf:2: expected [section], `option = value` or a comment, got `[]`");
        assert_eq!(fault("[s]\n[t]\n[s]"), "f.conf:3: section [s] is already above; join the two");
        assert_eq!(
            fault("[s]\na=1\n\nA=2"),
            "f.conf:4: option `a` of [s] is already set in line 2; keep one of the two"
        );
        assert!(fault("[DEFAULT]\na=1\n[DEFAULT]\na=2").contains("option `a` of [DEFAULT] is already set in line 2"));
        assert!(fault(b"[s]\r\na = 1\rb = \xff\n").starts_with("f.conf:3: not valid UTF-8"));
        assert!(fault(b"\xff").starts_with("f.conf:1: not valid UTF-8"));
    }

    #[test]
    fn all_faults_of_a_file_are_told_at_once() {
        let file = "a = 1\nb\n[s]\nc\nd = 1\n  2\nd = 3\n  4\n[t\nd = 5\nd = 6\n[s]\nd = 7\n[u]\ne\n";
        let error = Config::parse("f.conf", file.as_bytes()).unwrap_err();
        let lines: Vec<usize> = error.each().iter().map(|error| error.line()).collect();
        assert_eq!(lines, [1, 4, 7, 9, 12, 15], "{error}");
        assert_eq!(error.to_string().matches("f.conf:").count(), 6, "{error}");
    }

    #[test]
    fn line_ends_of_other_systems_and_a_byte_order_mark_are_taken() {
        assert_eq!(text("\u{feff}[s]\r\na = 1\r\rb = 2\r", "s", "b").as_deref(), Some("2"));
        assert_eq!(text("[s]\ra = 1\r", "s", "a").as_deref(), Some("1"));
    }

    #[test]
    fn the_last_bracket_ends_a_header() {
        assert!(read("[a] x]  junk").section("a] x").is_some());
        assert!(read("[a]b=c").section("a").is_some());
    }
}
