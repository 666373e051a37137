//! Programs that run in steps.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Returns the distribution's Python: another `python3` earlier in the path may be a shell script, whose processes
/// would count.
pub fn python() -> &'static str {
    if Path::new("/usr/bin/python3").exists() {
        "/usr/bin/python3"
    } else {
        "python3"
    }
}

/// Returns a part of a file of tests/programs: what stands between the line `== NAME`, a comment, and the next such line.
pub fn part(file: &str, name: &str) -> String {
    let is_mark = |line: &str| line.split_once(" == ").is_some_and(|(mark, _)| ["#", "//"].contains(&mark));
    let is_its = |line: &str| is_mark(line) && line.split_once(" == ").unwrap().1 == name;
    let lines = file.lines().skip_while(|line| !is_its(line)).skip(1).take_while(|line| !is_mark(line));
    let part: String = lines.flat_map(|line| [line, "\n"]).collect();
    assert!(!part.is_empty(), "no program has a part `{name}`");
    part
}

/// A program that runs in steps: it prints a line after each, and reads one before the next.
pub struct Script {
    child: Child,
    input: Option<ChildStdin>,
    pub output: BufReader<ChildStdout>,
}

impl Script {
    /// Starts Python with `say(...)`, which prints, and `step(...)`, which also waits for a line.
    pub fn python(source: &str) -> Script {
        let start = "import sys, os, socket, threading, time, struct, errno, ctypes\n\
            def say(*what): print(*what, flush=True)\n\
            def step(*what):\n say(*what)\n return sys.stdin.readline()\n";
        Script::new(Command::new(python()).arg("-c").arg(format!("{start}{source}")))
    }

    /// Starts Python with the part of this name of a file of tests/programs.
    pub fn part(file: &str, name: &str) -> Script {
        Script::python(&part(file, name))
    }

    pub fn new(command: &mut Command) -> Script {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Script { input: child.stdin.take(), output, child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its next line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the script ended early");
        line.trim_end().to_string()
    }

    /// Returns its next line as numbers.
    pub fn numbers(&mut self) -> Vec<u64> {
        self.line().split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    pub fn go(&mut self) {
        self.tell("");
    }

    /// Sends a word, which `step` returns with the end of the line.
    pub fn tell(&mut self, word: &str) {
        self.input.as_mut().unwrap().write_all(format!("{word}\n").as_bytes()).unwrap();
    }

    /// Lets it run to its end.
    pub fn end(mut self) {
        drop(self.input.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a program. Another process moves it to its place: a file that this process has open for writing cannot be run, and a child
/// that another test starts meanwhile has it open, too, for a moment.
pub fn write_program(path: &Path, code: impl AsRef<[u8]>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), code).unwrap();
    copy_program(file.path(), path);
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Copies a program, by another process for the reason given at [`write_program`].
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let from = from.as_ref();
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp {} {}: {status}", from.display(), to.display());
}
