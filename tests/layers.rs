//! Who may use whom: no `use crate::` against the arrows of src/lib.rs.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// A layer and what it may name of the crate.
const ARROWS: &[(&str, &[&str])] = &[
    ("pcp", &[]),
    ("bpf", &[]),
    ("pcpconf", &[]),
    ("logging", &[]),
    ("config", &[]),
    ("pdu", &["pcp"]),
    ("kit", &["pcp", "bpf", "config"]),
    ("agent", &["pdu", "pcp", "kit"]),
    ("probe", &["kit", "bpf"]),
    ("modules", &["kit", "bpf", "pcp"]),
    ("collector", &["kit", "bpf", "pcp", "probe", "config"]),
    ("transport", &["pdu", "pcpconf"]),
    ("cli", &["transport", "logging", "pcpconf"]),
    ("generated", &["kit"]),
    ("show", &["kit", "pcp", "cli", "collector", "config", "modules", "transport"]),
    ("check", &["kit", "collector", "config", "modules"]),
];

fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_path_buf()];
    }
    fs::read_dir(path).into_iter().flatten().flatten().flat_map(|entry| sources(&entry.path())).collect()
}

/// The source without comments and without its tests, which may use anything.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The section may have another name than the module.
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

/// The first components after `crate::`, also in `use crate::{a::.., b}`.
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
fn no_layer_uses_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = Vec::new();
    for (layer, allowed) in ARROWS {
        let mut files = sources(&src.join(layer));
        files.extend(sources(&src.join(format!("{layer}.rs"))));
        assert!(!files.is_empty(), "no layer {layer}");
        for file in files {
            for name in named(&code(&file)) {
                let own = name == *layer;
                // Macros of the kit stand at the root.
                let macros =
                    ["metrics", "maps", "options", "tracepoint", "function", "file_system", "user_code", "tell"]
                        .contains(&name.as_str())
                        && ["modules", "collector", "kit"].contains(layer);
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
        assert!(seen.contains(&file) || name == "lib.rs" || name == "main.rs", "{}: in no layer", file.display());
    }
}

#[test]
fn unsafe_is_in_two_rooms() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&src) {
        let home = file.starts_with(src.join("probe")) || file == src.join("bpf.rs");
        let has = code(&file).contains("unsafe {");
        assert!(home || !has, "{}: unsafe belongs to probe and bpf", file.display());
    }
}
