//! docs/new-module.md, step by step, on a copy of the sources: its module is built and loaded, and counts the requests
//! of a test.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Root of the project.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Files that a build reads.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
    "bpf",
    "src",
    "benches",
    "examples",
    "help",
    "corebcc.conf",
    "rustfmt.toml",
];
const REQUESTS: u64 = 400;

/// A page of the documents, split into its files and its lines to add.
struct Page {
    /// Files: path and content.
    files: Vec<(String, String)>,
    lines: Vec<String>,
}

/// Returns the block between the fences of this language that follows the text.
fn block<'a>(page: &'a str, text: &str, language: &str) -> &'a str {
    let after = page.split_once(text).unwrap_or_else(|| panic!("the page has no `{text}`")).1;
    let (_, block) = after.split_once(&format!("```{language}\n")).unwrap();
    block.split_once("```").unwrap().0
}

fn page() -> Page {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/new-module.md")).unwrap();
    let file =
        |path: &str, language: &str| (path.to_string(), block(&page, &format!("`{path}`:"), language).to_string());
    let files = vec![file("bpf/disklatency.bpf.c", "c"), file("src/modules/disklatency.rs", "rust")];
    let lines = block(&page, "In `src/modules/mod.rs`", "text").lines().map(String::from).collect();
    Page { files, lines }
}

#[test]
fn a_histogram_by_disk_takes_40_lines_of_each_language() {
    for (path, text) in page().files {
        let count = text.lines().filter(|line| !line.is_empty()).count();
        assert!((15..=40).contains(&count), "{path}: {count} lines");
    }
}

/// Returns the files below a path of the project.
fn files(path: &Path) -> Vec<PathBuf> {
    match fs::read_dir(path) {
        Ok(entries) => entries.flat_map(|entry| files(&entry.unwrap().path())).collect(),
        Err(_) => vec![path.to_path_buf()],
    }
}

/// Name of the copy's program. The copy is built beside the project, whose dependencies need no second build then.
const PROGRAM: &str = "pmdacorebcc-new-module";

/// Makes a copy of the project with the module and a program of another name. Files that have not changed since the last time are not written, so
/// that little is rebuilt.
fn tree(page: &Page) -> PathBuf {
    let (root, tree) = (Path::new(ROOT), Path::new(ROOT).join("target/new-module/tree"));
    let mut wanted: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for path in SOURCES.iter().flat_map(|name| files(&root.join(name))) {
        wanted.insert(path.strip_prefix(root).unwrap().into(), fs::read(&path).unwrap());
    }
    let modules = fs::read_to_string(root.join("src/modules/mod.rs")).unwrap();
    let [module, entry] = &page.lines[..] else { panic!("two lines: {:?}", page.lines) };
    let modules =
        modules.replacen("\nmod ", &format!("\n{module}\nmod "), 1).replace("\n];", &format!("\n{entry}\n];"));
    wanted.insert("src/modules/mod.rs".into(), modules.into());
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let manifest = manifest.replacen("name = \"pmdacorebcc\"", &format!("name = \"{PROGRAM}\""), 1);
    wanted.insert("Cargo.toml".into(), manifest.into());
    wanted.extend(page.files.iter().map(|(path, text)| (path.into(), text.clone().into())));
    fs::create_dir_all(&tree).unwrap();
    for path in files(&tree) {
        if !wanted.contains_key(path.strip_prefix(&tree).unwrap()) {
            fs::remove_file(path).unwrap();
        }
    }
    for (path, bytes) in wanted {
        let path = tree.join(path);
        if !fs::read(&path).is_ok_and(|there| there == bytes) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
    tree
}

fn build(tree: &Path) -> PathBuf {
    let target = Path::new(support::BINARY).ancestors().nth(2).unwrap();
    // With little of the processors: tests/run has virtual machines at work meanwhile.
    let built = Command::new("nice")
        .args(["-n", "5", env!("CARGO"), "build", "--locked", "--bin", PROGRAM, "--target-dir"])
        .arg(target)
        .current_dir(tree)
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success() && !words.contains("warning"), "{words}");
    target.join("debug").join(PROGRAM)
}

/// A loop device over a file in memory.
struct Disk(String);

impl Disk {
    fn over(file: &Path) -> Option<Disk> {
        let made = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        made.status.success().then(|| Disk(String::from_utf8(made.stdout).unwrap().trim().to_string()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Sums the buckets of a disk, from lines such as `64-127::loop0  12`.
fn count(shown: &str, disk: &str) -> u64 {
    let of_disk = |line: &str| {
        let (instance, count) = line.split_once(' ')?;
        let (bounds, name) = instance.split_once("::")?;
        assert!(name != disk || bounds.split('-').all(|bound| bound.parse::<u64>().is_ok()), "{line}");
        (name == disk).then(|| count.trim().parse::<u64>().unwrap())
    };
    shown.lines().filter_map(of_disk).sum()
}

#[test]
fn the_steps_of_the_document_make_a_module_that_counts() {
    let page = page();
    let memory = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let file = tempfile::NamedTempFile::new_in(memory).unwrap();
    file.as_file().set_len(16 << 20).unwrap();
    let Some(disk) = Disk::over(file.path()) else {
        return support::skip("loop devices, which take root and losetup");
    };
    let binary = build(&tree(&page));
    let mut show = Command::new(binary)
        .args(["show", "bcc.disk.dev.latency"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(show.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.starts_with("Counting")) {
        said.push(lines.next().unwrap_or_else(|| panic!("{said:?}")));
    }
    let device: File =
        OpenOptions::new().read(true).custom_flags(nix::fcntl::OFlag::O_DIRECT.bits()).open(&disk.0).unwrap();
    let mut memory = vec![0u8; 8192];
    let start = memory.as_ptr().align_offset(4096);
    for i in 0..REQUESTS {
        device.read_exact_at(&mut memory[start..start + 4096], i * 4096).unwrap();
    }
    assert!(Command::new("kill").args(["-INT", &show.id().to_string()]).status().unwrap().success());
    let mut shown = String::new();
    show.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    assert!(show.wait().unwrap().success(), "{shown}");
    let name = disk.0.trim_start_matches("/dev/");
    assert_eq!(count(&shown, name), REQUESTS, "{shown}");
}
