//! The modules of docs/new-module.md in a copy of the sources: they are built and loaded, and count what programs of the test do. So does a
//! module that adds a dimension, latency by partition.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use support::loops::{open_direct, read_blocks};
use support::script::Script;

/// Root of the project.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// True if scripts/static-cargo builds this.
const STATIC: bool = cfg!(feature = "static");
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

/// The modules of the document, each with the largest number of names of kit, of src/modules/shared and of bpf/shared that it may use.
const MODULES: [(&str, usize); 3] = [("signals", 10), ("slices", 15), ("created", 20)];

fn document() -> String {
    fs::read_to_string(Path::new(ROOT).join("docs/new-module.md")).unwrap()
}

/// Returns a module of the document. It shows the lines that register the first one.
fn page(name: &str) -> Page {
    let page = document();
    let file = |path: String, language: &str| {
        let text = block(&page, &format!("`{path}`:"), language).to_string();
        (path, text)
    };
    let files = vec![file(format!("bpf/{name}.bpf.c"), "c"), file(format!("src/modules/{name}.rs"), "rust")];
    let first = block(&page, "In `src/modules/mod.rs`", "text");
    Page { files, lines: first.lines().map(|line| line.replace(MODULES[0].0, name)).collect() }
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
    println!("{count} lines");
    assert!(count + partitions().lines.len() <= 100, "{count} lines, help included, and those that register it");
}

/// Returns the words of a text.
fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect()
}

