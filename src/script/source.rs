//! The text of a bpftrace script: its header, the maps it assigns to, and the program that is run: the script with a probe that
//! prints its maps every second.

use std::collections::{BTreeMap, BTreeSet};

/// Largest script in bytes.
pub const MAX_SOURCE: u64 = 1 << 20;
/// Largest number of maps of a script that are served.
pub const MAX_MAPS: usize = 256;
/// Largest help text in characters.
const MAX_HELP: usize = 200;
/// The metric for lines of `printf` and the like, as in PCP's bpftrace agent.
pub const OUTPUT: &str = "@output";

/// Functions and builtins whose values are text.
const TEXTS: &[&str] = &[
    "str",
    "comm",
    "ksym",
    "usym",
    "kstack",
    "ustack",
    "ntop",
    "strftime",
    "probe",
    "func",
    "username",
    "buf",
    "path",
    "cgroup_path",
    "macaddr",
    "strerror",
    "syscall_name",
    "kaddr_name",
    "join",
];
/// Functions that write to the standard output.
const WRITERS: &[&str] = &["printf", "time", "cat", "join"];

/// The kind of a map's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `count()`
    Count,
    /// `sum()`, and maps that the script only adds to
    Sum,
    /// Any other number: `min()`, `max()`, `avg()`, an assignment.
    Level,
    /// Text: a name, a stack.
    Text,
    /// `hist()`, `lhist()`
    Histogram,
    /// `stats()`
    Stats,
}

/// A map that a script assigns to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptMap {
    /// Its name with the `@`.
    pub name: String,
    /// The number of its keys; 0 for a single value.
    pub keys: usize,
    /// The kind of its values.
    pub kind: Kind,
    /// True if its keys contain a stack.
    pub has_stacks: bool,
    /// True if the script clears it while it runs, so that none of its values is a counter.
    pub is_cleared: bool,
    /// True if the script prints it itself before it clears it. The appended probe would print the values right after that.
    pub is_printed: bool,
}

impl ScriptMap {
    /// True if it has a single value.
    pub fn is_single(&self) -> bool {
        self.keys == 0 && self.kind != Kind::Histogram
    }

    /// The label `metrictype`, by which Grafana's panels choose metrics.
    pub fn metric_type(&self) -> &'static str {
        match self.kind {
            Kind::Histogram => "histogram",
            _ if self.has_stacks => "stacks",
            _ => "",
        }
    }
}

/// Facts about a script from its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The value of `// name:`.
    pub name: Option<String>,
    /// The maps that are served, in the order in which they are first assigned to.
    pub maps: Vec<ScriptMap>,
    /// True if the script prints text, which is served.
    pub prints: bool,
    /// True if the script prints its maps itself (`// custom-output-block`).
    custom: bool,
    /// Help texts of maps, by their names with the `@` (`// help: @map TEXT`).
    pub helps: BTreeMap<String, String>,
    /// Number of lines of its text that are kept besides the first (`// table-retain-lines:`).
    pub retained_lines: Option<usize>,
    /// Number of its probes that need no hook in the kernel: BEGIN, END and interval.
    pub clocks: u64,
}

impl Source {
    /// Parses a script. Never fails: bpftrace reports errors in it.
    pub fn parse(text: &str) -> Source {
        let mut source = Source::default();
        let mut include: Option<Vec<String>> = None;
        for (key, value) in text.lines().filter_map(header) {
            match key {
                "name" => source.name = Some(value.into()),
                "include" => include = Some(value.split(',').map(|name| name.trim().to_owned()).collect()),
                "custom-output-block" => source.custom = true,
                "table-retain-lines" => source.retained_lines = value.parse().ok(),
                "help" => source.helps.extend(help(value)),
                _ => {}
            }
        }
        let included = |name: &str| include.as_ref().is_none_or(|names| names.iter().any(|known| known == name));
        let tokens = tokens(text);
        let assigned = assigned(&tokens);
        source.maps = assigned.into_iter().filter(|map| included(&map.name) && map.name != OUTPUT).collect();
        source.maps.truncate(MAX_MAPS);
        let used = used(&tokens);
        source.clocks = used.clocks;
        for map in &mut source.maps {
            map.is_cleared = used.cleared.contains(&*map.name);
            map.is_printed = map.is_cleared && used.printed.contains(&*map.name);
            if map.is_cleared && matches!(map.kind, Kind::Count | Kind::Sum) {
                map.kind = Kind::Level;
            }
        }
        let writes = |pair: &[Token]| matches!(pair, [Token::Word(word), Token::Mark('(')] if WRITERS.contains(word));
        source.prints = included(OUTPUT) && tokens.windows(2).any(writes);
        source
    }

