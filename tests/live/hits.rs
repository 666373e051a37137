//! tracepoint_hits, uprobe_hits and kprobe_hits, each against work of known size in a process of the test.

use crate::common::{skip, tasks_created};
use crate::support::{alone, run_again, settle, wait_together, Agent, Script};
use std::io::Read;
use std::process::Command;
use std::time::Duration;

/// Starts a shell that works when told so, and lives until it is dropped.
fn shell(work: &str) -> Script {
    Script::new(Command::new("sh").args(["-c", &format!("exec 2>/dev/null; read go; {work}\necho done; read go")]))
}

fn work(shell: &mut Script) {
    shell.go();
    assert_eq!(shell.line(), "done");
}

/// Shell commands for 1000 changes of the own command name, each a hit of task:task_rename, in a process that does nothing else.
const RENAMES: &str = "i=0; while [ $i -lt 1000 ]; do echo x > /proc/self/comm; i=$((i + 1)); done";

const NEEDS_TRACEPOINTS: &str = "root, or CAP_BPF and CAP_PERFMON, on a kernel with BTF";

#[test]
fn a_tracepoint_counts_every_hit_of_the_process_and_no_other() {
    let _alone = alone();
    let (mut chosen, mut other) = (shell(RENAMES), shell(RENAMES));
    let lines = format!("tracepoints = task:task_rename, sched:sched_process_hang\nprocess = {}", chosen.pid());
    let Some(mut agent) = Agent::where_possible(NEEDS_TRACEPOINTS, "tracepoint_hits", &lines) else { return };
    assert_eq!(agent.numbers(0).get("task:task_rename"), Some(&0), "attached and not hit is 0");
    work(&mut chosen);
    work(&mut other);
    assert_eq!(agent.numbers(0).get("task:task_rename"), Some(&1000));
}

#[test]
fn several_tracepoints_count_as_often_as_the_kernel_says() {
    let _alone = alone();
    let lines = "tracepoints = sched:sched_process_fork, sched:sched_process_exec, nothing:at_all";
    let Some(mut agent) = Agent::where_possible(NEEDS_TRACEPOINTS, "tracepoint_hits", lines) else { return };
    let outer = tasks_created();
    let before = agent.numbers(0);
    let inner = tasks_created();
    for _ in 0..50 {
        Command::new("true").status().unwrap();
    }
    let inner = tasks_created() - inner;
    let after = agent.numbers(0);
    let outer = tasks_created() - outer;
    let counted = |event: &str| after[event] - before[event];
    let counts = counted("sched:sched_process_fork");
    assert!(inner <= counts && counts <= outer, "{inner} <= {counts} <= {outer}");
    assert!(counted("sched:sched_process_exec") >= 50);
    assert_eq!(after.len(), 2, "the one that is not there has no instance: {after:?}");
}

/// Returns true if tracefs is mounted. Otherwise runs the test again with tracefs in a mount namespace of its own, and returns false.
fn with_tracefs() -> bool {
    if std::fs::read("/sys/kernel/tracing/available_events").is_ok() {
        return true;
    }
    run_again("tracefs", "mount -t tracefs tracefs /sys/kernel/tracing", Command::new("unshare"));
    false
}

#[test]
fn expressions_find_tracepoints_and_events_of_tracefs_only() {
    if !with_tracefs() {
        return;
    }
    let _alone = alone();
    let mut chosen = shell(RENAMES);
    let lines = format!("tracepoints = task:.*, syscalls:sys_enter_dup2\nprocess = {}", chosen.pid());
    let Some(mut agent) = Agent::where_possible(NEEDS_TRACEPOINTS, "tracepoint_hits", &lines) else { return };
    work(&mut chosen);
    let values = agent.numbers(0);
    assert_eq!(values.get("task:task_rename"), Some(&1000));
    assert!(values.contains_key("task:task_newtask"), "{values:?}");
    // A shell puts its standard output away and back for each redirection.
    match values.get("syscalls:sys_enter_dup2") {
        Some(&calls) => assert_eq!(calls, 2000),
        None => skip("events of system calls (CONFIG_FTRACE_SYSCALLS)"),
    }
}

const NEEDS_UPROBES: &str = "root on a kernel with CONFIG_UPROBE_EVENTS";

/// Shell commands for 500 forks, each a call of the C library's fork.
const FORKS: &str = "i=0; while [ $i -lt 500 ]; do (:); i=$((i + 1)); done";

