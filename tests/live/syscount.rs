//! syscount on the agent kernel: a process makes a known number of system calls, and only it counts. It waits for its start in a
//! read, so the counts are exact.

use crate::support::{alone, i386_program, wait_together, Agent, Script};
use nix::libc;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

const COUNT: usize = 0;
const AVERAGE: usize = 1;
const TIME: usize = 2;

const ARM: bool = cfg!(target_arch = "aarch64");
const GETPPID: u32 = if ARM { 173 } else { 110 };
const CLOSE: u32 = if ARM { 57 } else { 3 };
const NANOSLEEP: u32 = if ARM { 101 } else { 35 };

/// Starts a process that does this work once told to, and then waits in a read again.
fn caller(work: &str) -> Script {
    let source = format!(
        "$| = 1; $path = '/no/such'; $how = pack('Q3', 0, 0, 0); print \"ready\\n\"; sysread STDIN, $x, 1; {work}; print \
         \"done\\n\"; sysread STDIN, $x, 1; exit 0;"
    );
    let mut caller = Script::new(Command::new("perl").args(["-e", &source]));
    reads(&mut caller, "ready");
    caller
}

/// Waits for this line, and then until the process sleeps in its read.
fn reads(caller: &mut Script, line: &str) {
    assert_eq!(caller.line(), line);
    while !std::fs::read_to_string(format!("/proc/{}/stat", caller.pid())).unwrap().contains(") S ") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn works(caller: &mut Script) {
    caller.go();
    reads(caller, "done");
}

/// Loads syscount with these options for this process only.
fn agent(caller: &Script, options: &str) -> Agent {
    Agent::new("syscount", &format!("process = {}\n{options}", caller.pid()))
}

fn calls(number: u32, arguments: &str, times: u32) -> String {
    format!("syscall({number}{arguments}) for 1..{times}")
}

#[test]
fn each_call_is_counted_once_under_its_name_and_number() {
    let _alone = alone();
    let work = [
        calls(GETPPID, "", 1000),
        calls(CLOSE, ", 999", 300),
        calls(437, ", -100, $path, $how, 24", 70),
        calls(400, "", 5),
    ];
    let mut caller = caller(&work.join("; "));
    let mut agent = agent(&caller, "");
    assert!(agent.hooks().contains(&"sys_enter") && !agent.hooks().contains(&"sys_exit"), "{:?}", agent.hooks());
    let before = agent.numbers(COUNT);
    assert!(before.is_empty(), "it waits: {before:?}");
    works(&mut caller);
    let counts = agent.numbers(COUNT);
    assert_eq!(counts["getppid"], 1000);
    assert_eq!(counts["close"], 300);
    assert_eq!(counts["openat2"], 70);
    assert_eq!(counts["UNDEF400"], 5);
    let rows = agent.rows();
    let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
    assert_eq!((row("getppid").id, row("openat2").id), (GETPPID, 437));
    assert!(rows.iter().all(|row| row.values[TIME].is_none() && row.values[AVERAGE].is_none()));
    caller.end();
    let counts = agent.numbers(COUNT);
    assert_eq!((counts["getppid"], counts["exit_group"]), (1000, 1), "counts outlive the process");
}

#[test]
fn forks_count_in_the_parent_and_others_not_at_all() {
    let _alone = alone();
    let work = format!("for (1..40) {{ if (!fork) {{ {}; exit 0 }} wait }}", calls(GETPPID, "", 10));
    for options in ["", "latency = True"] {
        let mut caller = caller(&work);
        let mut agent = agent(&caller, options);
        works(&mut caller);
        let counts = agent.numbers(COUNT);
        let forks: u64 = ["fork", "vfork", "clone", "clone3"].iter().filter_map(|name| counts.get(*name)).sum();
        assert_eq!(forks, 40, "{options}");
        assert_eq!(counts.get("getppid"), None, "{options}: of the children");
        caller.end();
    }
}

#[test]
fn failed_and_errno_count_the_calls_that_return_an_error() {
    let _alone = alone();
    let work = [calls(GETPPID, "", 100), calls(CLOSE, ", 999", 30), calls(437, ", -100, $path, $how, 24", 7)];
    for (options, close, openat2) in [
        ("failed = True", Some(30), Some(7)),
        ("errno = ENOENT", None, Some(7)),
        ("errno = -9\nfailed = True", Some(30), None),
    ] {
        for latency in ["", "\nlatency = True"] {
            let mut caller = caller(&work.join("; "));
            let mut agent = agent(&caller, &format!("{options}{latency}"));
            assert_eq!(agent.hooks().contains(&"sys_enter"), !latency.is_empty());
            works(&mut caller);
            let counts = agent.numbers(COUNT);
            let count = |name: &str| counts.get(name).copied();
            assert_eq!(
                (count("close"), count("openat2"), count("getppid")),
                (close, openat2, None),
                "{options}{latency}"
            );
            let timed = agent.numbers(TIME);
            assert_eq!(
                timed.keys().collect::<Vec<_>>(),
                if latency.is_empty() { vec![] } else { counts.keys().collect() }
            );
            caller.end();
        }
    }
}

#[test]
fn latency_is_the_time_of_calls_and_average_is_total_by_count() {
    let _alone = alone();
    let sleeps = calls(NANOSLEEP, ", $t, 0", 20);
    let mut caller = caller(&format!("$t = pack('q2', 0, 5_000_000); {sleeps}; {}", calls(GETPPID, "", 1000)));
    let mut agent = agent(&caller, "latency = True");
    let began = std::time::Instant::now();
    works(&mut caller);
    let most = began.elapsed().as_nanos() as u64;
    for _ in 0..2 {
        let (counts, total, average) = (agent.numbers(COUNT), agent.numbers(TIME), agent.numbers(AVERAGE));
        assert_eq!((counts["nanosleep"], counts["getppid"]), (20, 1000));
        assert!((20 * 5_000_000..most).contains(&total["nanosleep"]), "{} of {most} ns", total["nanosleep"]);
        assert!((1000..most).contains(&total["getppid"]));
        for name in ["nanosleep", "getppid"] {
            assert_eq!(average[name], total[name] / counts[name]);
        }
        // It waits in its read: begun, not ended, and the first read began before the module came.
        assert_eq!((counts["read"], total.get("read")), (1, None));
    }
    caller.end();
}

#[test]
fn calls_of_five_thousand_threads_at_once_are_all_timed() {
    const THREADS: u64 = 5000;
    let _alone = alone();
    let mut agent = Agent::new("syscount", &format!("process = {}\nlatency = True", std::process::id()));
    let time = Duration::from_millis(200);
    wait_together(THREADS as usize, time, |pipe| {
        // SAFETY: all zeros is a set without files, the pipe is open, and the other pointers may be null.
        unsafe {
            let mut files: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(pipe.as_raw_fd(), &mut files);
            let null = std::ptr::null_mut();
            assert_eq!(
                libc::pselect(pipe.as_raw_fd() + 1, &mut files, null, null, std::ptr::null(), std::ptr::null()),
                1
            );
        }
    });
    let (counts, total, average) = (agent.numbers(COUNT), agent.numbers(TIME), agent.numbers(AVERAGE));
    assert_eq!(counts["pselect6"], THREADS);
    assert_eq!(average["pselect6"], total["pselect6"] / THREADS, "each was timed");
    assert!(average["pselect6"] > time.as_nanos() as u64, "{average:?}");
    assert!(agent.warnings().is_empty(), "{:?}", agent.warnings());
}

#[test]
fn details_are_the_calls_of_each_process() {
    let _alone = alone();
    let mut first = caller(&calls(GETPPID, "", 100));
    let mut second = caller(&calls(GETPPID, "", 20));
    let (one, two) = (first.pid(), second.pid());
    let options = format!("process = {one},{two}\ndetails = True\nlatency = True");
    let mut agent = Agent::new("syscount", &options);
    works(&mut first);
    works(&mut second);
    let counts = agent.numbers(COUNT);
    let count = |name: String| counts.get(&name).copied();
    assert_eq!(counts["getppid"], 120);
    assert_eq!((count(format!("{one}::getppid")), count(format!("{two}::getppid"))), (Some(100), Some(20)));
    let total = agent.numbers(TIME);
    assert_eq!(total["getppid"], total[&format!("{one}::getppid")] + total[&format!("{two}::getppid")]);
    let rows = agent.rows();
    let detail = rows.iter().find(|row| row.name == format!("{two}::getppid")).unwrap();
    assert_eq!(detail.id, two * 512 + GETPPID);
    first.end();
    let names: Vec<String> = agent.numbers(COUNT).into_keys().filter(|name| name.contains("::")).collect();
    assert!(names.iter().all(|name| name.starts_with(&two.to_string())), "only living processes: {names:?}");
    second.end();
}

#[test]
fn calls_of_a_32_bit_program_are_not_counted_under_64_bit_names() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small");
    if !i386_program(&path, &CODE) {
        return;
    }
    for options in ["", "latency = True", "failed = True", "failed = True\nlatency = True"] {
        let mut caller = caller(&format!("exec '{}'", path.display()));
        let mut agent = agent(&caller, options);
        caller.go();
        caller.end();
        let counts = agent.numbers(COUNT);
        // 20 is getpid there and writev here; 6 is close there and lstat here.
        assert_eq!((counts.get("writev"), counts.get("lstat"), counts.get("close")), (None, None, None), "{options}");
        assert_eq!(counts.contains_key("execve"), !options.contains("failed"), "{options}: {counts:?}");
        // Of getpid none fails.
        let left_out = if options == "failed = True" { 100 } else { 201 };
        let warnings = agent.warnings();
        assert!(warnings.iter().any(|line| line.starts_with(&format!("{left_out} calls of 32-bit"))), "{warnings:?}");
    }
}

/// Code with a hundred calls each of getpid and close(999), then exit(0).
#[rustfmt::skip]
const CODE: [u8; 36] = [
    0xbe, 100, 0, 0, 0,             // mov $100, %esi
    0xb8, 20, 0, 0, 0, 0xcd, 0x80,  // again: getpid()
    0xb8, 6, 0, 0, 0,               // close(999)
    0xbb, 0xe7, 3, 0, 0, 0xcd, 0x80,
    0x4e, 0x75, 0xea,               // dec %esi; jne again
    0xb8, 1, 0, 0, 0, 0x31, 0xdb,   // exit(0)
    0xcd, 0x80,
];
