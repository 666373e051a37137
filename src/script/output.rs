//! Output of bpftrace with `-f json`: each line has the number of probes, rows of maps, or text. It contains strings that processes
//! choose, so nothing in it is trusted.

use super::source::{Kind, ScriptMap};
use crate::kit::{self, secret};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Largest number of rows of a map that are kept.
pub const MAX_ROWS: usize = 10_000;
/// Largest name of a row in bytes.
const MAX_NAME: usize = 512;
/// Largest text value in bytes.
pub const MAX_TEXT: usize = 4096;
/// First characters of a stack's text.
const STACK: &str = "\n    ";
/// Largest text of a row's keys in bytes.
const MAX_KEY: usize = 1024;

/// A line of output.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The number of probes that are attached.
    Attached(u64),
    /// The rows of maps.
    Maps(BTreeMap<String, Value>),
    /// Text of `printf` and the like.
    Text(String),
    /// Events that bpftrace lost before it could print them.
    Lost(u64),
    /// Lines that no metric needs.
    Other,
}

impl Line {
    /// Parses a line; `None` if it is not JSON, or not of a form that bpftrace writes.
    pub fn parse(line: &[u8]) -> Option<Line> {
        let line = String::from_utf8_lossy(line);
        let Value::Object(mut line) = serde_json::from_str(&line).ok()? else { return None };
        let data = line.remove("data")?;
        let number = |name: &str| data.get(name).and_then(Value::as_u64);
        Some(match line.get("type")?.as_str()? {
            "attached_probes" => Line::Attached(number("probes")?),
            "lost_events" => Line::Lost(number("events")?),
            "map" | "hist" | "stats" => Line::Maps(maps(data)?),
            "printf" | "time" | "cat" | "join" | "strftime" => match data {
                Value::String(text) => Line::Text(text),
                other => Line::Text(text(&other)),
            },
            _ => Line::Other,
        })
    }
}

fn maps(data: Value) -> Option<BTreeMap<String, Value>> {
    match data {
        Value::Object(maps) => Some(maps.into_iter().collect()),
        _ => None,
    }
}

/// The value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A counter that only grows.
    Count(u64),
    /// Any other number.
    Number(i64),
    /// A text.
    Text(String),
    /// `stats()`: number of values, their average and their sum.
    Stats(u64, i64, i64),
}

/// A row of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name of its instance, unique among the rows; empty for a single value.
    pub name: String,
    /// The text of the keys, as bpftrace writes it.
    pub key: String,
    /// The value.
    pub cell: Cell,
}

/// Parses the rows of a map. Values that do not fit the map's kind are left out, as are rows beyond [`MAX_ROWS`].
pub fn rows(map: &ScriptMap, value: &Value) -> Vec<Row> {
    let mut rows = Rows::default();
    match (map.keys, value) {
        (0, value) => rows.add(map, "", value),
        (_, Value::Object(keyed)) => {
            // A command's name can be the text of a stack: nobody takes the name of what has none.
            let (stacks, plain): (Vec<_>, Vec<_>) = keyed.iter().partition(|(key, _)| key.contains(STACK));
            for (key, value) in plain.into_iter().chain(stacks) {
                rows.add(map, key, value);
            }
        }
        _ => {}
    }
    rows.rows
}

#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    /// Names of rows, each with the highest number that was appended to it; 1 if none was.
    names: BTreeMap<String, usize>,
}

impl Rows {
    fn add(&mut self, map: &ScriptMap, key: &str, value: &Value) {
        let own = series(key, map.keys);
        match (map.kind, value) {
            (Kind::Histogram, Value::Array(buckets)) => {
                for bucket in buckets.iter().filter_map(Value::as_object) {
                    let Some(count) = bucket.get("count").and_then(Value::as_u64) else { continue };
                    let range = range(bucket);
                    let name = if own.is_empty() { range } else { format!("{range}::{own}") };
                    self.push(name, key, Cell::Count(count));
                }
            }
            (Kind::Histogram, _) => {}
            (Kind::Stats, Value::Object(stats)) => {
                let (count, number) =
                    (stats.get("count").and_then(Value::as_u64), |name| stats.get(name).and_then(whole));
                if let (Some(count), Some(average), Some(total)) = (count, number("average"), number("total")) {
                    self.push(own, key, Cell::Stats(count, average, total));
                }
            }
            (Kind::Stats, _) => {}
            (Kind::Count, value) => {
                if let Some(count) = value.as_u64() {
                    self.push(own, key, Cell::Count(count));
                }
            }
            (Kind::Text, value) => self.push(own, key, Cell::Text(cut(text(value), MAX_TEXT))),
            (Kind::Sum | Kind::Level, value) => {
                if let Some(number) = whole(value) {
                    self.push(own, key, Cell::Number(number));
                }
            }
        }
    }

