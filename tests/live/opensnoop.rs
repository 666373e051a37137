//! opensnoop against what the calls of a process return, and against strace(1).

use crate::common::lacks;
use crate::support::{alone, i386_program, number, Agent, Row, Script, I386_CODE};
use corebcc::kit::Key;
use corebcc::modules::find;
use corebcc::pcp::Atom;
use nix::libc;
use std::ffi::{CStr, CString};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

const PROGRAMS: &str = include_str!("../programs/opens.py");
const OWN: &str = "process = (?s:.*corebcc-opens.*)";

const PID: usize = 0;
const UID: usize = 1;
const FD: usize = 2;
const ERR: usize = 3;
const FLAGS: usize = 4;
const COMM: usize = 5;
const NAME: usize = 6;
const SEQ: usize = 8;

/// Returns the numbers of all opens, of those that failed, and of those without a row.
fn counts(agent: &mut Agent) -> [u64; 3] {
    let table = agent.other(find("opensnoop").unwrap().tables[1]);
    [0, 1, 2].map(|column| number(&table, 0, column))
}

/// Returns what was counted since.
fn since(agent: &mut Agent, before: [u64; 3]) -> [u64; 3] {
    let now = counts(agent);
    [0, 1, 2].map(|at| now[at] - before[at])
}

/// Returns the opens of a process, and those that failed.
fn of_process(agent: &mut Agent, process: &Script) -> [u64; 2] {
    let table = agent.other(find("opensnoop").unwrap().tables[2]);
    let of = |key: &Key| matches!(key, Key::Pid(pid, _) if *pid == process.pid());
    let row = table.keys().iter().position(of);
    row.map_or([0; 2], |row| [0, 1].map(|column| number(&table, row, column)))
}

fn ready(part: &str) -> Script {
    let mut script = Script::part(PROGRAMS, part);
    assert_eq!(script.line(), "ready");
    script
}

/// A shell that opens files by its redirections, each by one call.
fn shell() -> Script {
    let source = "exec 2>/dev/null; echo ready; read line; n=0; while [ $n -lt 2500 ]; do file=/dev/null; \
                  [ $((n % 10)) -lt 7 ] || file=/no/such; true <$file; n=$((n + 1)); done; echo done; read line";
    let mut shell = Script::new(Command::new("sh").args(["-c", source]));
    assert_eq!(shell.line(), "ready");
    shell
}

#[test]
fn every_open_is_counted_once_and_by_its_process() {
    let _alone = alone();
    // Without a filter: the agent takes its time to look at a command line.
    let mut agent = Agent::new("opensnoop", "rows = False");
    let mut shells = [(); 4].map(|()| shell());
    let before = counts(&mut agent);
    let start: Vec<[u64; 2]> = shells.iter().map(|shell| of_process(&mut agent, shell)).collect();
    shells.iter_mut().for_each(Script::go);
    shells.iter_mut().for_each(|shell| assert_eq!(shell.line(), "done"));
    let [all, failed, _] = since(&mut agent, before);
    // A program that is preempted on its CPU by a task that opens, too, does not run for that one, and the kernel counts it.
    let missed = agent.skipped_runs();
    println!("{all} opens, {failed} failed, {missed} missed");
    assert!(all + missed >= 10_000 && failed + missed >= 3_000, "{all} {failed} {missed}");
    let sums = shells.iter().zip(start).map(|(shell, [all, failed])| {
        let now = of_process(&mut agent, shell);
        [now[0] - all, now[1] - failed]
    });
    let sums: Vec<[u64; 2]> = sums.collect();
    if missed == 0 {
        assert_eq!(sums, [[2500, 750]; 4]);
    }
    let [all, failed] = [0, 1].map(|at| sums.iter().map(|sum| sum[at]).sum::<u64>());
    assert!(
        (10_000 - missed..=10_000).contains(&all) && (3_000 - missed.min(3_000)..=3_000).contains(&failed),
        "{sums:?}"
    );
}

