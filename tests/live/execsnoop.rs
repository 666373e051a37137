//! execsnoop on the agent kernel: execs of a known script, of long command lines, of failures. The patterns keep execs of other
//! processes out of the table.

use crate::support::{alone, i386_program, number, python, write_program, Agent, Row, I386_CODE};
use corebcc::modules::find;
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const COMM: usize = 0;
const PID: usize = 1;
const PPID: usize = 2;
const RET: usize = 3;
const ARGS: usize = 4;

fn column(rows: &[Row], column: usize) -> Vec<String> {
    rows.iter().map(|row| row.values[column].clone().unwrap()).collect()
}

#[test]
fn script_execs_are_latest_first_with_their_arguments() {
    let _alone = alone();
    let mut agent = Agent::new("execsnoop", "args = corebcc-known\nprocess_count = 3\nbpf_names = True");
    assert_eq!(agent.hooks(), ["sched_process_exec"]);
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("corebcc-known");
    write_program(&script, "#!/bin/sh -e\nexit 0\n");
    let mut pids = Vec::new();
    for i in 1..=5 {
        let mut child = Command::new(&script).args([&format!("n{i}"), "two words", "", "a\nb"]).spawn().unwrap();
        pids.push(child.id().to_string());
        child.wait().unwrap();
    }
    let rows = agent.rows();
    assert_eq!(column(&rows, PID), [&*pids[4], &pids[3], &pids[2]]);
    let path = script.display();
    let args = |i| format!("{path} n{i} two words  a\\nb");
    assert_eq!(column(&rows, ARGS), [args(5), args(4), args(3)]);
    assert_eq!(column(&rows, COMM), ["corebcc-known"; 3]);
    assert_eq!(column(&rows, PPID), vec![std::process::id().to_string(); 3]);
    assert_eq!(column(&rows, RET), ["0"; 3]);
    assert_eq!(column(&agent.rows(), ARGS), [args(5), args(4), args(3)], "reading consumes nothing");
    let more = agent.other(find("execsnoop").unwrap().tables[1]);
    assert_eq!([1, 5].map(|column| number(&more, 0, column)), [pids[4].parse().unwrap(), 0], "the last, by root");
    assert_eq!(number(&more, 0, 7), number(&more, 1, 7) + 1, "they are numbered");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!((now - 10_000..=now).contains(&number(&more, 0, 6)), "{} of {now}", number(&more, 0, 6));
}

#[test]
fn long_command_lines_are_cut_with_dots() {
    let _alone = alone();
    let options = "args = corebcc-long\nmax_args = 1000";
    let mut agent = Agent::new("execsnoop", options);
    let word = "x".repeat(99);
    for count in [2, 3, 35, 45] {
        let args = std::iter::once("corebcc-long").chain(std::iter::repeat_n(&*word, count));
        assert!(Command::new("/bin/true").args(args).status().unwrap().success());
    }
    let rows = agent.rows();
    let args = column(&rows, ARGS);
    let whole = |count: usize| format!("/bin/true corebcc-long{}", format!(" {word}").repeat(count));
    assert_eq!(args[1..], [whole(35), whole(3), whole(2)]);
    assert!(args[0].ends_with("x ...") && args[0].len() > 4000, "{} bytes", args[0].len());
    assert!(whole(45).starts_with(args[0].trim_end_matches(" ...")));
}

#[test]
fn execs_by_descriptor_and_by_a_thread_are_shown_once_each() {
    let _alone = alone();
    let mut agent = Agent::new("execsnoop", "args = corebcc-fd");
    let script = "import os, threading\n\
         if not os.fork(): os.execve(os.open('/bin/true', os.O_RDONLY), ['true', 'corebcc-fd', 'a'], {})\n\
         os.wait()\n\
         threading.Thread(target=lambda: os.execv('/bin/true', ['true', 'corebcc-fd', 'b'])).start()\n\
         threading.Event().wait()";
    // The script itself is an argument that matches.
    let mut child = Command::new(python()).args(["-c", script]).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let rows = agent.rows();
    let args: Vec<String> = column(&rows, ARGS).into_iter().filter(|args| !args.contains("import")).collect();
    assert_eq!(args[0], "/bin/true corebcc-fd b");
    assert!(args[1].starts_with("/dev/fd/") && args[1].ends_with(" corebcc-fd a"), "{args:?}");
    assert_eq!(args.len(), 2);
    assert_eq!(column(&rows, PID)[0], child.id().to_string(), "a thread that execs takes over the process");
}