#[test]
fn a_user_function_counts_by_short_name_and_by_path() {
    let _alone = alone();
    let (mut chosen, mut other) = (shell(FORKS), shell(FORKS));
    let libc = corebcc::host::library("c").unwrap().display().to_string();
    let lines = format!("uprobes = c:fork, {libc}:_exit, c:no_such, c:qsort\nprocess = {}", chosen.pid());
    let Some(mut agent) = Agent::where_possible(NEEDS_UPROBES, "uprobe_hits", &lines) else { return };
    work(&mut chosen);
    work(&mut other);
    let values = agent.numbers(0);
    let wanted = [(format!("{libc}::_exit"), 0), ("c::fork".into(), 500), ("c::qsort".into(), 0)];
    assert_eq!(values, wanted.into_iter().collect());
}

#[test]
fn without_a_filter_all_processes_count() {
    let _alone = alone();
    let mut shells = [shell(FORKS), shell(FORKS)];
    let Some(mut agent) = Agent::where_possible(NEEDS_UPROBES, "uprobe_hits", "uprobes = c:fork") else { return };
    let before = agent.numbers(0)["c::fork"];
    shells.iter_mut().for_each(work);
    let counted = agent.numbers(0)["c::fork"] - before;
    assert!(counted >= 1000, "{counted}");
}

const NEEDS_FUNCTIONS: &str = "a kernel with fexit or kprobes";

/// Shell commands for 300 opens that succeed and 200 that fail, with no opens in between.
const OPENS: &str = "i=0; while [ $i -lt 300 ]; do true < /proc/self/stat; i=$((i + 1)); done
    i=0; while [ $i -lt 200 ]; do true < /proc/self/nothing; i=$((i + 1)); done";

#[test]
fn a_kernel_function_counts_calls_failures_and_time() {
    let _alone = alone();
    let (mut chosen, mut other) = (shell(RENAMES), shell(RENAMES));
    let pid = chosen.pid();
    let lines = format!(
        "kprobes = kprobe:comm_write, kprobe:no_such_function\nret_chk = > 0\ndetails = True\nlatency = True\nprocess = {pid}"
    );
    let Some(mut agent) = Agent::where_possible(NEEDS_FUNCTIONS, "kprobe_hits", &lines) else { return };
    work(&mut chosen);
    work(&mut other);
    let counts = agent.numbers(0);
    let detail = format!("{pid}::comm_write");
    assert_eq!(counts, [("comm_write".to_string(), 1000), (detail, 1000)].into_iter().collect());
    assert_eq!(agent.numbers(1), [("comm_write".to_string(), 1000)].into_iter().collect());
    let (average, total) = (agent.numbers(2), agent.numbers(3));
    assert_eq!(average["comm_write"], total["comm_write"] / 1000);
    assert!(total["comm_write"] > 0);
    assert!(Agent::was_said("no_such_function cannot be attached to"), "what the kernel does not have is named");
}

/// Writing a command's name is a write too: the start of one must not be that of the other.
#[test]
fn a_kernel_function_inside_another_has_its_own_start() {
    let _alone = alone();
    let mut chosen = shell(RENAMES);
    let lines = format!("kprobes = kprobe:vfs_write, kprobe:comm_write\nlatency = True\nprocess = {}", chosen.pid());
    let Some(mut agent) = Agent::where_possible(NEEDS_FUNCTIONS, "kprobe_hits", &lines) else { return };
    work(&mut chosen);
    settle();
    let counts = agent.numbers(0);
    // The shell writes `done` besides, and is still to return from that when it is read.
    assert_eq!((counts["comm_write"], counts["vfs_write"]), (1000, 1001));
    let (averages, totals) = (agent.numbers(2), agent.numbers(3));
    assert!(totals["vfs_write"] >= totals["comm_write"], "the outer takes longer: {totals:?}");
    for (name, count) in &counts {
        assert_eq!(averages[name], totals[name] / count, "every call was timed: {averages:?} {totals:?}");
    }
    assert!(agent.warnings().is_empty(), "{:?}", agent.warnings());
}

