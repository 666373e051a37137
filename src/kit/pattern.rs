//! Regular expressions as option values, compiled when the configuration is read, and matched against bytes: what the kernel
//! calls a name need not be UTF-8.

use super::OptionType;
use crate::config::{ConfigError, Value};
use regex::bytes::Regex;

/// A regular expression that is looked for anywhere in a text; without one every text will do.
#[derive(Clone, Debug, Default)]
pub struct Pattern(Option<Regex>);

impl Pattern {
    /// Whether the text will do.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|regex| regex.is_match(text))
    }
}

/// Compiles a part of an option's value.
pub(super) fn compile(value: &Value<'_>, expression: &str) -> Result<Regex, ConfigError> {
    Regex::new(expression).map_err(|error| {
        // It draws where the fault is over several lines; what it is stands in the last.
        let error = error.to_string();
        let fault = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
        value.error(format!("a regular expression ({fault})"))
    })
}

impl OptionType for Pattern {
    const EXPECTED: &'static str = "a regular expression, which may match anywhere";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        compile(value, value.text()).map(Some).map(Pattern)
    }
    fn show(&self) -> String {
        self.0.as_ref().map(Regex::to_string).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn pattern(text: &str) -> Result<Pattern, ConfigError> {
        let config = Config::parse("f.conf", format!("[s]\nk = {text}\n").as_bytes()).unwrap();
        let value = config.section("s").unwrap().get("k").unwrap().unwrap();
        Pattern::read(&value)
    }

    #[test]
    fn a_pattern_matches_anywhere_in_bytes() {
        let java = pattern("ja?va$").unwrap();
        assert!(java.matches(b"\xc3 java"));
        assert!(!java.matches(b"javac"));
        assert!(Pattern::default().matches(b""));
    }

    #[test]
    fn a_bad_pattern_is_refused_with_its_fault_when_the_configuration_is_read() {
        let error = pattern("a(b").unwrap_err().to_string();
        assert_eq!(error, "f.conf:2: [s] k: expected a regular expression (unclosed group), got `a(b`");
    }
}