    fn push(&mut self, name: String, key: &str, cell: Cell) {
        if self.rows.len() >= MAX_ROWS {
            return;
        }
        let name = self.free(name);
        self.rows.push(Row { name, key: cut(key.trim().to_owned(), MAX_KEY), cell });
    }
}

impl Rows {
    /// Returns the name, or the first `NAME~N` that no row has.
    fn free(&mut self, name: String) -> String {
        let mut times = self.names.get(&name).copied().unwrap_or(0);
        let mut free = name.clone();
        if times > 0 {
            while self.names.contains_key(&free) {
                times += 1;
                free = format!("{name}~{times}");
            }
            self.names.insert(free.clone(), 1);
        }
        self.names.insert(name, times.max(1));
        free
    }
}

/// Parses a whole number. A number beyond `i64` but within `u64` keeps its 64 bits.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_u64().map(|number| number as i64)).or_else(|| value.as_bool().map(i64::from))
}

/// Formats the bounds of a bucket, as PCP's bpftrace agent does.
fn range(bucket: &Map<String, Value>) -> String {
    let bound =
        |name: &str, none: &str| bucket.get(name).and_then(whole).map_or(none.into(), |bound| bound.to_string());
    format!("{}-{}", bound("min", "-inf"), bound("max", "inf"))
}

/// Makes the name of a row from the text of its keys: `bash,17` becomes `bash::17` if there are two keys.
fn series(text: &str, keys: usize) -> String {
    let parts: Vec<&str> = text.split(',').collect();
    match (keys, parts.len() == keys) {
        (0, _) => String::new(),
        (_, true) => parts.iter().map(|part| word(part)).collect::<Vec<_>>().join("::"),
        (_, false) => word(text),
    }
}

/// Makes a part of a name from a key, different for different keys: the lines of a stack with `;` between them, and `_` for an empty
/// key. A long key is cut and ends with a hash, which is the same after a restart and for which nobody can find a second key.
fn word(key: &str) -> String {
    let word = match key {
        "" => "_".into(),
        "_" => r"\x5f".into(),
        key if key.starts_with(STACK) => {
            let lines = key.lines().map(str::trim).filter(|line| !line.is_empty());
            lines.map(|line| kit::word(line.as_bytes())).collect::<Vec<_>>().join(";")
        }
        key => kit::word(key.as_bytes()),
    };
    if word.len() <= MAX_NAME {
        return word;
    }
    let end = format!("~{:016x}", secret().hash(key.as_bytes()));
    cut(word, MAX_NAME - end.len()) + &end
}

/// Returns a value as text: a string as it is, anything else as JSON.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    }
}

