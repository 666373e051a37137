//! Dependencies between rooms: no `use crate::` against the arrows of src/lib.rs, and no cycle of files inside a room.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms, each with the parts of the crate that it may name.
const ARROWS: &[(&str, &[&str])] = &[
    ("pcp", &[]),
    ("bpf", &[]),
    ("pcpconf", &[]),
    ("logging", &[]),
    ("config", &[]),
    ("pdu", &["pcp"]),
    ("agent", &["pdu", "pcp"]),
    ("kit", &["pcp", "bpf", "config"]),
    ("host", &["kit"]),
    ("transport", &["pdu", "pcpconf", "host"]),
    ("process", &["kit", "host", "bpf"]),
    ("state", &["kit", "pcp"]),
    ("catalog", &["agent", "pcp", "config", "kit", "host", "state"]),
    ("modules", &["kit", "host", "process", "bpf", "pcp"]),
    ("loader", &["kit", "host", "process", "bpf"]),
    ("user", &["bpf", "catalog", "config", "host", "kit", "loader", "modules", "pcp", "state"]),
    ("script", &["bpf", "catalog", "config", "kit", "loader", "pcp", "state", "user"]),
    ("collector", &["catalog", "state", "kit", "host", "process", "loader", "bpf", "pcp", "config"]),
    ("privilege", &["kit"]),
    ("reference", &["config", "kit", "privilege"]),
    ("cli", &["transport", "logging", "pcpconf", "config"]),
    (
        "show",
        &[
            "catalog",
            "kit",
            "pcp",
            "pcpconf",
            "cli",
            "collector",
            "config",
            "modules",
            "privilege",
            "script",
            "transport",
            "user",
        ],
    ),
    ("new", &["cli"]),
    ("check", &["catalog", "kit", "cli", "collector", "config", "logging", "modules", "pcpconf", "script", "user"]),
    ("site", &["catalog", "cli", "collector", "config", "kit", "modules", "pcpconf", "script", "state", "user"]),
    (
        "serve",
        &[
            "agent",
            "catalog",
            "check",
            "cli",
            "collector",
            "config",
            "host",
            "kit",
            "modules",
            "pcpconf",
            "pdu",
            "privilege",
            "site",
            "state",
            "transport",
            "user",
        ],
    ),
];

fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_path_buf()];
    }
    fs::read_dir(path).into_iter().flatten().flatten().flat_map(|entry| sources(&entry.path())).collect()
}

/// Returns the source without comments and without its tests, which may use anything.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Log lines use the section's name, which may differ from the module's.
#[test]
fn no_module_logs_under_a_name_of_its_own() {
    for file in sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/modules"))) {
        for (at, _) in code(&file).match_indices("log::") {
            let line: String = code(&file)[at..].chars().take(60).filter(|c| !c.is_whitespace()).collect();
            let words = line.split_once("!(\"").map(|(_, words)| words);
            assert!(words.is_some_and(|words| words.starts_with("{}:")), "{}: {line}", file.display());
        }
    }
}

/// A caller cannot tell errors apart by a text.
#[test]
fn no_error_is_a_mere_text() {
    for file in sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))) {
        for line in code(&file).lines() {
            let result = line.split_once("Result<").map_or("", |(_, types)| types);
            assert!(!result.contains(", String>"), "{}: {line}", file.display());
        }
    }
}

/// Returns the first components after `crate::`, also in `use crate::{a::.., b}`.
fn named(code: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with('$') {
            continue; // inside a macro: the module that calls it is judged
        }
        let rest = &code[at + "crate::".len()..];
        let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        match rest.strip_prefix('{') {
            None => named.push(word(rest)),
            Some(group) => {
                let mut depth = 1;
                let mut start = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 1 => start = true,
                        c if start && !c.is_whitespace() => {
                            named.push(word(&group[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
        }
    }
    named
}

#[test]
fn no_room_uses_one_that_the_arrows_do_not_lead_to() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = Vec::new();
    for (layer, allowed) in ARROWS {
        let mut files = sources(&src.join(layer));
        files.extend(sources(&src.join(format!("{layer}.rs"))));
        assert!(!files.is_empty(), "no room {layer}");
        for file in files {
            for name in named(&code(&file)) {
                let own = name == *layer;
                // Macros of the kit and of shared parts stand at the root.
                let macros = [
                    "metrics",
                    "histograms",
                    "maps",
                    "options",
                    "tracepoint",
                    "function",
                    "function_entry",
                    "function_return",
                    "iterator",
                    "file_system",
                    "beyond",
                    "by_process",
                    "latest",
                    "user_code",
                    "module_log",
                ]
                .contains(&name.as_str())
                    && ["modules", "collector", "kit", "process"].contains(layer);
                assert!(
                    own || macros || name.is_empty() || allowed.contains(&name.as_str()),
                    "{}: {layer} uses {name}, which the arrows do not allow",
                    file.display()
                );
            }
            seen.push(file);
        }
    }
    for file in sources(&src) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(seen.contains(&file) || name == "lib.rs" || name == "main.rs", "{}: in no room", file.display());
    }
}

/// The names in backquotes.
fn quoted(cell: &str) -> BTreeSet<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_map_of_the_rooms_has_these_arrows() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/design.md")).unwrap();
    let (map, _) = page.split_once("## Threads").expect("the map of the rooms, then the threads");
    let mut rooms = 0;
    for line in map.lines().filter(|line| line.starts_with("| `src/")) {
        let cells: Vec<&str> = line.split('|').collect();
        let room = cells[1].trim().strip_prefix("`src/").unwrap().split('`').next().unwrap();
        let (_, allowed) = ARROWS.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("no room {room}"));
        assert_eq!(quoted(cells[3]), allowed.iter().copied().collect(), "docs/design.md: what {room} may use");
        rooms += 1;
    }
    assert!(rooms > 12, "{rooms} rooms in docs/design.md");
}

