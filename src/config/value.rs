//! The value of an option with its place, read as text, boolean, integer or list.

use super::interpolate::interpolate;
use super::text::{shown, trim};
use super::{ConfigError, Entry, Notes};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// End of a message about a value that is followed by a comment.
pub(super) const COMMENTS: &str = "; a comment needs a line of its own";

/// Returns the part of a text that looks like a comment.
pub(super) fn comment(text: &str) -> Option<&str> {
    let mut signs = text.match_indices(['#', ';']);
    signs.find(|&(at, _)| text[..at].ends_with([' ', '\t'])).map(|(at, _)| &text[at..])
}

/// The value of an option. Errors of its methods name the file, the line, the section and the option.
#[derive(Clone, Debug)]
pub struct Value<'a> {
    path: &'a str,
    section: &'a str,
    key: &'a str,
    line: usize,
    continued: Option<usize>,
    raw: &'a str,
    text: String,
    notes: Option<&'a Notes>,
}

impl<'a> Value<'a> {
    pub(super) fn new(section: &'a str, entry: &'a Entry, notes: Option<&'a Notes>) -> Value<'a> {
        let Entry { key, path, line, continued, raw } = entry;
        Value { path, section, key, line: *line, continued: *continued, raw, text: String::new(), notes }
    }

    pub(super) fn resolve(&mut self, find: impl Fn(&str) -> Option<&'a str>, section: &str) -> Result<(), ConfigError> {
        self.text = interpolate(self.raw, section, find).map_err(|error| self.reject(error.to_string()))?;
        Ok(())
    }

    /// Returns the whole value; lines of a value that continues below its key are joined by a newline.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the file, as it was named to the reader of the configuration.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// Returns the option's name in lower case.
    pub fn key(&self) -> &'a str {
        self.key
    }

    /// Returns the line of the option in the file, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Reads a boolean as `ConfigParser.getboolean`: `1 yes true on` and `0 no false off` in any case.
    pub fn bool(&self) -> Result<bool, ConfigError> {
        match self.text.to_lowercase().as_str() {
            "1" | "yes" | "true" | "on" => Ok(true),
            "0" | "no" | "false" | "off" => Ok(false),
            _ => Err(self.error("a boolean (True or False)")),
        }
    }