/// Returns the text without its comments.
fn code(text: &str) -> String {
    let lines =
        text.lines().filter(|line| !["//", "/*", " *"].iter().any(|begin| line.trim_start().starts_with(begin)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Headers with types of the kernel, which are no names of the project.
const KERNEL_TYPES: [&str; 2] = ["kernel.h", "kernel_bpf.h"];

/// Returns what the headers of bpf/shared offer: functions and macros, and structs of their own.
fn names_in_headers() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in files(&Path::new(ROOT).join("bpf/shared"))
        .iter()
        .filter(|path| !KERNEL_TYPES.iter().any(|header| path.ends_with(header)))
    {
        for line in fs::read_to_string(path).unwrap().lines() {
            let name = line.strip_prefix("#define ").or_else(|| line.strip_prefix("struct "));
            let function =
                || line.strip_prefix("static __always_inline ")?.split_once('(')?.0.rsplit([' ', '*']).next();
            names.extend(name.or_else(function).and_then(|name| name.split([' ', '(']).next()).map(String::from));
        }
    }
    names
}

/// Returns what kit exports, and the macros of kit and of src/modules/shared.
fn names_in_kit() -> BTreeSet<String> {
    let exported = fs::read_to_string(Path::new(ROOT).join("src/kit/mod.rs")).unwrap();
    let exports = exported.split("pub use ").skip(1).filter_map(|export| export.split_once("::")?.1.split_once(';'));
    let mut names: BTreeSet<String> = exports.flat_map(|(names, _)| words(names)).map(String::from).collect();
    for path in ["src/kit", "src/modules/shared"].iter().flat_map(|room| files(&Path::new(ROOT).join(room))) {
        let text = fs::read_to_string(&path).unwrap();
        let macros = text.lines().filter_map(|line| line.strip_prefix("macro_rules! ")?.split(' ').next());
        names.extend(macros.map(String::from));
    }
    names
}

/// Returns what a source imports from src/modules/shared.
fn imported(text: &str) -> BTreeSet<&str> {
    let imports = text.lines().filter_map(|line| line.strip_prefix("use super::shared::")?.split_once("::"));
    imports.flat_map(|(_, names)| words(names)).collect()
}

#[test]
fn the_modules_of_the_document_use_few_names() {
    let (headers, kit) = (names_in_headers(), names_in_kit());
    assert!(
        ["ON", "ROWS", "keyed_row", "fine_hist", "COUNT_KEY"].iter().all(|name| headers.contains(*name)),
        "{headers:?}"
    );
    assert!(["Spec", "metrics", "Module", "NEEDS_BTF", "by_process"].iter().all(|name| kit.contains(*name)), "{kit:?}");
    for (name, most) in MODULES {
        let mut used = BTreeSet::new();
        for (path, text) in page(name).files {
            let (text, offered) = (code(&text), if path.ends_with(".c") { &headers } else { &kit });
            let shared = imported(&text);
            let counts = |word: &&str| offered.contains(*word) || shared.contains(word);
            used.extend(words(&text).into_iter().filter(counts).map(String::from));
        }
        println!("{name}: {} names: {used:?}", used.len());
        assert!((5..=most).contains(&used.len()), "{name}: {} of {most} names: {used:?}", used.len());
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
    BUILT.get_or_init(|| build(&tree(&[page("signals"), page("slices"), page("created"), partitions()])))
}

fn build(tree: &Path) -> PathBuf {
    let debug = Path::new(support::BINARY).parent().unwrap();
    // Built as this program has been, so that the crates it uses are there. The triple is a part of the path where cargo is given one.
    let target = debug.ancestors().nth(if STATIC { 2 } else { 1 }).unwrap();
    // With little of the processors: tests/run has virtual machines at work meanwhile.
    let built = Command::new("nice")
        .args(["-n", "5", env!("CARGO"), "build", "--locked", "--bin", PROGRAM, "--target-dir"])
        .arg(target)
        .args(if STATIC { ["--features", "static"].as_slice() } else { &[] })
        .current_dir(tree)
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success() && !words.contains("warning"), "{words}");
    debug.join(PROGRAM)
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
    fn begin(arguments: &[&str]) -> Show {
        let mut show = Command::new(binary())
            .arg("show")
            .args(arguments)
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

/// Runs a program of Python, which prints a line when it has done its work, while the agent counts. Returns the line, what the agent
/// showed, and what `at_the_end` returns for the process, which then still waits.
fn counted<T>(metric: &str, program: &str, at_the_end: impl Fn(u32) -> T) -> (String, String, T) {
    let show = Show::begin(&["--csv", metric]);
    let mut script = Script::python(&format!("import signal\n{program}\nsys.stdin.readline()"));
    let printed = script.line();
    let seen = at_the_end(script.pid());
    // Series are found by the work of each second.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    (printed, show.end(), seen)
}

/// Returns the value of the instance whose name begins so, from lines such as `TIME,000123 sh,12`.
fn value(shown: &str, begin: &str) -> Option<u64> {
    let instance = |line: &str| line.split_once(',').filter(|(_, rest)| rest.starts_with(begin)).is_some();
    shown.lines().find(|line| instance(line))?.rsplit(',').next()?.parse().ok()
}

#[test]
fn a_counter_by_key_counts_the_signals_sent() {
    if !has_root() {
        return;
    }
    let program = "signal.signal(signal.SIGUSR2, signal.SIG_IGN)\n\
                   for i in range(300): os.kill(os.getpid(), signal.SIGUSR2)\nsay('done')";
    let (_, shown, ()) = counted("bcc.proc.signals.count", program, |_| ());
    assert_eq!(value(&shown, "signal-12,"), Some(300), "{shown}");
}

/// The scheduler's own sum of a process's run time is the witness.
#[test]
fn a_histogram_by_series_sums_up_what_the_scheduler_does() {
    if !has_root() {
        return;
    }
    let program = "def ran(): return open('/proc/self/schedstat').read().split()[0]\n\
                   before = ran()\nos.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\nafter = ran()\n\
                   until = time.process_time() + 0.3\n\
                   while time.process_time() < until: pass\n\
                   say(before, after)";
    let (printed, shown, all) = counted("bcc.sched.slice.sum", program, |pid| {
        // It has gone to sleep for good once its switches stand still.
        let stat = || fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        let mut last = stat();
        loop {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let now = stat();
            if std::mem::replace(&mut last, now.clone()) == now {
                return now.split(' ').next().unwrap().parse::<u64>().unwrap();
            }
        }
    });
    let bounds: Vec<u64> = printed.split(' ').map(|ran| all - ran.parse::<u64>().unwrap()).collect();
    let counted = value(&shown, "batch,").unwrap_or_else(|| panic!("{shown}"));
    println!("{counted} ns, by the scheduler {bounds:?}");
    assert!((bounds[1]..=bounds[0]).contains(&counted), "{counted} ns, by the scheduler {bounds:?}");
}

#[test]
fn a_table_by_process_counts_what_it_created() {
    if !has_root() {
        return;
    }
    let program = "for i in range(300):\n pid = os.fork()\n if not pid: os._exit(0)\n os.waitpid(pid, 0)\n\
                   for i in range(200):\n t = threading.Thread(target=lambda: 0)\n t.start()\n t.join()\n\
                   say('done')";
    for (metric, created) in [("processes", 300), ("threads", 200)] {
        let (_, shown, pid) = counted(&format!("bcc.proc.created.{metric}"), program, |pid| pid);
        assert_eq!(value(&shown, &format!("{pid:06} ")), Some(created), "{metric}: {shown}");
    }
}

/// True for root, who may load programs; says that the test was skipped otherwise.
fn has_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        support::skip("root");
    }
    is_root
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
    let (show, before) = (Show::begin(&["bcc.disk.part.read.total.bucket"]), reads());
    for ((_, name), requests) in partitions.iter().zip([300, 100]) {
        read_blocks(&open_direct(&Path::new("/dev").join(name)), 0..requests);
    }
    let (after, shown) = (reads(), show.end());
    let counted = partitions.clone().map(|(_, name)| count(&shown, &name));
    assert_eq!(counted, [after[0] - before[0], after[1] - before[1]], "{shown}");
    assert!(counted[0] >= 300 && counted[1] >= 100 && count(&shown, disk.name()) == 0, "{shown}");
}
