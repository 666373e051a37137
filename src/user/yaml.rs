//! YAML as text, lists and maps. Scalars are kept as they are written, since keys of a `static_map` are compared in that form. A
//! value knows its line, for messages.

use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::HashMap;
use std::rc::Rc;
use thiserror::Error;

/// Largest file that is parsed, in bytes.
pub const MAX_SIZE: usize = 1 << 20;

/// Largest number of values in a file. Those that aliases repeat are counted each time: few of them can stand for billions.
const MAX_VALUES: usize = 1 << 20;

/// Largest depth of lists and maps in each other.
const MAX_DEPTH: usize = 32;

/// Reason why a text is not valid YAML.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {reason}")]
pub struct YamlError {
    line: usize,
    reason: String,
}

/// A value and its line.
#[derive(Debug)]
pub struct Node {
    /// Its line, from 1.
    pub line: usize,
    /// The value.
    pub value: Value,
    /// Number of values in it, itself included.
    weight: usize,
}

/// A value.
#[derive(Debug)]
pub enum Value {
    /// No value, or `null`.
    Null,
    /// Text, numbers and the like, as written.
    Text(String),
    /// A list.
    List(Vec<Rc<Node>>),
    /// A map in the order of the file. Of entries with equal keys the last counts.
    Map(Vec<(String, Rc<Node>)>),
}

impl Node {
    /// Returns the value as messages show it.
    pub fn shown(&self) -> String {
        match &self.value {
            Value::Null => "nothing".into(),
            Value::Text(text) => format!("`{}`", text.chars().take(80).collect::<String>().escape_debug()),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a map".into(),
        }
    }

    /// Returns the value of a key; `None` if the key is missing or its value null.
    pub fn get(&self, key: &str) -> Option<&Rc<Node>> {
        let Value::Map(entries) = &self.value else { return None };
        let (_, node) = entries.iter().rev().find(|(name, _)| name == key)?;
        (!matches!(node.value, Value::Null)).then_some(node)
    }
}

