//! Regular expressions as option values, compiled when the configuration is read. They match bytes, since names in the
//! kernel need not be UTF-8, and have Python's syntax, as in existing configurations.

use super::OptionType;
use crate::config::{ConfigError, Value};
use regex::bytes::Regex;
use thiserror::Error;

/// One regular expression.
#[derive(Clone, Debug)]
pub struct Expression {
    /// Source for `regex` and `fancy_regex`.
    text: String,
    by: By,
}

/// Matching engine.
#[derive(Clone, Debug)]
enum By {
    /// A finite automaton: linear in the text.
    States(Regex),
    /// Backtracking: look-around, backreferences and the like.
    Steps(fancy_regex::Regex),
}

/// An error in a regular expression.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ExpressionError(String);

impl Expression {
    /// Compiles an expression.
    pub fn new(text: &str) -> Result<Expression, ExpressionError> {
        let text = end_of_text(text);
        let fault = match Regex::new(&text) {
            Ok(regex) => return Ok(Expression { text, by: By::States(regex) }),
            // It draws where the fault is over several lines; what it is stands in the last.
            Err(error) => error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
        };
        match fancy_regex::Regex::new(&text) {
            Ok(regex) => Ok(Expression { text, by: By::Steps(regex) }),
            Err(error) if fault.ends_with("not supported") => Err(ExpressionError(error.to_string())),
            Err(_) => Err(ExpressionError(fault)),
        }
    }

    /// Compiles a part of an option's value.
    pub(super) fn read(value: &Value<'_>, text: &str) -> Result<Expression, ConfigError> {
        Expression::new(text).map_err(|fault| value.error(format!("a regular expression ({fault})")))
    }

    /// True if the text contains a match. An expression that backtracks too often does not match; bytes that are not
    /// UTF-8 are U+FFFD to it.
    pub fn matches(&self, text: &[u8]) -> bool {
        match &self.by {
            By::States(regex) => regex.is_match(text),
            By::Steps(regex) => regex.is_match(String::from_utf8_lossy(text).as_ref()).unwrap_or(false),
        }
    }

    /// Returns the expression if it can be matched by an automaton.
    pub fn regular(&self) -> Option<&str> {
        matches!(self.by, By::States(_)).then_some(&self.text)
    }
}

/// Translates Python's `\Z`, the end of the text, to `\z`; in other dialects `\Z` also matches before a final newline.
fn end_of_text(text: &str) -> String {
    let mut escaped = false;
    let end = |c: char| {
        let is = escaped && c == 'Z';
        escaped = !escaped && c == '\\';
        if is {
            'z'
        } else {
            c
        }
    };
    text.chars().map(end).collect()
}

/// An optional regular expression, matched anywhere in a text; without one every text matches.
#[derive(Clone, Debug, Default)]
pub struct Pattern(Option<Expression>);

impl Pattern {
    /// True if every text matches.
    pub fn is_any(&self) -> bool {
        self.0.is_none()
    }

    /// True if the text matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|expression| expression.matches(text))
    }
}

#[cfg(test)]
impl Pattern {
    /// Makes a pattern from a valid expression.
    #[track_caller]
    pub fn of(text: &str) -> Pattern {
        Pattern(Some(Expression::new(text).expect("the test's expression")))
    }
}

impl OptionType for Pattern {
    const EXPECTED: &'static str = "a regular expression, which may match anywhere";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        Expression::read(value, value.text()).map(Some).map(Pattern)
    }
    fn show(&self) -> String {
        self.0.as_ref().map(|expression| expression.text.clone()).unwrap_or_default()
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
    fn a_bad_pattern_is_refused_with_its_fault() {
        let error = pattern("a(b").unwrap_err().to_string();
        assert_eq!(error, "f.conf:2: [s] k: expected a regular expression (unclosed group), got `a(b`");
        let error = pattern("(?<=a*)b").unwrap_err().to_string();
        assert!(!error.contains("not supported"), "{error}");
    }

    #[test]
    fn expressions_of_python_are_understood() {
        for (expression, yes, no) in [
            (r"^(?!sshd).*d$", "crond", "sshd"),
            (r"(?<=-jar )x[.]jar", "java -jar x.jar", "java x.jar"),
            (r"(?<!-jar )x[.]jar", "java x.jar", "java -jar x.jar"),
            (r"^(\w+) \1$", "a a", "a b"),
            (r"^(?P<first>\w+) (?P=first)$", "ab ab", "ab a"),
            (r"^java\Z", "java", "java\n"),
            (r"^(?!x).*\Z", "java", "x"),
            (r"^a++b", "aab", "aac"),
            (r"^C:\\Z$", r"C:\Z", "C:"),
        ] {
            let pattern = pattern(expression).unwrap();
            assert!(pattern.matches(yes.as_bytes()) && !pattern.matches(no.as_bytes()), "{expression}");
        }
        assert!(pattern("^(?!x).*é").unwrap().matches("\u{e9}".as_bytes()));
        assert!(pattern("(?<=a)b").unwrap().matches(b"\xff\xfeab"), "bytes that are no text");
        let hard = Expression::new(r"^(a+)+\1$").unwrap();
        assert!(!hard.matches(&[b"a".repeat(64), b"b".to_vec()].concat()), "it ends");
        assert_eq!((hard.regular(), Expression::new("a").unwrap().regular()), (None, Some("a")));
    }
}