#[test]
fn failed_execs_are_shown_with_their_error_only_if_asked_for() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("corebcc-fails");
    fs::write(&plain, "no program").unwrap();
    let work = || {
        for path in ["/no/corebcc-fails", plain.to_str().unwrap()] {
            let error = Command::new(path).args(["one", "two words", "", "a\nb"]).spawn().unwrap_err();
            assert!(error.raw_os_error().is_some());
        }
    };
    let mut agent = Agent::new("execsnoop", "args = corebcc-fails");
    work();
    assert!(agent.rows().is_empty());
    drop(agent);

    let options = "args = corebcc-fails\ninclude_failed = True";
    let mut agent = Agent::new("execsnoop", options);
    assert_eq!(agent.hooks(), ["sched_process_exec", "sys_exit"]);
    work();
    let rows = agent.rows();
    assert_eq!(column(&rows, RET), ["-13", "-2"]);
    let args = "one two words  a\\nb";
    assert_eq!(column(&rows, ARGS), [format!("{} {args}", plain.display()), format!("/no/corebcc-fails {args}")]);
    let caller = fs::read_to_string("/proc/thread-self/comm").unwrap();
    assert_eq!(column(&rows, COMM), [caller.trim_end(); 2]);
    assert_eq!(column(&rows, PPID), vec![std::process::id().to_string(); 2]);
}

#[test]
fn after_a_burst_beyond_the_ring_new_execs_are_shown_again() {
    let _alone = alone();
    let options = "args = corebcc-burst\nbuffer_page_count = 1\nprocess_count = 10000";
    let mut agent = Agent::new("execsnoop", options);
    // 64 KiB hold 110 records of 592 bytes; nobody drains while these run.
    let script = "i=0; while [ $i -lt 200 ]; do /bin/true corebcc-burst; i=$((i+1)); done";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    let shown = agent.rows().iter().filter(|row| row.values[ARGS].as_ref().unwrap().starts_with("/bin/true")).count();
    assert!((1..=110).contains(&shown), "{shown}");
    let warnings = agent.warnings();
    assert!(warnings.iter().any(|line| line.contains("events without a row because the ring")), "{warnings:?}");
    // What follows fits again.
    assert!(Command::new("sh").args(["-c", script.replace("200", "20").as_str()]).status().unwrap().success());
    let again = agent.rows().iter().filter(|row| row.values[ARGS].as_ref().unwrap().starts_with("/bin/true")).count();
    assert_eq!(again, shown + 20);
}

#[test]
fn execs_by_a_32_bit_program_are_shown_with_their_arguments() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small");
    // execve(path, argv, 0), exit(0), then argv and the strings, for two paths.
    let code = |exec: &str| {
        let data = I386_CODE + 28;
        let (first, second) = (data + 12, data + 14);
        let mut code = vec![0xb8, 11, 0, 0, 0, 0xbb];
        code.extend((second + 13).to_le_bytes());
        code.push(0xb9);
        code.extend(data.to_le_bytes());
        code.extend([0x31, 0xd2, 0xcd, 0x80, 0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80]);
        code.extend([first, second, 0].into_iter().flat_map(u32::to_le_bytes));
        code.extend(b"x\0corebcc-thin\0");
        code.extend(exec.bytes().chain([0]));
        code
    };
    if !i386_program(&path, &code("/no/such")) {
        return;
    }
    let options = "args = corebcc-thin\ninclude_failed = True";
    let mut agent = Agent::new("execsnoop", options);
    for exec in ["/no/such", "/bin/true"] {
        assert!(i386_program(&path, &code(exec)));
    }
    let rows = agent.rows();
    assert_eq!(column(&rows, ARGS), ["/bin/true corebcc-thin", "/no/such corebcc-thin"]);
    assert_eq!(column(&rows, RET), ["0", "-2"]);
    assert_eq!(column(&rows, COMM), ["true", "small"]);
}

/// The last argument of each exec has another distance from the end of a page.
#[test]
fn an_argument_of_any_length_is_whole_wherever_it_ends() {
    let _alone = alone();
    let mut agent = Agent::new("execsnoop", "args = corebcc-long\nprocess_count = 100");
    let words: Vec<String> =
        [1, 127, 128, 129, 300, 3000].into_iter().chain((0..40).map(|i| 200 + i * 97)).map(|n| "y".repeat(n)).collect();
    let words: Vec<&String> = words.iter().filter(|word| word.len() < 4000).collect();
    for word in &words {
        assert!(Command::new("/bin/true").args(["corebcc-long", word]).status().unwrap().success());
    }
    let rows = agent.rows();
    let args = column(&rows, ARGS);
    let wanted: Vec<String> = words.iter().rev().map(|word| format!("/bin/true corebcc-long {word}")).collect();
    assert_eq!(args, wanted);
}