#[test]
fn opens_of_a_program_are_as_many_as_strace_counts() {
    let _alone = alone();
    if lacks(&["strace"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [program, list] = ["corebcc-opens", "list"].map(|name| directory.path().join(name));
    std::fs::copy("/bin/ls", &program).unwrap();
    let mut agent = Agent::new("opensnoop", "process = corebcc-opens\nrows = False");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "name,calls,errors", "-e", "trace=?open,openat,openat2,?creat", "-o"]).arg(&list);
    strace.arg(&program).args(["-R", "/etc", "/no/such"]).output().unwrap();
    let said = std::fs::read_to_string(&list).unwrap();
    let total = said.lines().find_map(|line| line.trim().strip_prefix("total")).unwrap_or_else(|| panic!("{said}"));
    let total: Vec<u64> = total.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(total[0] > 50, "{said}");
    assert_eq!(counts(&mut agent), [total[0], total.get(1).copied().unwrap_or_default(), 0], "{said}");
    assert!(agent.rows().is_empty());
}

/// Checks the rows, the latest last, against lines of name, flags and result.
#[track_caller]
fn check(rows: &[&Row], lines: &[(String, u64, i64)]) {
    assert_eq!(rows.len(), lines.len(), "{rows:#?}");
    for (row, (name, flags, result)) in rows.iter().zip(lines) {
        assert_eq!(&row.text(NAME), name, "{row:?}");
        assert_eq!(row.number(FLAGS), *flags, "{row:?}");
        let is: [i64; 2] = [FD, ERR].map(|column| row.text(column).parse().unwrap());
        assert_eq!(is, [(*result).max(-1), (-result).max(0)], "{row:?}");
    }
}

/// Opens files in a process of its own, in this directory. Returns the process, and what each call returned.
fn in_a_process(directory: &Path, calls: &[(CString, Call)]) -> (u32, Vec<i64>) {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let directory = CString::new(directory.as_os_str().as_bytes()).unwrap();
    // SAFETY: the child makes system calls only, on memory that is allocated already.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the names end with NUL.
        unsafe { libc::chdir(directory.as_ptr()) };
        for (name, call) in calls {
            let result = call.make(name);
            let _ = writer.write_all(&result.to_ne_bytes());
        }
        // SAFETY: it ends the child.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).unwrap();
    let results = bytes.chunks(8).map(|bytes| i64::from_ne_bytes(bytes.try_into().unwrap()));
    (child as u32, results.collect())
}

/// A way to open a file, with flags.
#[derive(Clone, Copy)]
enum Call {
    Open(i32),
    Creat,
    Openat2(i32),
}

impl Call {
    fn flags(self) -> u64 {
        match self {
            Call::Open(flags) | Call::Openat2(flags) => flags as u64,
            Call::Creat => (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC) as u64,
        }
    }

    /// Returns a descriptor, or a negative error.
    fn make(self, name: &CStr) -> i64 {
        const MODE: u64 = 0o600;
        // SAFETY: the names end with NUL, and the structure has the size that the call is told.
        let result = unsafe {
            match self {
                Call::Open(flags) => libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, MODE),
                Call::Creat => libc::creat(name.as_ptr(), MODE as libc::mode_t).into(),
                Call::Openat2(flags) => {
                    let how = [flags as u64, if flags & libc::O_CREAT != 0 { MODE } else { 0 }, 0];
                    libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), how.as_ptr(), size_of_val(&how))
                }
            }
        };
        if result < 0 {
            -i64::from(nix::errno::Errno::last_raw())
        } else {
            result
        }
    }
}

#[test]
fn rows_have_name_flags_and_what_the_call_returned() {
    let _alone = alone();
    const MADE: i32 = libc::O_WRONLY | libc::O_CREAT;
    let long = "x".repeat(300);
    let calls = [
        ("made", Call::Open(MADE)),
        ("made", Call::Open(MADE | libc::O_EXCL | libc::O_CLOEXEC)),
        ("/no/such", Call::Open(libc::O_RDONLY)),
        ("created", Call::Creat),
        ("new", Call::Openat2(MADE | libc::O_EXCL)),
        (".", Call::Open(libc::O_RDONLY | libc::O_DIRECTORY)),
        (&long, Call::Open(libc::O_CLOEXEC)),
        ("", Call::Openat2(libc::O_RDONLY)),
    ]
    .map(|(name, call)| (CString::new(name).unwrap(), call));
    for failed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = Agent::new("opensnoop", &format!("failed = {failed}\nprocess_count = 100"));
        let (pid, results) = in_a_process(directory.path(), &calls);
        let lines = calls.iter().zip(results).map(|((name, call), result)| {
            let name = name.to_str().unwrap();
            (name[..name.len().min(255)].to_owned(), call.flags(), result)
        });
        let lines: Vec<_> = lines.filter(|(_, _, result)| *result < 0 || !failed).collect();
        assert_eq!(lines.len(), if failed { 4 } else { 8 }, "{lines:?}");
        let rows = agent.rows();
        let own: Vec<&Row> = rows.iter().rev().filter(|row| row.number(PID) == u64::from(pid)).collect();
        check(&own, &lines);
        assert!(own.iter().all(|row| row.number(UID) == 0 && !row.text(COMM).is_empty()), "{own:?}");
    }
}

