//! The `process` option: the processes that count, and the instructions between which they do, against work of known size. Between
//! two steps the modules learn of new command lines as in the agent.

use crate::common::tracers::UnseenArrivals;
use crate::common::{lacks, loaded, skip};
use crate::support::{alone, python, Script};
use corebcc::catalog::EnabledModule;
use corebcc::collector::Engine;
use corebcc::kit::{Key, Table, TableId};
use corebcc::pcp::Atom;
use nix::sys::eventfd::EventFd;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const GETPPID: u32 = if cfg!(target_arch = "aarch64") { 173 } else { 110 };
const GETTID: u32 = if cfg!(target_arch = "aarch64") { 178 } else { 186 };
const EXIT: u32 = if cfg!(target_arch = "aarch64") { 93 } else { 60 };
const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

/// Loaded modules.
struct Modules {
    group: Engine,
    /// An event that nobody triggers.
    never: EventFd,
    modules: Vec<EnabledModule>,
}

impl Modules {
    /// Loads modules, each with its options.
    fn new(modules: &[(&str, &str)], refresh: Option<Duration>) -> Modules {
        let names: Vec<&str> = modules.iter().map(|(name, _)| *name).collect();
        let mut text = format!("[pmda]\nmodules = {}\n", names.join(","));
        for (cluster, (name, options)) in modules.iter().enumerate() {
            text += &format!("[{name}]\nmodule = {name}\ncluster = {cluster}\n{options}\n");
        }
        let (group, modules) = loaded(&text, refresh);
        assert!(group.outcomes().iter().all(Result::is_ok), "root is needed: {:?}", group.outcomes());
        Modules { group, never: EventFd::new().unwrap(), modules }
    }

    fn syscount(options: &str, refresh: Option<Duration>) -> Modules {
        Modules::new(&[("syscount", options)], refresh)
    }

    fn table(&mut self, module: usize) -> Table {
        let moment = Instant::now() + Duration::from_millis(1);
        self.group.attend(self.never.as_fd(), Some(moment));
        let mut table = Table::of(self.modules[module].spec.tables[0]);
        self.group.refresh(TableId::new(module as u16), &mut table).unwrap();
        table
    }

    /// Returns the values of the first metric by the names of instances.
    fn counts(&mut self, module: usize) -> BTreeMap<String, u64> {
        let table = self.table(module);
        let name = |key: &Key| match key {
            Key::Name(name) | Key::Numbered(_, name) => String::from_utf8_lossy(table.text(name)).into_owned(),
            Key::Index(index) => index.to_string(),
            other => panic!("{other:?}"),
        };
        let value = |row| match table.value(row, 0) {
            Some(Atom::U64(value)) => Some(value),
            _ => None,
        };
        table.keys().iter().enumerate().filter_map(|(row, key)| Some((name(key), value(row)?))).collect()
    }

    /// Returns the number of getppid calls that the first module counted.
    fn getppid(&mut self) -> u64 {
        self.counts(0).get("getppid").copied().unwrap_or(0)
    }
}

/// Programs under names of the test.
struct Programs(TempDir);

impl Programs {
    fn new() -> Programs {
        Programs(tempfile::tempdir().unwrap())
    }

    fn path(&self, program: &str, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        if !path.exists() {
            symlink(program, &path).unwrap();
        }
        path
    }

    /// Returns a command that runs perl under a name.
    fn perl(&self, name: &str, source: &str) -> Command {
        let mut command = Command::new(self.path("/usr/bin/perl", name));
        command.args(["-e", source]);
        command
    }

    /// Runs perl under a name to its end. Returns its process identifier.
    fn run(&self, name: &str, source: &str) -> u32 {
        let mut child = self.perl(name, source).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        child.id()
    }
}

fn getppid(times: u32) -> String {
    format!("syscall({GETPPID}) for 1..{times};")
}