    /// Returns the program to run: the script, and a probe that prints its maps every second.
    pub fn program(&self, text: &str) -> String {
        if !self.adds_probe() {
            return text.into();
        }
        let maps = self.maps.iter().filter(|map| self.adds_print(map));
        let prints: Vec<String> = maps.map(|map| format!("print({});", map.name)).collect();
        format!("{text}\ninterval:s:1 {{ {} }}\n", prints.join(" "))
    }

    /// True if the program needs a probe besides those of the script.
    pub fn adds_probe(&self) -> bool {
        self.maps.iter().any(|map| self.adds_print(map))
    }

    /// True if that probe prints the map.
    pub fn adds_print(&self, map: &ScriptMap) -> bool {
        !self.custom && !map.is_printed
    }
}

/// `// KEY: VALUE`, or `// KEY`.
fn header(line: &str) -> Option<(&str, &str)> {
    let comment = line.strip_prefix("//")?.trim();
    let (key, value) = comment.split_once(':').unwrap_or((comment, ""));
    Some((key.trim(), value.trim()))
}

/// `@map TEXT`
fn help(value: &str) -> Option<(String, String)> {
    let (map, text) = value.split_once(char::is_whitespace)?;
    let text: String = text.trim().chars().filter(|c| !c.is_control()).take(MAX_HELP).collect();
    (map.starts_with('@') && !text.is_empty()).then(|| (map.into(), text))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// `@name`
    Map(&'a str),
    /// A name or a number.
    Word(&'a str),
    /// `"..."`
    Text,
    /// `=`
    Assign,
    /// `+=`
    Add,
    /// `++`
    Increment,
    /// `--`, `-=` and the like.
    Change,
    /// Any other character that is not blank.
    Mark(char),
}

/// Splits a script into tokens, without comments.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let run = |text: &str, is: &dyn Fn(char) -> bool| text.find(|c| !is(c)).unwrap_or(text.len());
        let (token, length) = match first {
            '/' if rest.starts_with("//") => (None, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => (None, rest[2..].find("*/").map_or(rest.len(), |end| end + 4)),
            '"' => (Some(Token::Text), quoted(rest)),
            // The path of a probe may have `/*` and `//` in it.
            ':' => (Some(Token::Mark(':')), 1 + run(&rest[1..], &|c| is_word(c) || "-./#*+".contains(c))),
            '@' => {
                let length = 1 + run(&rest[1..], &is_word);
                (Some(Token::Map(&rest[..length])), length)
            }
            c if is_word(c) => {
                let length = run(rest, &is_word);
                (Some(Token::Word(&rest[..length])), length)
            }
            c if c.is_whitespace() => (None, c.len_utf8()),
            c => {
                let two = rest.get(..2).unwrap_or_default();
                let three = rest.get(..3).unwrap_or_default();
                match two {
                    "++" => (Some(Token::Increment), 2),
                    "--" => (Some(Token::Change), 2),
                    "+=" => (Some(Token::Add), 2),
                    "-=" | "*=" | "/=" | "%=" | "&=" | "|=" | "^=" => (Some(Token::Change), 2),
                    "==" | "!=" | "<=" | ">=" => (Some(Token::Mark('?')), 2),
                    "<<" | ">>" if three.ends_with('=') => (Some(Token::Change), 3),
                    _ if c == '=' => (Some(Token::Assign), 1),
                    _ => (Some(Token::Mark(c)), c.len_utf8()),
                }
            }
        };
        tokens.extend(token);
        rest = &rest[length..];
    }
    tokens
}

/// Returns the length of the quoted text at the beginning.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the maps that are assigned to, in the order of their first assignment.
fn assigned(tokens: &[Token<'_>]) -> Vec<ScriptMap> {
    let mut maps: Vec<ScriptMap> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let brackets = brackets(tokens);
    let is_stack = |at: &usize| matches!(tokens[*at], Token::Word("kstack" | "ustack"));
    let stacks: Vec<usize> = (0..tokens.len()).filter(is_stack).collect();
    for (at, token) in tokens.iter().enumerate() {
        let Token::Map(name) = *token else { continue };
        let has_keys = tokens.get(at + 1) == Some(&Token::Mark('['));
        let (keys, behind) = if has_keys { brackets[at + 1] } else { (0, at + 1) };
        let has_stacks = stacks.get(stacks.partition_point(|&stack| stack <= at)).is_some_and(|&stack| stack < behind);
        let before = at.checked_sub(1).map(|before| tokens[before]);
        let parts = brackets.get(behind + 1).map_or(0, |(parts, _)| *parts);
        let Some(kind) = kind(before, &tokens[behind..], parts) else { continue };
        match known.get(name) {
            // What is added to in one place and set in another is no counter.
            Some(&known) => {
                let map = &mut maps[known];
                if map.kind != kind && matches!((map.kind, kind), (Kind::Sum, Kind::Level)) {
                    map.kind = Kind::Level;
                }
            }
            None => {
                known.insert(name, maps.len());
                maps.push(ScriptMap {
                    name: name.into(),
                    keys,
                    kind,
                    has_stacks,
                    is_cleared: false,
                    is_printed: false,
                });
            }
        }
    }
    maps
}

/// The number of a script's probes without a hook in the kernel, and the maps that it clears and prints outside END.
#[derive(Default)]
struct Used<'s> {
    clocks: u64,
    cleared: BTreeSet<&'s str>,
    printed: BTreeSet<&'s str>,
}

fn used<'s>(tokens: &[Token<'s>]) -> Used<'s> {
    let mut used = Used::default();
    let (mut depth, mut is_end) = (0_usize, false);
    for (at, token) in tokens.iter().enumerate() {
        match (token, &tokens[at + 1..]) {
            (Token::Mark('{'), _) => depth += 1,
            (Token::Mark('}'), _) => {
                depth = depth.saturating_sub(1);
                is_end &= depth > 0;
            }
            (Token::Word("BEGIN"), _) if depth == 0 => used.clocks += 1,
            (Token::Word("END"), _) if depth == 0 => {
                used.clocks += 1;
                is_end = true;
            }
            (Token::Word("interval" | "i"), [Token::Mark(':'), ..]) if depth == 0 => used.clocks += 1,
            (Token::Word(function), [Token::Mark('('), Token::Map(map), ..]) if depth > 0 && !is_end => match *function
            {
                "clear" | "zero" => drop(used.cleared.insert(map)),
                "print" => drop(used.printed.insert(map)),
                _ => {}
            },
            _ => {}
        }
    }
    used
}