#[test]
fn opens_of_one_user_are_counted_alone() {
    let _alone = alone();
    let mut agent = Agent::new("opensnoop", &format!("{OWN}\nuid = 65534"));
    let mut script = ready("users");
    script.go();
    assert_eq!(script.line(), "done");
    assert_eq!(counts(&mut agent)[..2], [30, 0]);
    assert!(agent.rows().iter().all(|row| row.number(UID) == 65534));
}

#[test]
fn a_stranger_that_opens_many_files_does_not_hide_others() {
    let _alone = alone();
    let mut agent = Agent::new("opensnoop", &format!("{OWN}\nprocess_count = 8\nbuffer_page_count = 4"));
    let mut script = ready("flood");
    let before = counts(&mut agent);
    script.go();
    let flood = script.numbers()[0];
    let rows = agent.rows();
    let others: Vec<String> = rows.iter().filter(|row| row.number(PID) != flood).map(|row| row.text(NAME)).collect();
    let [all, failed, lost] = counts(&mut agent);
    println!("{others:?}; {all} opens, {lost} without a row");
    assert_eq!(others, ["/dev/zero"; 2], "a quarter of the rows");
    assert_eq!((all - before[0], failed - before[1]), (100_005, 0));
    let shown = rows[0].number(SEQ);
    assert_eq!(shown + lost, all, "each has a number or is counted as lost");
    assert!(lost > 90_000, "{lost}");
}

/// Code that opens this name by open, creat and openat, and exits.
fn i386_opens(name: &[u8]) -> Vec<u8> {
    let call = |number: u32, arguments: [u32; 3]| {
        let mut code = vec![0xb8];
        code.extend(number.to_le_bytes());
        for (register, argument) in [0xbb, 0xb9, 0xba].into_iter().zip(arguments) {
            code.push(register);
            code.extend(argument.to_le_bytes());
        }
        code.extend([0xcd, 0x80]);
        code
    };
    let calls = |at: u32| {
        let here = -100i32 as u32;
        [call(5, [at, 0, 0]), call(8, [at, 0, 0]), call(295, [here, at, 0o2_000_000]), call(1, [0, 0, 0])].concat()
    };
    let mut code = calls(I386_CODE + calls(0).len() as u32);
    code.extend(name);
    code
}

#[test]
fn opens_of_a_32_bit_program_have_their_names() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("corebcc-opens");
    if !i386_program(&path, &i386_opens(b"/no/such/name\0")) {
        return;
    }
    let mut agent = Agent::new("opensnoop", "process = corebcc-opens");
    assert!(Command::new(&path).status().unwrap().success());
    let rows = agent.rows();
    let line = |flags| ("/no/such/name".to_owned(), flags, -2);
    check(&rows.iter().rev().collect::<Vec<_>>(), &[line(0), line(0o1101), line(0o2_000_000)]);
    assert!(rows.iter().all(|row| row.text(COMM) == "corebcc-opens"));
}

#[test]
fn names_of_strangers_cannot_write_to_a_terminal() {
    let _alone = alone();
    let mut agent = Agent::new("opensnoop", OWN);
    let open = "# corebcc-opens\nstep('ready')\ntry: open(b'/no/\\x1b[2J\\n\\xff')\nexcept OSError: step('done')";
    let mut script = Script::python(open);
    assert_eq!(script.line(), "ready");
    script.go();
    assert_eq!(script.line(), "done");
    let table = agent.table();
    let name = table.value(0, NAME);
    assert!(matches!(name, Some(Atom::Str(name)) if !name.iter().any(u8::is_ascii_control)), "{name:?}");
}
