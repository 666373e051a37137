//! docs/new-module.md, step by step, on a copy of the sources: its module is built and loaded, and counts the requests
//! of a test. So does a module that adds a dimension, latency by partition.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

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

/// A module: the files and the lines to add.
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

/// Returns the module in tests/programs that has latency by partition.
fn partitions() -> Page {
    let file = |path: &str, source: &str| {
        let source = Path::new(ROOT).join("tests/programs").join(source);
        (path.to_string(), fs::read_to_string(source).unwrap())
    };
    let files =
        vec![file("bpf/partlatency.bpf.c", "partlatency.bpf.c"), file("src/modules/partlatency.rs", "partlatency.rs")];
    Page { files, lines: ["mod partlatency;", "    &partlatency::SPEC,"].map(String::from).into() }
}

#[test]
fn a_dimension_takes_100_lines() {
    let lines = |text: &str| text.lines().filter(|line| !line.is_empty()).count();
    let count: usize = partitions().files.iter().map(|(_, text)| lines(text)).sum();
    assert!(count + partitions().lines.len() <= 102, "{count} lines, help included, and those that register it");
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

/// Makes a copy of the project with the modules and a program of another name. Files that have not changed since the last time are not written, so
/// that little is rebuilt.
fn tree(pages: &[Page]) -> PathBuf {
    let (root, tree) = (Path::new(ROOT), Path::new(ROOT).join("target/new-module/tree"));
    let mut wanted: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for path in SOURCES.iter().flat_map(|name| files(&root.join(name))) {
        wanted.insert(path.strip_prefix(root).unwrap().into(), fs::read(&path).unwrap());
    }
    let mut modules = fs::read_to_string(root.join("src/modules/mod.rs")).unwrap();
    for page in pages {
        let [module, entry] = &page.lines[..] else { panic!("two lines: {:?}", page.lines) };
        modules =
            modules.replacen("\nmod ", &format!("\n{module}\nmod "), 1).replace("\n];", &format!("\n{entry}\n];"));
    }
    wanted.insert("src/modules/mod.rs".into(), modules.into());
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let manifest = manifest.replacen("name = \"pmdacorebcc\"", &format!("name = \"{PROGRAM}\""), 1);
    wanted.insert("Cargo.toml".into(), manifest.into());
    wanted.extend(pages.iter().flat_map(|page| &page.files).map(|(path, text)| (path.into(), text.clone().into())));
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

/// Returns the program with the modules, built once for all tests.
fn binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(&tree(&[page(), partitions()])))
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
    /// Makes a disk of 16 MB that can have partitions.
    fn in_memory() -> Option<Disk> {
        let memory = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let file = tempfile::NamedTempFile::new_in(memory).unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        // It keeps the file open.
        let made = Command::new("losetup").args(["-f", "--show", "-P"]).arg(file.path()).output().ok()?;
        made.status.success().then(|| Disk(String::from_utf8(made.stdout).unwrap().trim().to_string()))
    }

    fn name(&self) -> &str {
        self.0.trim_start_matches("/dev/")
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

/// The agent while it counts for `show`.
struct Show(Child);

impl Show {
    /// Starts it, and returns once it counts.
    fn begin(metric: &str) -> Show {
        let mut show = Command::new(binary())
            .args(["show", metric])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(show.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.starts_with("Counting")) {
            said.push(lines.next().unwrap_or_else(|| panic!("{said:?}")));
        }
        Show(show)
    }

    fn end(mut self) -> String {
        assert!(Command::new("kill").args(["-INT", &self.0.id().to_string()]).status().unwrap().success());
        let mut shown = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
        assert!(self.0.wait().unwrap().success(), "{shown}");
        shown
    }
}

/// Reads blocks of 4 KB past the page cache.
fn read(device: &Path, blocks: u64) {
    let device: File =
        OpenOptions::new().read(true).custom_flags(nix::fcntl::OFlag::O_DIRECT.bits()).open(device).unwrap();
    let mut memory = vec![0u8; 8192];
    let start = memory.as_ptr().align_offset(4096);
    for block in 0..blocks {
        device.read_exact_at(&mut memory[start..start + 4096], block * 4096).unwrap();
    }
}

#[test]
fn the_steps_of_the_document_make_a_module_that_counts() {
    let Some(disk) = Disk::in_memory() else {
        return support::skip("loop devices, which take root and losetup");
    };
    let show = Show::begin("bcc.disk.dev.latency");
    read(Path::new(&disk.0), REQUESTS);
    let shown = show.end();
    assert_eq!(count(&shown, disk.name()), REQUESTS, "{shown}");
}

/// The kernel's own counters of the partitions are the witness.
#[test]
fn a_new_dimension_counts_what_the_kernel_counts() {
    let Some(disk) = Disk::in_memory() else {
        return support::skip("loop devices, which take root and losetup");
    };
    let partitions = [("1", "2048"), ("2", "10240")].map(|(number, start)| {
        let added = Command::new("addpart").args([&disk.0, number, start, "8192"]).status();
        (added.is_ok_and(|status| status.success()), format!("{}p{number}", disk.name()))
    });
    if !partitions.iter().all(|(is_added, _)| *is_added) {
        return support::skip("addpart, and a kernel with partitions");
    }
    let reads = || {
        partitions.clone().map(|(_, name)| {
            let file = format!("/sys/block/{}/{name}/stat", disk.name());
            let stat = fs::read_to_string(file).unwrap();
            stat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        })
    };
    // It reads new partitions where it is.
    let _ = Command::new("udevadm").arg("settle").status();
    let (show, before) = (Show::begin("bcc.disk.part.read.total.bucket"), reads());
    for ((_, name), requests) in partitions.iter().zip([300, 100]) {
        read(&Path::new("/dev").join(name), requests);
    }
    let (after, shown) = (reads(), show.end());
    let counted = partitions.clone().map(|(_, name)| count(&shown, &name));
    assert_eq!(counted, [after[0] - before[0], after[1] - before[1]], "{shown}");
    assert!(counted[0] >= 300 && counted[1] >= 100 && count(&shown, disk.name()) == 0, "{shown}");
}