/// Cuts a text to at most `most` bytes.
pub fn cut(mut text: String, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(keys: usize, kind: Kind) -> ScriptMap {
        ScriptMap { name: "@a".into(), keys, kind, has_stacks: false, is_cleared: false, is_printed: false }
    }

    /// Parses the rows of `@a` from a line of bpftrace 0.17.
    fn read(keys: usize, kind: Kind, line: &str) -> Vec<(String, Cell)> {
        let Some(Line::Maps(maps)) = Line::parse(line.as_bytes()) else { panic!("{line}") };
        rows(&map(keys, kind), &maps["@a"]).into_iter().map(|row| (row.name, row.cell)).collect()
    }

    fn row(name: &str, cell: Cell) -> (String, Cell) {
        (name.into(), cell)
    }

    #[test]
    fn lines_of_bpftrace_are_taken_apart() {
        let line = |line: &str| Line::parse(line.as_bytes());
        assert_eq!(line(r#"{"type": "attached_probes", "data": {"probes": 5}}"#), Some(Line::Attached(5)));
        assert_eq!(line(r#"{"type": "printf", "data": "hello \"x\" \n"}"#), Some(Line::Text("hello \"x\" \n".into())));
        assert_eq!(line(r#"{"type": "time", "data": "01:00:48\n"}"#), Some(Line::Text("01:00:48\n".into())));
        assert_eq!(line(r#"{"type": "lost_events", "data": {"events": 7}}"#), Some(Line::Lost(7)));
        assert_eq!(line(r#"{"type": "value", "data": 1}"#), Some(Line::Other));
        for wrong in ["", "x", "[]", "{}", r#"{"type": 1, "data": 2}"#, r#"{"type": "map", "data": 3}"#] {
            assert_eq!(line(wrong), None, "{wrong}");
        }
        assert_eq!(line(&"[".repeat(100_000)), None);
    }

    #[test]
    fn values_and_keys_become_rows() {
        let one = r#"{"type": "map", "data": {"@a": 2995}}"#;
        assert_eq!(read(0, Kind::Count, one), [row("", Cell::Count(2995))]);
        let less = r#"{"type": "map", "data": {"@a": -3}}"#;
        assert_eq!(read(0, Kind::Level, less), [row("", Cell::Number(-3))]);
        assert_eq!(read(0, Kind::Count, less), [], "no count");
        let text = r#"{"type": "map", "data": {"@a": "te\"xt"}}"#;
        assert_eq!(read(0, Kind::Text, text), [row("", Cell::Text("te\"xt".into()))]);
        let two = r#"{"type": "map", "data": {"@a": {"bash,17": 1, "a, b,18": 2, "a b,17": 3, "a_b,17": 4}}}"#;
        let rows = read(2, Kind::Count, two);
        let names: Vec<&str> = rows.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, [r"a\x20b::17", r"a\x2c\x20b\x2c18", "a_b::17", "bash::17"]);
        let stack =
            r#"{"type": "map", "data": {"@a": {"\n    perf_syscall_enter+397\n    __traceiter_sys_enter+49\n": 5}}}"#;
        let expected = [row("perf_syscall_enter+397;__traceiter_sys_enter+49", Cell::Count(5))];
        assert_eq!(read(1, Kind::Count, stack), expected);
        assert_eq!(read(1, Kind::Count, r#"{"type": "map", "data": {"@a": {}}}"#), []);
    }

    #[test]
    fn whoever_else_is_there_a_row_has_one_name() {
        let long = format!("{}{{}}", "x".repeat(MAX_NAME));
        let (one, other) = (long.replace("{}", "a"), long.replace("{}", "b"));
        let keys =
            ["a", "a b", "a_b", r"a\x20b", "a ", " a", "\na", "a;b", "\n    a\n    b\n", "a~2", "", "_", &one, &other];
        let names = |keys: &[&str]| {
            let data: Map<String, Value> = keys.iter().map(|key| (String::from(*key), 1.into())).collect();
            let rows = rows(&map(1, Kind::Count), &Value::Object(data));
            rows.into_iter().map(|row| row.name).collect::<std::collections::BTreeSet<_>>()
        };
        let alone: Vec<_> = keys.iter().flat_map(|key| names(&[key])).collect();
        assert_eq!(names(&keys), alone.iter().cloned().collect());
        assert_eq!(alone[..4], ["a", r"a\x20b", "a_b", r"a\x5cx20b"]);
        assert!(alone[13].len() == MAX_NAME && alone[12][..400] == alone[13][..400], "{}", alone[13]);
        assert!(alone[13].ends_with(&format!("~{:016x}", secret().hash(other.as_bytes()))), "{}", alone[13]);
        // The name of a command that is written like a stack.
        let forged = r#"{"type": "map", "data": {"@a": {"\n    bash\n": 1, "bash": 2}}}"#;
        assert_eq!(read(1, Kind::Count, forged), [row("bash", Cell::Count(2)), row("bash~2", Cell::Count(1))]);
    }

    #[test]
    fn statistics_are_rows() {
        let one = r#"{"type": "stats", "data": {"@a": {"count": 2995, "average": 25562, "total": 76560377}}}"#;
        assert_eq!(read(0, Kind::Stats, one), [row("", Cell::Stats(2995, 25562, 76560377))]);
        let by = r#"{"type": "stats", "data": {"@a": {"find": {"count": 2, "average": -3, "total": -6}}}}"#;
        assert_eq!(read(1, Kind::Stats, by), [row("find", Cell::Stats(2, -3, -6))]);
        assert_eq!(read(0, Kind::Level, r#"{"type": "stats", "data": {"@a": 25560}}"#), [row("", Cell::Number(25560))]);
    }

    #[test]
    fn buckets_are_rows() {
        let one = r#"{"type": "hist", "data": {"@a": [{"max": -1, "count": 1}, {"min": 10, "max": 19, "count": 0}, {"min": 50, "count": 5}]}}"#;
        let counts = [row("-inf--1", Cell::Count(1)), row("10-19", Cell::Count(0)), row("50-inf", Cell::Count(5))];
        assert_eq!(read(0, Kind::Histogram, one), counts);
        let by = r#"{"type": "hist", "data": {"@a": {"bash,1": [{"min": 0, "max": 49, "count": 9}]}}}"#;
        assert_eq!(read(2, Kind::Histogram, by), [row("0-49::bash::1", Cell::Count(9))]);
    }

    #[test]
    fn rows_and_texts_are_bounded() {
        let keys: Vec<String> = (0..MAX_ROWS + 5).map(|key| format!("\"{key}\": 1")).collect();
        let line = format!("{{\"type\": \"map\", \"data\": {{\"@a\": {{{}}}}}}}", keys.join(", "));
        assert_eq!(read(1, Kind::Count, &line).len(), MAX_ROWS);
        let long = format!("{{\"type\": \"map\", \"data\": {{\"@a\": \"{}\"}}}}", "\u{e9}".repeat(MAX_TEXT));
        assert_eq!(read(0, Kind::Text, &long), [row("", Cell::Text("\u{e9}".repeat(MAX_TEXT / 2)))]);
    }
}