/// Returns the last name in backquotes before this place.
fn quoted_last(text: &str) -> &str {
    text.trim_end().rsplit('`').nth(1).unwrap_or_default()
}

#[test]
fn the_excerpts_of_the_design_are_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/design.md")).unwrap();
    let trimmed = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let mut excerpts = 0;
    for (at, _) in page.match_indices("\n```rust\n") {
        let excerpt = page[at + "\n```rust\n".len()..].split("\n```").next().unwrap();
        let file = quoted_last(&page[..at]);
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(trimmed(&source).contains(&trimmed(excerpt)), "docs/design.md: {file} has no such lines:\n{excerpt}");
        excerpts += 1;
    }
    assert!(excerpts > 4, "{excerpts} excerpts in docs/design.md");
}

#[test]
fn the_walk_of_a_fetch_names_functions_of_its_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/design.md")).unwrap();
    let (_, walk) = page.split_once("## The walk of a fetch").expect("the walk of a fetch");
    let mut steps = 0;
    for line in walk.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let source = fs::read_to_string(root.join(cells[1])).unwrap_or_else(|error| panic!("{}: {error}", cells[1]));
        let function = format!("fn {}", cells[2]);
        let is_declared = |at: usize| source[at + function.len()..].starts_with(['(', '<']);
        assert!(source.match_indices(&function).any(|(at, _)| is_declared(at)), "{}: no {function}", cells[1]);
        steps += 1;
    }
    assert!(steps > 20, "{steps} steps of the walk in docs/design.md");
}

#[test]
fn unsafe_is_in_two_rooms() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&src) {
        let home = file.starts_with(src.join("loader")) || file == src.join("bpf.rs");
        let has = code(&file).contains("unsafe {");
        assert!(home || !has, "{}: unsafe belongs to loader and bpf", file.display());
    }
}

/// Returns the source file of each name that a room's `mod.rs` re-exports.
fn exports(room: &Path) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for line in code(&room.join("mod.rs")).split(';') {
        let Some((_, path)) = line.split_once("pub use ") else { continue };
        let Some((file, names)) = path.split_once("::") else { continue };
        for name in words(names) {
            exports.insert(name, file.trim().to_string());
        }
    }
    exports
}

fn words(text: &str) -> Vec<String> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !word(c)).filter(|word| !word.is_empty()).map(String::from).collect()
}

/// Returns the files of the same room that a file names: `super::file::..`, or re-exports of `mod.rs`.
fn siblings(room: &Path, file: &Path) -> BTreeSet<String> {
    let (text, exports) = (code(file), exports(room));
    let mut named = BTreeSet::new();
    for (at, _) in text.match_indices("super::") {
        let rest = &text[at + "super::".len()..];
        let end = rest.find([';', '(', ')']).unwrap_or(rest.len());
        let names = match rest.starts_with('{') {
            true => words(&rest[..end]),
            false => words(rest).into_iter().take(1).collect(),
        };
        for name in names {
            let of = exports.get(&name).cloned().unwrap_or(name);
            if room.join(format!("{of}.rs")).is_file() || room.join(&of).is_dir() {
                named.insert(of);
            }
        }
    }
    named
}

#[test]
fn no_room_has_a_circle_of_files() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut rooms: Vec<PathBuf> = vec![];
    for file in sources(&src).iter().filter(|file| file.ends_with("mod.rs")) {
        rooms.extend(file.parent().map(PathBuf::from));
    }
    assert!(rooms.len() > 10, "{rooms:?}");
    let mut circles = Vec::new();
    for room in rooms {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for file in fs::read_dir(&room).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            if name != "mod" && file.is_file() {
                uses.insert(name.clone(), siblings(&room, &file).into_iter().filter(|other| *other != name).collect());
            }
        }
        // What uses nobody that is left goes, until nobody goes any more: what stays is in a circle or leads to one.
        loop {
            let before = uses.len();
            let left: BTreeSet<String> = uses.keys().cloned().collect();
            uses.retain(|_, others| others.iter().any(|other| left.contains(other)));
            if uses.len() == before {
                break;
            }
        }
        if !uses.is_empty() {
            circles.push(format!("{}: {uses:?}", room.display()));
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// Returns the names in a text.
fn names(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').collect()
}

/// Exports of kit are for modules and the agent: nothing that only kit itself uses. Macros of kit use it in their place.
#[test]
fn kit_exports_what_is_used_elsewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let kit = root.join("src/kit");
    let (own, others): (Vec<_>, Vec<_>) =
        sources(&root.join("src")).into_iter().partition(|file| file.starts_with(&kit));
    let others: String = others.iter().map(|file| code(file)).chain([read("docs/new-module.md")]).collect();
    let macros: String = own.iter().map(|file| code(file)).collect();
    let exported = read("src/kit/mod.rs");
    let lists = exported.split("pub use ").skip(1).filter_map(|export| export.split_once("::")?.1.split_once(';'));
    let exported: BTreeSet<&str> = lists.flat_map(|(list, _)| names(list)).filter(|name| !name.is_empty()).collect();
    assert!(exported.len() > 80 && exported.contains("Spec"), "{exported:?}");
    let used = names(&others);
    let is_used = |name: &&&str| used.contains(**name) || macros.contains(&format!("$crate::kit::{name}"));
    let unused: Vec<_> = exported.iter().filter(|name| !is_used(name)).collect();
    assert!(unused.is_empty(), "only kit itself uses {unused:?}: do not export them");
}