/// Parses the first document of a text.
pub fn parse(text: &str) -> Result<Rc<Node>, YamlError> {
    if text.len() > MAX_SIZE {
        return Err(YamlError { line: 1, reason: format!("expected at most {MAX_SIZE} bytes, got {}", text.len()) });
    }
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new() };
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => {}
            Event::StreamEnd | Event::DocumentEnd => {
                return Ok(Rc::new(Node { line, value: Value::Null, weight: 1 }));
            }
            event => return reader.node(event, line, 0),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: HashMap<usize, Rc<Node>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(YamlError { line: error.marker().line(), reason: error.info().into() }),
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Rc<Node>, YamlError> {
        let refuse = |reason: String| Err(YamlError { line, reason });
        if depth > MAX_DEPTH {
            return refuse(format!("expected at most {MAX_DEPTH} lists and maps in each other"));
        }
        let (anchor, value) = match event {
            Event::Alias(id) => {
                return match self.anchors.get(&id) {
                    Some(node) => Ok(Rc::clone(node)),
                    None => refuse("expected an alias of a value that is complete before it".into()),
                };
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_null = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                (anchor, if is_null { Value::Null } else { Value::Text(text.into_owned()) })
            }
            Event::SequenceStart(anchor, _) => (anchor, Value::List(self.list(depth)?)),
            Event::MappingStart(anchor, _) => (anchor, Value::Map(self.map(depth)?)),
            _ => return refuse("expected a value".into()),
        };
        let weight = match &value {
            Value::List(nodes) => nodes.iter().fold(1, |sum: usize, node| sum.saturating_add(node.weight)),
            Value::Map(nodes) => nodes.iter().fold(1, |sum: usize, (_, node)| sum.saturating_add(node.weight)),
            _ => 1,
        };
        if weight > MAX_VALUES {
            return refuse(format!("expected at most {MAX_VALUES} values, those that aliases repeat included"));
        }
        let node = Rc::new(Node { line, value, weight });
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Rc<Node>>, YamlError> {
        let mut nodes = Vec::new();
        loop {
            let (event, line) = self.next()?;
            match event {
                Event::SequenceEnd => return Ok(nodes),
                event => nodes.push(self.node(event, line, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(String, Rc<Node>)>, YamlError> {
        let (mut entries, mut merges, mut merged) = (Vec::new(), Vec::new(), 0);
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                // Keys that the map has itself count more than merged ones, and those of an earlier merge more than a later one's.
                let merges: Vec<Rc<Node>> = merges;
                let of_merges = merges.iter().rev().filter_map(|node| match &node.value {
                    Value::Map(entries) => Some(entries),
                    _ => None,
                });
                return Ok(of_merges.flatten().cloned().chain(entries).collect());
            }
            let key = match &event {
                Event::Scalar(text, ..) => text.clone().into_owned(),
                _ => return Err(YamlError { line, reason: "expected a key that is text".into() }),
            };
            self.node(event, line, depth + 1)?; // it may have an anchor
            let (event, line) = self.next()?;
            let value = self.node(event, line, depth + 1)?;
            match (&*key, &value.value) {
                ("<<", Value::Map(of_merge)) => {
                    merged += of_merge.len();
                    merges.push(Rc::clone(&value));
                }
                _ => entries.push((key, value)),
            }
            if entries.len() + merged > MAX_VALUES {
                return Err(YamlError { line, reason: format!("expected at most {MAX_VALUES} values") });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(node: &Node, key: &str) -> String {
        node.get(key).map_or("-".into(), |node| node.shown())
    }

    #[test]
    fn scalars_are_kept_as_they_are_written() {
        let node = parse("a: 0x1\nb: 'x y'\nc: 1.50\nd: ~\ne:\nf: 'null'\na: 010\n").unwrap();
        assert_eq!(
            ["a", "b", "c", "d", "e", "f"].map(|key| text(&node, key)),
            ["`010`", "`x y`", "`1.50`", "-", "-", "`null`"]
        );
        assert_eq!(node.get("c").unwrap().line, 3);
    }

    #[test]
    fn aliases_and_merges_repeat_values() {
        let node = parse("one: &a {x: 1, y: 2}\ntwo: *a\nthree: {<<: *a, y: 3}\n").unwrap();
        assert_eq!(
            (text(node.get("two").unwrap(), "x"), text(node.get("three").unwrap(), "x")),
            ("`1`".into(), "`1`".into())
        );
        assert_eq!(text(node.get("three").unwrap(), "y"), "`3`");
        let node = parse("one: &a {x: 1}\ntwo: &b {x: 2, y: 2}\nthree: {<<: *a, z: 3, <<: *b}\n").unwrap();
        assert_eq!(["x", "y", "z"].map(|key| text(node.get("three").unwrap(), key)), ["`1`", "`2`", "`3`"]);
        let Value::Map(entries) = &node.get("three").unwrap().value else { panic!("no map") };
        assert_eq!(entries.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["x", "y", "x", "z"]);
    }

    #[test]
    fn errors_name_the_line() {
        assert!(parse("a: [1,\nb: }\n").unwrap_err().to_string().starts_with("line "));
        assert_eq!(parse("a: 1\nb: *a\n").unwrap_err().line, 2);
        assert!(matches!(parse("").unwrap().value, Value::Null));
    }

    #[test]
    fn what_grows_without_bound_is_refused() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..9 {
            let below = format!("*a{},", level - 1).repeat(10);
            bomb += &format!("a{level}: &a{level} [{}]\n", below.trim_end_matches(','));
        }
        assert!(parse(&bomb).unwrap_err().reason.contains("at most 1048576 values"));
        let deep = |depth| parse(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        assert!(deep(MAX_DEPTH).is_ok() && deep(MAX_DEPTH + 2).unwrap_err().reason.contains("at most 32 lists"));
        assert!(deep(100_000).is_err() && parse(&"- ".repeat(100_000)).is_err());
        assert!(parse(&" ".repeat(MAX_SIZE + 1)).unwrap_err().reason.contains("at most 1048576 bytes"));
        assert!(parse("a: &a [*a]\n").is_err());
    }
}