#[test]
fn a_kernel_function_where_2000_threads_wait_is_timed_in_each() {
    const THREADS: u64 = 2000;
    let _alone = alone();
    let functions = ["pipe_read", "anon_pipe_read"]; // until 6.14 and after
    let list = functions.map(|name| format!("kprobe:{name}")).join(",");
    let lines = format!("kprobes = {list}\nlatency = True\nprocess = {}", std::process::id());
    let Some(mut agent) = Agent::where_possible(NEEDS_FUNCTIONS, "kprobe_hits", &lines) else { return };
    if agent.kinds().contains(&"kretprobe") {
        return skip("fexit: kretprobes drop calls that wait, here those beyond the first few");
    }
    let time = Duration::from_millis(200);
    wait_together(THREADS as usize, time, |mut pipe| assert_eq!(pipe.read(&mut [0]).unwrap(), 0));
    let (counts, averages, totals) = (agent.numbers(0), agent.numbers(2), agent.numbers(3));
    let function = functions.into_iter().find(|name| counts.get(*name).is_some_and(|&count| count > 0)).unwrap();
    // A kernel with preemption skips a program that is already running on this CPU, and counts these runs.
    let skipped = agent.skipped_runs();
    assert!((THREADS - skipped.min(THREADS)..=THREADS).contains(&counts[function]), "{skipped} skipped, {counts:?}");
    let warnings = agent.warnings();
    let unseen = warnings.iter().find_map(|line| line.strip_suffix(" returns of functions whose start was not seen"));
    let unseen = unseen.map_or(0, |count| count.parse::<u64>().unwrap());
    assert!(unseen + THREADS - counts[function] <= skipped, "{skipped} skipped, {counts:?} {warnings:?}");
    assert_eq!(averages[function], totals[function] / (counts[function] - unseen), "each other was timed");
    assert!(averages[function] > time.as_nanos() as u64, "{averages:?}");
    assert!(warnings.iter().all(|line| !line.contains("too many threads")), "{warnings:?}");
}

/// Returns functions of the kernel that the compiler made of others (`.isra.0` and similar).
fn dotted_functions() -> Vec<String> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let fields = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_kernel = fields.filter_map(|fields| match fields[..] {
        [_, "t" | "T", name] => Some(name.to_string()),
        _ => None,
    });
    of_kernel.filter(|name| [".isra.", ".constprop.", ".part."].iter().any(|part| name.contains(part))).collect()
}

#[test]
fn a_kernel_function_with_a_long_name_or_a_dot_counts() {
    let _alone = alone();
    let long = match std::env::consts::ARCH {
        "x86_64" => "__x64_sys_sched_get_priority_max",
        "aarch64" => "__arm64_sys_sched_get_priority_max",
        other => return skip(&format!("what {other} calls the function of a system call")),
    };
    // Some of these are called by any work that begins processes and opens files.
    let common =
        ["file", "path", "fd", "task", "vm", "page", "proc", "open", "read", "write", "exec", "exit", "copy", "pipe"];
    let mut dotted = dotted_functions();
    dotted.retain(|name| !name.contains(".cold") && common.iter().any(|part| name.contains(part)));
    dotted.truncate(160);
    let list: Vec<String> = dotted.iter().map(|name| format!("kprobe:{name}")).collect();
    let lines = format!("kprobes = kprobe:{long},{}", list.join(","));
    let Some(mut agent) = Agent::where_possible(NEEDS_FUNCTIONS, "kprobe_hits", &lines) else { return };
    let before = agent.numbers(0);
    for _ in 0..700 {
        // SAFETY: it takes a number.
        unsafe { nix::libc::sched_get_priority_max(nix::libc::SCHED_FIFO) };
    }
    work(&mut shell(OPENS));
    let after = agent.numbers(0);
    assert!(after[long] - before[long] >= 700, "{after:?}");
    let of_dotted = || after.iter().filter(|(name, _)| name.contains('.'));
    if of_dotted().next().is_none() {
        return skip(&format!("one of {} functions with a dot: kprobes", dotted.len()));
    }
    assert!(of_dotted().all(|(name, _)| dotted.contains(name)), "{after:?}");
    if of_dotted().all(|(_, &count)| count == 0) {
        skip(&format!("a call of one of {} functions with a dot", of_dotted().count()));
    }
}

#[test]
fn calls_that_return_an_error_are_told_by_their_signed_value() {
    let _alone = alone();
    for (option, wanted) in [("ret_chk = < 0", (500, 200)), ("ret_chk = == -ENOENT\nerrno = ENOENT", (200, 200))] {
        let mut chosen = shell(OPENS);
        let lines = format!("kprobes = kprobe:do_sys_openat2\n{option}\nprocess = {}", chosen.pid());
        let Some(mut agent) = Agent::where_possible(NEEDS_FUNCTIONS, "kprobe_hits", &lines) else { return };
        work(&mut chosen);
        let mut value = |column| agent.numbers(column)["do_sys_openat2"];
        assert_eq!((value(0), value(1)), wanted, "{option}");
    }
}