/// Returns for each token that opens a bracket the number of keys or elements in it, and the index of the token behind the closing
/// bracket; for other tokens the numbers mean nothing. An unclosed bracket ends with the text.
fn brackets(tokens: &[Token<'_>]) -> Vec<(usize, usize)> {
    let mut brackets = vec![(0, tokens.len()); tokens.len()];
    let mut open = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('[' | '(') => {
                brackets[at].0 = 1;
                open.push(at);
            }
            Token::Mark(']' | ')') => {
                open.pop().into_iter().for_each(|begin: usize| brackets[begin].1 = at + 1);
            }
            Token::Mark(',') => open.last().into_iter().for_each(|begin| brackets[*begin].0 += 1),
            _ => {}
        }
    }
    brackets
}

/// Returns the kind of a map from the tokens before its name and after its keys, and the number of elements of a tuple there; `None`
/// if the map is not assigned to.
fn kind(before: Option<Token<'_>>, behind: &[Token<'_>], parts: usize) -> Option<Kind> {
    match behind {
        [Token::Assign, Token::Word(function), Token::Mark('('), ..] => Some(match *function {
            "count" => Kind::Count,
            "sum" => Kind::Sum,
            "hist" | "lhist" => Kind::Histogram,
            "stats" => Kind::Stats,
            text if TEXTS.contains(&text) => Kind::Text,
            _ => Kind::Level,
        }),
        [Token::Assign, Token::Word(builtin), ..] if TEXTS.contains(builtin) => Some(Kind::Text),
        [Token::Assign, Token::Text, ..] => Some(Kind::Text),
        // A tuple, or a number in brackets.
        [Token::Assign, Token::Mark('('), ..] if parts > 1 => Some(Kind::Text),
        [Token::Assign | Token::Change, ..] => Some(Kind::Level),
        [Token::Add | Token::Increment, ..] => Some(Kind::Sum),
        _ => match before {
            Some(Token::Increment) => Some(Kind::Sum),
            Some(Token::Change) => Some(Kind::Level),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(text: &str) -> Vec<(String, usize, Kind)> {
        Source::parse(text).maps.into_iter().map(|map| (map.name, map.keys, map.kind)).collect()
    }

    #[test]
    fn brackets_are_matched_once() {
        assert_eq!(maps("BEGIN { @a[(1, 2), f(3, 4)] = (5, 6); @b[1, @c[2]]++ }").len(), 2);
        // What takes time by the square of these ends after an hour.
        assert_eq!(maps(&"@[".repeat(400_000)), []);
        assert_eq!(maps(&"@=(".repeat(300_000)), [("@".into(), 0, Kind::Level)]);
    }

    fn map(name: &str, keys: usize, kind: Kind) -> (String, usize, Kind) {
        (name.into(), keys, kind)
    }

    #[test]
    fn maps_are_what_is_assigned_to_them() {
        let text = r#"
            #!/usr/bin/env bpftrace
            // @no = count();
            /* @nor = count(); */
            uprobe:/usr/lib/*/libc.so.6:malloc /@start[tid] == 1 && @other/ {
                @ = count(); @by[comm, str(args->path, 2)] = count(); @bytes[comm]=sum(args.ret);
                @h = hist(nsecs - @start[tid]); @l[cpu] = lhist(pid, 0, 10, 1); @st = stats(1); @a = avg(1);
                @n++; ++@m; @both += 2; @both--; @x = 5; @name = comm; @stack = kstack(3); @t = "a = @u = 1";
                @p = (1, "a"); @q = (uint64)arg0; @r = (nsecs - @start[tid]) / 1000;
                if (@read == 1) { print(@by); clear(@by); delete(@start[tid]); }
            }"#;
        let expected = [
            map("@", 0, Kind::Count),
            map("@by", 2, Kind::Level),
            map("@bytes", 1, Kind::Sum),
            map("@h", 0, Kind::Histogram),
            map("@l", 1, Kind::Histogram),
            map("@st", 0, Kind::Stats),
            map("@a", 0, Kind::Level),
            map("@n", 0, Kind::Sum),
            map("@m", 0, Kind::Sum),
            map("@both", 0, Kind::Level),
            map("@x", 0, Kind::Level),
            map("@name", 0, Kind::Text),
            map("@stack", 0, Kind::Text),
            map("@t", 0, Kind::Text),
            map("@p", 0, Kind::Text),
            map("@q", 0, Kind::Level),
            map("@r", 0, Kind::Level),
        ];
        assert_eq!(maps(text), expected);
    }

    #[test]
    fn the_header_names_the_script_and_its_maps() {
        let text = "// name: reads\n//include: @a,@c\nBEGIN { @a = 1; @b = 2; @c = count(); printf(\"x\"); }";
        let source = Source::parse(text);
        assert_eq!(source.name.as_deref(), Some("reads"));
        assert_eq!(maps(text), [map("@a", 0, Kind::Level), map("@c", 0, Kind::Count)]);
        assert!(!source.prints, "output is not included");
        assert!(source.program(text).ends_with("}\ninterval:s:1 { print(@a); print(@c); }\n"));
        assert!(Source::parse("BEGIN { printf(\"x\"); }").prints);
        let texts = "// help: @a  Calls by command \n// help: @output lines\n// help: none\n// help: @c\n// table-retain-lines: 3\n";
        let source = Source::parse(texts);
        let texts: Vec<(&str, &str)> = source.helps.iter().map(|(map, help)| (map.as_str(), help.as_str())).collect();
        assert_eq!(texts, [("@a", "Calls by command"), ("@output", "lines")]);
        assert_eq!(source.retained_lines, Some(3));
        let custom = "// custom-output-block\nBEGIN { @a = 1; } interval:s:5 { print(@a); }";
        assert_eq!(Source::parse(custom).program(custom), custom);
    }

    #[test]
    fn what_a_script_clears_is_no_counter_and_it_prints_that_itself() {
        let text = "BEGIN { printf(\"x\"); } kprobe:a, kprobe:b { @ = count(); @n++; @h = hist(1); @e = count(); }\n\
                    interval:s:1, i:ms:5 { print(@); clear(@); zero(@n); clear(@h) } END { clear(@e); print(@n); }";
        let source = Source::parse(text);
        let known: Vec<_> = source.maps.iter().map(|map| (map.kind, map.is_cleared, map.is_printed)).collect();
        let level = |is_printed| (Kind::Level, true, is_printed);
        assert_eq!(known, [level(true), level(false), (Kind::Histogram, true, false), (Kind::Count, false, false)]);
        assert!(source.program(text).ends_with("\ninterval:s:1 { print(@n); print(@h); print(@e); }\n"));
        assert_eq!(source.clocks, 4);
        let all = "interval:s:1 { @ = count(); print(@); clear(@) }";
        assert_eq!(Source::parse(all).program(all), all);
    }

    #[test]
    fn no_text_is_too_broken_to_be_taken_apart() {
        for text in
            ["@", "@a[", "@a[1", "@a]", "\"", "\"\\", "/*", "@a[)] = count()", "//", "@\u{e9} = 1", "@a =", ":/*"]
        {
            Source::parse(text);
        }
        assert_eq!(maps("@a[1"), []);
    }
}