/// Returns the counts of strace by the module's names, without the exec that began the program.
fn traced(file: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(file).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.last().filter(|name| **name != "execve" && **name != "total")?;
        let name = if *name == "pread64" { "pread" } else { name };
        Some((name.to_string(), words.get(3)?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn a_short_process_counts_from_its_first_call_to_its_last() {
    let _alone = alone();
    if lacks(&["strace"]) {
        return;
    }
    let programs = Programs::new();
    let counts = programs.0.path().join("counts");
    // By its name, and by its command line: that of strace begins otherwise.
    let line = format!("(?s){}/corebcc_short -e .*70;", programs.0.path().display());
    for (process, refresh) in [("corebcc_short", None), ("corebcc_short", MINUTE), (&line, None), (&line, MINUTE)] {
        let mut modules = Modules::syscount(&format!("process = {process}"), refresh);
        let run = Command::new("strace")
            .args(["-f", "-c", "-U", "time,avg-time,total-time,calls,name", "-o"])
            .arg(&counts)
            .arg(programs.path("/usr/bin/perl", "corebcc_short"))
            .args(["-e", &getppid(70)])
            .status();
        assert!(run.unwrap().success());
        let mut seen = modules.counts(0);
        // strace does not see a call that does not return.
        assert_eq!(seen.remove("exit_group"), Some(1), "{process} {refresh:?}");
        let mut theirs = traced(&counts);
        theirs.remove("exit_group");
        println!("{theirs:?}");
        assert!(theirs["getppid"] == 70 && theirs.contains_key("brk"), "strace saw the loader: {theirs:?}");
        assert_eq!(seen, theirs, "{process} {refresh:?}");
    }
}

#[test]
fn children_count_from_birth_and_other_names_do_not_count() {
    let _alone = alone();
    let programs = Programs::new();
    let mut modules = Modules::syscount("process = corebcc_forks", None);
    let forks = format!("for (1..5) {{ if (!fork) {{ {} exit 0 }} wait }} {}", getppid(100), getppid(7));
    programs.run("corebcc_forks", &forks);
    assert_eq!(modules.getppid(), 507);
    // At most 15 bytes make a name: the last two of these are what the kernel calls them, and no entry.
    for name in ["corebcc_fork", "corebcc_forks2", "corebcc_forks_of_others", "Corebcc_forks"] {
        programs.run(name, &forks);
    }
    assert_eq!(modules.getppid(), 507);
}

#[test]
fn a_program_is_what_its_last_exec_made_it() {
    let _alone = alone();
    let programs = Programs::new();
    let mut modules = Modules::syscount("process = corebcc_first", MINUTE);
    let second = programs.path("/usr/bin/perl", "corebcc_second");
    let then = format!("{} exec '{}', '-e', '{}'", getppid(10), second.display(), getppid(1000));
    programs.run("corebcc_first", &then);
    assert_eq!(modules.getppid(), 10, "it left");
    let first = programs.path("/usr/bin/perl", "corebcc_first");
    let back = format!("{} exec '{}', '-e', '{}'", getppid(1000), first.display(), getppid(20));
    programs.run("corebcc_second", &back);
    assert_eq!(modules.getppid(), 30, "it came");
}

#[test]
fn a_process_counts_until_its_last_thread_ends() {
    let _alone = alone();
    let programs = Programs::new();
    let mut modules = Modules::syscount("process = corebcc_thread", None);
    let work = format!(
        "import ctypes, os, threading, time\n\
         c = ctypes.CDLL(None)\n\
         def work():\n\
         \x20while ' Z ' not in open('/proc/self/task/%d/stat' % os.getpid()).read(): time.sleep(0.001)\n\
         \x20for i in range(300): c.syscall({GETPPID})\n\
         \x20os._exit(0)\n\
         threading.Thread(target=work).start()\n\
         c.syscall({EXIT}, 0)"
    );
    let python = programs.path(python(), "corebcc_thread");
    assert!(Command::new(python).args(["-c", &work]).status().unwrap().success());
    assert_eq!(modules.getppid(), 300);
}

/// Runs perl under a name with this process identifier. Returns false if the kernel does not let it be chosen, or another process was
/// faster.
fn run_as(programs: &Programs, pid: u32, name: &str, source: &str) -> bool {
    if let Err(error) = std::fs::write("/proc/sys/kernel/ns_last_pid", format!("{}", pid - 1)) {
        skip(&format!("/proc/sys/kernel/ns_last_pid ({error})"));
        return true;
    }
    programs.run(name, source) == pid
}

#[test]
fn a_process_id_used_again_is_another_process() {
    let _alone = alone();
    let programs = Programs::new();
    let mut modules = Modules::syscount("process = corebcc_reused", MINUTE);
    let again = |name: &str, source: &str| {
        (0..100).any(|_| {
            let pid = programs.run("corebcc_reused", "");
            run_as(&programs, pid, name, source)
        })
    };
    assert!(again("corebcc_strange", &getppid(1000)), "another process had the id a hundred times");
    assert_eq!(modules.getppid(), 0);
    // The end of the first of two with one id, which the kernel reports late, is not that of the second.
    let late = format!("select undef, undef, undef, 0.2; {}", getppid(50));
    let before = modules.getppid();
    assert!(again("corebcc_reused", &late));
    let counted = modules.getppid() - before;
    assert!(counted > 0 && counted.is_multiple_of(50), "{counted}");
}

#[test]
fn a_line_the_kernel_cannot_judge_is_matched_after_the_exec() {
    let _alone = alone();
    let programs = Programs::new();
    let cases = [
        (".*corebcc-by-line.*", 9000, None),
        (".*corebcc-by-line.*", 9000, MINUTE),
        // No automaton can look ahead.
        ("(?!.*corebcc-but-not).*corebcc-by-line.*", 1, None),
    ];
    for (expression, length, refresh) in cases {
        let mut modules = Modules::syscount(&format!("process = {expression}"), refresh);
        // A call for each line; `fork` has a child make them, which was born before anybody looked at the command line.
        let source = format!(
            "$| = 1; if ($ARGV[0] eq 'fork' && fork) {{ wait; exit 0 }} print \"up\\n\"; while (<STDIN>) {{ \
             syscall({GETPPID}); print \"called\\n\" }}"
        );
        for how in ["alone", "fork"] {
            let mut script = Script::new(programs.perl("corebcc_lines", &source).args([
                how,
                "corebcc-by-line",
                &"x".repeat(length),
            ]));
            script.line();
            let before = modules.getppid();
            let first = (0..1000).find(|_| {
                script.go();
                script.line();
                modules.getppid() > before
            });
            println!("counted from call {first:?} on");
            assert!(first.is_some(), "{expression} {refresh:?} {how}");
            for more in 1..=20 {
                script.go();
                script.line();
                assert_eq!(modules.getppid(), before + 1 + more);
            }
            script.end();
        }
        let all = modules.getppid();
        programs.run("corebcc_lines", &getppid(100));
        assert_eq!(modules.getppid(), all, "another command line");
    }
}

#[test]
fn counters_never_step_back_while_processes_come_and_go() {
    let _alone = alone();
    let programs = Programs::new();
    let mut modules = Modules::syscount("process = corebcc_comes, .*corebcc-goes.*", Some(Duration::from_secs(1)));
    let mut before = BTreeMap::new();
    let mut children = Vec::new();
    for round in 1..=40u64 {
        programs.run("corebcc_comes", &getppid(25));
        let sleep = format!("select undef, undef, undef, 0.{}; # corebcc-goes", round % 10);
        children.push(programs.perl("corebcc_other", &sleep).spawn().unwrap());
        let now = modules.counts(0);
        for (name, count) in &before {
            assert!(now.get(name) >= Some(count), "{name}: {count}, then {:?}", now.get(name));
        }
        assert_eq!(now["getppid"], 25 * round);
        before = now;
    }
    children.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
}

#[test]
fn modules_with_different_filters_do_not_mix() {
    let _alone = alone();
    let programs = Programs::new();
    let filters = [
        ("syscount", "process = corebcc_one,corebcc_three"),
        ("tracepoint_hits", "tracepoints = raw_syscalls:sys_enter\nprocess = corebcc_two"),
        ("runqlat", "process = corebcc_three"),
    ];
    let mut modules = Modules::new(&filters, None);
    let sleeps = "select undef, undef, undef, 0.001 for 1..50;";
    let state = |modules: &mut Modules| {
        let waits = modules.counts(2).values().sum::<u64>();
        (modules.getppid(), modules.counts(1)["raw_syscalls:sys_enter"], waits)
    };
    assert_eq!(state(&mut modules), (0, 0, 0));
    programs.run("corebcc_one", &format!("{} {sleeps}", getppid(1000)));
    assert_eq!(state(&mut modules), (1000, 0, 0));
    programs.run("corebcc_two", &format!("{} {sleeps}", getppid(500)));
    let (calls, hits, waits) = state(&mut modules);
    assert!(calls == 1000 && hits >= 550 && waits == 0, "{calls} {hits} {waits}");
    let unseen = UnseenArrivals::record();
    programs.run("corebcc_three", &format!("{} {sleeps}", getppid(100)));
    let after = state(&mut modules);
    let (unseen, _) = unseen.end();
    assert!(after.0 == 1100 && after.1 == hits && after.2 + unseen >= 50, "{after:?} {unseen}");
}

#[test]
fn a_list_takes_names_ids_and_expressions() {
    let _alone = alone();
    let programs = Programs::new();
    let work = format!("$| = 1; print \"up\\n\"; while (<STDIN>) {{ syscall({GETPPID}); print \"called\\n\" }}");
    let mut by_id = Script::new(&mut programs.perl("corebcc_id", &work));
    let mut by_line = Script::new(programs.perl("corebcc_line", &work).arg("corebcc-line-1"));
    by_id.line();
    by_line.line();
    let list = format!("process = corebcc_a, {}, .*corebcc-line-.*, corebcc_b", by_id.pid());
    let mut modules = Modules::syscount(&list, None);
    for script in [&mut by_id, &mut by_line] {
        script.go();
        script.line();
    }
    assert_eq!(modules.getppid(), 2, "they were there before");
    programs.run("corebcc_a", &getppid(10));
    programs.run("corebcc_b", &getppid(20));
    programs.run("corebcc_c", &getppid(1000));
    assert_eq!(modules.getppid(), 32);
}

#[test]
fn details_of_new_processes_are_complete_and_do_not_mix() {
    let _alone = alone();
    let programs = Programs::new();
    let mut modules = Modules::syscount("process = corebcc_detail\ndetails = True", None);
    let source = format!(
        "$| = 1; {} print \"up\\n\"; <STDIN>; syscall({GETTID}) for 1..$ARGV[0]; print \"done\\n\"; <STDIN>;",
        getppid(40)
    );
    let (mut shown, mut begun) = (0, 0);
    // More processes than the 128 rows: rows are used again.
    while shown < 192 {
        let (one, two) = (shown + 1, 1000 + shown);
        let mut scripts =
            [one, two].map(|times| Script::new(programs.perl("corebcc_detail", &source).arg(times.to_string())));
        for script in &mut scripts {
            script.line();
            script.go();
            script.line();
            begun += 1;
        }
        let counts = modules.counts(0);
        for (script, times) in scripts.iter().zip([one, two]) {
            let [first, then] =
                ["getppid", "gettid"].map(|name| counts.get(&format!("{}::{name}", script.pid())).copied());
            match (first, then) {
                (None, None) => std::thread::sleep(Duration::from_millis(20)), // the rows are being emptied
                counted => assert_eq!(counted, (Some(40), Some(times))),
            }
            shown += u64::from(first.is_some());
        }
        assert_eq!(counts["getppid"], begun * 40);
        scripts.into_iter().for_each(Script::end);
    }
}

#[test]
fn a_session_of_a_short_lived_process_is_shown_and_no_other() {
    let _alone = alone();
    let programs = Programs::new();
    let mut modules = Modules::new(&[("tcplife", "process = corebcc_client")], None);
    let mut server = Script::python(
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(9); say(s.getsockname()[1])\n\
         while True:\n\x20c, _ = s.accept(); c.recv(9); c.close()",
    );
    let port = server.numbers()[0];
    for name in ["corebcc_client", "corebcc_other", "corebcc_client"] {
        let client = programs.path(python(), name);
        let source = format!(
            "import socket, os; s = socket.create_connection(('127.0.0.1', {port})); s.send(b'x'); s.recv(1); os._exit(0)"
        );
        assert!(Command::new(client).args(["-c", &source]).stdin(Stdio::null()).status().unwrap().success());
    }
    crate::support::settle();
    let table = modules.table(0);
    let comm = |row| match table.value(row, 1) {
        Some(Atom::Str(name)) => String::from_utf8_lossy(name).into_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!((0..table.len()).map(comm).collect::<Vec<_>>(), ["corebcc_client"; 2]);
}