    /// Reads an integer as `ConfigParser.getint`, which is `int()` in base ten, if `T` can hold it.
    pub fn int<T: TryFrom<i128>>(&self) -> Result<T, ConfigError> {
        let bits = (size_of::<T>() as u32 * 8).min(64);
        let signed = T::try_from(-1).is_ok();
        let (low, high) =
            if signed { (-1i128 << (bits - 1), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
        let number = self.number().filter(|number| (low..=high).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.error(format_args!("a whole number from {low} to {high}")))
    }

    /// Reads an integer as [`Value::int`], in a range.
    pub fn int_in<T>(&self, range: RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let number = self.number().and_then(|number| T::try_from(number).ok()).filter(|number| range.contains(number));
        number.ok_or_else(|| self.error(format_args!("a whole number from {} to {}", range.start(), range.end())))
    }

    /// Reads an integer as [`Value::int_in`], but replaces one out of the range by the nearest in it.
    pub fn nearest<T>(&self, range: &RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: TryFrom<i128> + Into<i128> + Copy + Display,
    {
        let (low, high) = (*range.start(), *range.end());
        let number = self.number().map(|number| number.clamp(low.into(), high.into()));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.error(format_args!("a whole number from {low} to {high}")))
    }

    /// Reads an integer as [`Value::nearest`], with a warning if it was out of the range: an agent whose configuration worked so far
    /// must not end for a limit of ours.
    pub fn clamped<T>(&self, range: RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: TryFrom<i128> + Into<i128> + Copy + Display,
    {
        let nearest = self.nearest(&range)?;
        if self.number() != Some(nearest.into()) {
            let (low, high) = (range.start(), range.end());
            self.warn(format_args!("{} is not from {low} to {high}; it counts as {nearest}", shown(&self.text)));
        }
        Ok(nearest)
    }

    /// Returns the entries between commas, without blanks around them. Never empty: an empty value is one empty entry, and a final
    /// comma makes one more.
    pub fn list(&self) -> Vec<&str> {
        self.text.split(',').map(trim).collect()
    }

    /// Makes the error for a value that the option does not take: ``expected <expected>, got `<text>` ``.
    pub fn error(&self, expected: impl Display) -> ConfigError {
        let hint = match self.continued {
            Some(next) => format!("; line {next} begins with a blank, so it continues line {}", self.line),
            None if self.comment().is_some() => COMMENTS.to_owned(),
            None => String::new(),
        };
        self.reject(format!("expected {expected}, got {}{hint}", shown(&self.text)))
    }

    /// Returns the part of the value that looks like a comment, though it belongs to the value.
    pub fn comment(&self) -> Option<&str> {
        comment(&self.text)
    }

    /// Adds a note about a part that looks like a comment, for options that take any text.
    pub fn note_comment(&self) {
        if let Some(comment) = self.comment().filter(|comment| comment.starts_with('#')) {
            self.warn(format_args!("{} counts as part of the value{COMMENTS}", shown(comment)));
        }
    }

    /// Makes an error at this option in the caller's words.
    pub fn reject(&self, reason: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            path: self.path.to_owned(),
            line: self.line,
            section: self.section.to_owned(),
            key: self.key.to_owned(),
            reason: reason.into(),
        }
    }

    /// Notes that the option is used differently from how it is written.
    pub fn warn(&self, words: impl Display) {
        if let Some(notes) = self.notes {
            notes.warn(self.reject(words.to_string()));
        }
    }

    /// Parses a number: an optional sign, digits, single underscores between digits. `None` also for numbers beyond `i128`: no option
    /// is so wide, so the message about the range fits them.
    fn number(&self) -> Option<i128> {
        let text = trim(&self.text);
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let good = digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
        good.then(|| text.replace('_', "").parse().ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn with<R>(value: &str, read: impl Fn(&Value<'_>) -> R) -> R {
        let config = Config::parse("f.conf", format!("[s]\nk = {value}\n").as_bytes()).unwrap();
        let value = config.section("s").unwrap().get("k").unwrap().unwrap();
        read(&value)
    }

    #[test]
    fn booleans_are_those_of_configparser() {
        for yes in ["1", "yes", "True", "ON"] {
            assert!(with(yes, |v| v.bool().unwrap()), "{yes}");
        }
        for no in ["0", "no", "FALSE", "off"] {
            assert!(!with(no, |v| v.bool().unwrap()), "{no}");
        }
        for bad in ["y", "2", "true # really"] {
            assert!(with(bad, |v| v.bool().is_err()), "{bad}");
        }
        assert_eq!(
            with("maybe", |v| v.bool().unwrap_err().to_string()),
            "f.conf:2: [s] k: expected a boolean (True or False), got `maybe`"
        );
    }

    #[test]
    fn a_line_that_goes_on_with_a_number_is_named() {
        let text = "[s]\nk = 7\n# a comment\n queued = True\n";
        let config = Config::parse("f.conf", text.as_bytes()).unwrap();
        let value = config.section("s").unwrap().get("k").unwrap().unwrap();
        let said = value.int_in(0..=9).unwrap_err().to_string();
        assert!(said.starts_with("f.conf:2: [s] k: expected a whole number from 0 to 9, got `7"), "{said}");
        assert!(said.ends_with("; line 4 begins with a blank, so it continues line 2"), "{said}");
    }

    #[test]
    fn integers_are_those_of_python() {
        for (text, number) in [("7", 7), ("+007", 7), ("-3", -3), ("1_000", 1000)] {
            assert_eq!(with(text, |v| v.int::<i32>().unwrap()), number, "{text}");
        }
        for bad in ["0x10", "1__0", "_1", "1_", "-", "+-1", "1.0", "1 2", "99999999999999999999999999999999999999999"] {
            assert!(with(bad, |v| v.int::<i64>().is_err()), "{bad}");
        }
    }

    #[test]
    fn numbers_out_of_range_say_the_range() {
        let text = |error: ConfigError| error.to_string();
        assert!(with("-1", |v| text(v.int::<u8>().unwrap_err())).ends_with("a whole number from 0 to 255, got `-1`"));
        assert!(with("128", |v| text(v.int::<i8>().unwrap_err())).contains("from -128 to 127"));
        assert_eq!(with("18446744073709551615", |v| v.int::<u64>().unwrap()), u64::MAX);
        assert_eq!(with("-9223372036854775808", |v| v.int::<i64>().unwrap()), i64::MIN);
        assert!(with("4096", |v| text(v.int_in::<u16>(0..=4095).unwrap_err())).contains("from 0 to 4095, got `4096`"));
        assert!(with("-1", |v| v.int_in::<u16>(0..=4095).is_err()));
    }

    #[test]
    fn numbers_out_of_a_range_of_ours_are_the_nearest_in_it() {
        for (text, number) in [("-7", 1), ("0", 1), ("1", 1), ("127", 127), ("200", 127), ("99999999999999999999", 127)]
        {
            assert_eq!(with(text, |v| v.clamped(1..=127u32).unwrap()), number, "{text}");
        }
        assert!(with("many", |v| v.clamped(1..=127u32).is_err()));
    }

    #[test]
    fn an_option_without_a_value_is_as_if_it_were_not_written() {
        let config = Config::parse("f.conf", b"[DEFAULT]\nd = 1\n[s]\nk =\nd =\n").unwrap();
        let section = config.section("s").unwrap();
        assert!(section.get("k").unwrap().is_none() && section.get("d").unwrap().is_none());
        let error = section.require("k", "7").unwrap_err().to_string();
        assert_eq!(error, "f.conf:4: [s] k: there is no value; write `k = 7`");
    }

    #[test]
    fn lists_are_trimmed_and_keep_empty_entries() {
        assert_eq!(with("a, b ,c d,", |v| v.list().join("|")), "a|b|c d|");
    }

    #[test]
    fn shown_values_stay_on_one_short_line() {
        assert_eq!(shown("a\nb"), "`a\\nb`");
        assert_eq!(shown(&"x".repeat(100)).len(), 65);
    }
}
