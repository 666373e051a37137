//! offcpu against waits of known number and time, and against what the kernel keeps of a process.

use crate::cgroups::{hierarchy, Cgroup};
use crate::common::skip;
use crate::common::tracers::UnseenArrivals;
use crate::support::{alone, names, number, Agent, Sleeper};
use corebcc::host::Controller;
use corebcc::kit::{Key, Table, TableSpec};
use corebcc::modules::find;
use corebcc::pcp::Atom;
use nix::libc;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicU32;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const MILLISECOND: i64 = 1_000_000;

/// Number of waits of each kind but `child` and `tty`, of two milliseconds each.
const TIMES: u64 = 20;
const CHILDREN: u64 = 5;
const TERMINAL: u64 = 2;

/// The lock that the process waits for.
static LOCK: AtomicU32 = AtomicU32::new(0);

/// Waits that a process makes, by the number of its order; without memory and other threads.
fn wait(order: u32) {
    let two = libc::timespec { tv_sec: 0, tv_nsec: 2 * MILLISECOND };
    // SAFETY: the buffers are as long as the calls are told and outlive them; the calls that may fail have no effect then.
    unsafe {
        match order {
            0 => (0..TIMES).for_each(|_| _ = libc::nanosleep(&two, null_mut())),
            1 => (0..TIMES).for_each(|_| _ = libc::poll(null_mut(), 0, 2)),
            2 => {
                let futex = |operation: i32, until: &libc::timespec| {
                    libc::syscall(libc::SYS_futex, &LOCK, operation, 0u32, until, null_mut::<u32>(), u32::MAX)
                };
                for _ in 0..TIMES {
                    futex(libc::FUTEX_WAIT, &two);
                    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                    libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut until);
                    until.tv_nsec += 2 * MILLISECOND;
                    if until.tv_nsec >= 1000 * MILLISECOND {
                        (until.tv_sec, until.tv_nsec) = (until.tv_sec + 1, until.tv_nsec - 1000 * MILLISECOND);
                    }
                    futex(libc::FUTEX_WAIT_BITSET, &until);
                }
            }
            3 => {
                let mut pair = [0; 2];
                libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr());
                let limit = libc::timeval { tv_sec: 0, tv_usec: 2000 };
                let size = size_of::<libc::timeval>() as u32;
                libc::setsockopt(pair[0], libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
                let mut byte = [0u8];
                for turn in 0..TIMES {
                    if turn % 2 == 0 {
                        libc::recv(pair[0], byte.as_mut_ptr().cast(), 1, 0);
                    } else {
                        libc::read(pair[0], byte.as_mut_ptr().cast(), 1);
                    }
                }
                pair.iter().for_each(|&end| _ = libc::close(end));
            }
            4 => {
                for _ in 0..CHILDREN {
                    let child = libc::fork();
                    if child == 0 {
                        libc::nanosleep(&two, null_mut());
                        libc::_exit(0);
                    }
                    libc::waitpid(child, null_mut(), 0);
                }
            }
            5 => {
                let (mut master, mut slave, mut byte) = (0, 0, [0u8]);
                if libc::openpty(&mut master, &mut slave, null_mut(), null_mut(), null_mut()) != 0 {
                    return;
                }
                let mut settings: libc::termios = std::mem::zeroed();
                libc::tcgetattr(slave, &mut settings);
                libc::cfmakeraw(&mut settings);
                (settings.c_cc[libc::VMIN], settings.c_cc[libc::VTIME]) = (0, 1);
                libc::tcsetattr(slave, libc::TCSANOW, &settings);
                (0..TERMINAL).for_each(|_| _ = libc::read(slave, byte.as_mut_ptr().cast(), 1));
                [master, slave].iter().for_each(|&end| _ = libc::close(end));
            }
            // More of its time than another has: it is preempted.
            _ => {
                let end = Instant::now() + Duration::from_millis(200);
                while Instant::now() < end {}
            }
        }
    }
}

const ORDERS: u32 = 7;

/// Times and counts of a row by reason.
type Waits = BTreeMap<String, (u64, u64)>;

fn row(spec_table: usize, table: &Table, row: usize) -> Waits {
    let metrics = find("offcpu").unwrap().tables[spec_table].metrics;
    let times = metrics.iter().enumerate().filter_map(|(column, metric)| {
        let stem = metric.name.strip_suffix(".time")?;
        let reason = stem.rsplit('.').next()?;
        let count = metrics.iter().position(|metric| metric.name == format!("{stem}.count"))?;
        Some((reason.to_string(), (number(table, row, column), number(table, row, count))))
    });
    times.collect()
}

/// Returns the waits of a process by the table of processes.
fn of_process(agent: &mut Agent, pid: u32) -> Waits {
    agent.tick();
    let table = agent.other(find("offcpu").unwrap().tables[2]);
    let is_it = |key: &Key| matches!(key, Key::Pid(id, _) if *id == pid);
    let at = table.keys().iter().position(is_it);
    at.map_or_else(Waits::new, |at| row(2, &table, at))
}

/// Returns the waits of all that counts, by the histograms.
fn of_all(agent: &mut Agent) -> Waits {
    let [spec, _, _, _, in_seconds, ..] = find("offcpu").unwrap().tables else { panic!("five tables") };
    agent.tick();
    let table = agent.table();
    let column = |name: String| spec.metrics.iter().position(|metric| metric.name == name).unwrap();
    let histograms = spec.metrics.iter().filter_map(|metric| metric.name.strip_suffix(".count"));
    let of = |(at, name): (usize, &str)| {
        let [count, sum] = ["count", "sum"].map(|end| number(&table, 0, column(format!("{name}.{end}"))));
        assert!(agent.scraped("offcpu", in_seconds.cluster, at)["all"] >= count);
        (name.rsplit('.').next().unwrap().to_string(), (sum, count))
    };
    histograms.enumerate().map(of).collect()
}

/// Voluntary switches, and the time on a CPU, of a process that waits for orders.
fn kept(process: &Sleeper) -> (u64, u64) {
    process.arrivals();
    let file = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", process.pid())).unwrap();
    let status = file("status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    let time = file("schedstat").split_whitespace().next().unwrap().parse().unwrap();
    (line.trim().parse().unwrap(), time)
}

fn since(later: &Waits, earlier: &Waits) -> Waits {
    let before = |reason: &String| earlier.get(reason).copied().unwrap_or_default();
    let grown = |(reason, &(time, count)): (&String, &(u64, u64))| {
        let (time_before, count_before) = before(reason);
        (reason.clone(), (time - time_before, count - count_before))
    };
    later.iter().map(grown).collect()
}

/// Returns how many waits may count for the run queue only. A program that a hypervisor stops while it claims a place hides the place of
/// another thread meanwhile, which counts as lost.
fn lost(agent: &mut Agent) -> u64 {
    let warnings = agent.warnings();
    assert!(warnings.iter().all(|warning| warning.contains("their beginning was not seen")), "{warnings:?}");
    if warnings.is_empty() && agent.skipped_runs() == 0 {
        0
    } else {
        2
    }
}

fn waits_are_counted(start: impl FnOnce(&str) -> Agent) {
    let mut process = Sleeper::doing(wait);
    process.sleep(0);
    let mut agent = start(&format!("process = {}\nprometheus = True", process.pid()));
    let unseen = UnseenArrivals::record();
    process.sleep(0); // The first wait began before.
    let begin = Instant::now();
    let (switches, on_cpu) = kept(&process);
    let (before, all_before) = (of_process(&mut agent, process.pid()), of_all(&mut agent));
    (0..ORDERS).for_each(|order| process.sleep(order));
    let life = begin.elapsed().as_nanos() as u64;
    let (switches_then, on_cpu_then) = kept(&process);
    let waits = since(&of_process(&mut agent, process.pid()), &before);
    let all = since(&of_all(&mut agent), &all_before);
    let unseen = unseen.either() + lost(&mut agent);
    println!("{waits:?}\n{all:?}, {unseen} unseen");
    assert_eq!(waits, all, "the histograms have the same");
    let count = |reason: &str| waits[reason].1;
    let voluntary: u64 = waits.iter().filter(|(reason, _)| *reason != "runq").map(|(_, (_, count))| count).sum();
    let wanted = switches_then - switches;
    assert!((wanted - unseen.min(wanted)..=wanted).contains(&voluntary), "{voluntary} of {wanted} have a reason");
    for (reason, wanted, least) in
        [("timer", TIMES, 2), ("poll", TIMES, 2), ("lock", TIMES, 2), ("cond", TIMES, 2), ("net", TIMES, 2)]
    {
        // A short wait may be over before the task has left an emulated CPU.
        let (time, counted) = waits[reason];
        let fewest = (wanted * 9 / 10).saturating_sub(unseen);
        assert!((fewest..=wanted).contains(&counted), "{counted} {reason} of {wanted}: {waits:?}");
        assert!(time >= counted * least * 1_000_000 * 9 / 10, "{reason}: {waits:?}");
    }
    assert!((1..=u64::from(ORDERS)).contains(&count("pipe")), "an order may be there already: {waits:?}");
    // A child may have ended before it is waited for, and its start may have to wait for memory.
    assert!((1..=2 * CHILDREN).contains(&count("child")), "{waits:?}");
    assert!(count("tty") == TERMINAL || count("tty") == 0, "0 without terminals: {waits:?}");
    assert_eq!([count("stop"), count("kernel"), count("net") / (TIMES + 1)], [0; 3], "{waits:?}");
    let sum = waits.values().map(|(time, _)| time).sum::<u64>() + on_cpu_then - on_cpu;
    println!("{sum} ns on and off a CPU in {life} ns");
    // Both ends of its life here are answers to orders, which take a moment to be read.
    assert!(unseen > 0 || sum.abs_diff(life) < life / 50, "{sum} ns on and off a CPU in {life} ns");
}

#[test]
fn waits_have_their_reasons_and_add_up_to_a_life() {
    let _alone = alone();
    waits_are_counted(|options| Agent::new("offcpu", options));
}

#[test]
fn waits_count_the_same_with_probe_reads() {
    let _alone = alone();
    waits_are_counted(|options| Agent::avoiding("tp_btf", "offcpu", options));
}

#[test]
fn waits_count_the_same_by_wake_ups() {
    let _alone = alone();
    waits_are_counted(|options| Agent::avoiding("no_sched_info", "offcpu", options));
}

#[test]
fn waits_count_the_same_beside_runqlat() {
    let _alone = alone();
    waits_are_counted(|options| Agent::beside("runqlat", "offcpu", options));
}

#[test]
fn waits_of_a_cgroup_are_those_of_its_process() {
    let _alone = alone();
    let Some(tree) = hierarchy(Controller::Unified) else { return };
    let cgroup = Cgroup::make(&tree, "waits");
    let mut process = Sleeper::doing(wait);
    cgroup.take(process.pid());
    let mut agent = Agent::new("offcpu", "by_cgroup = True");
    process.sleep(0);
    process.sleep(1);
    process.arrivals();
    agent.tick();
    let table = agent.other(find("offcpu").unwrap().tables[3]);
    let at = names(&table).iter().position(|name| *name == cgroup.name).unwrap();
    let (waits, own) = (row(3, &table, at), of_process(&mut agent, process.pid()));
    println!("{waits:?}");
    assert_eq!((waits["timer"], waits["poll"]), (own["timer"], own["poll"]));
    assert!(waits["timer"].1 >= TIMES * 9 / 10 && waits["poll"].1 >= TIMES * 9 / 10, "{waits:?}");
}

/// Returns the time by stack.
fn by_stack(agent: &mut Agent) -> BTreeMap<String, u64> {
    let table = agent.other(find("offcpu").unwrap().tables[9]);
    names(&table).into_iter().enumerate().map(|(row, name)| (name, number(&table, row, 0))).collect()
}

fn stacks_are_counted(start: impl FnOnce(&str) -> Agent) {
    let mut process = Sleeper::doing(wait);
    process.sleep(0);
    let mut agent = start(&format!("process = {}\nstacks = True", process.pid()));
    let state = find("offcpu").unwrap().tables[8];
    process.sleep(1);
    assert!(by_stack(&mut agent).is_empty(), "nobody asked for them");
    agent.store(state, "start");
    process.sleep(1); // The first wait began before.
    process.arrivals();
    let waited = |waits: &Waits| -> u64 {
        waits.iter().filter(|(reason, _)| *reason != "runq").map(|(_, (time, _))| time).sum()
    };
    let (before, stacks_before) = (of_process(&mut agent, process.pid()), by_stack(&mut agent));
    (0..ORDERS).for_each(|order| process.sleep(order));
    process.arrivals();
    let waits = since(&of_process(&mut agent, process.pid()), &before);
    let stacks = by_stack(&mut agent);
    stacks.iter().for_each(|(stack, time)| println!("{stack} {time}"));
    let sum = |stacks: &BTreeMap<String, u64>| stacks.values().sum::<u64>();
    lost(&mut agent);
    assert_eq!(sum(&stacks) - sum(&stacks_before), waited(&waits), "each wait has its stack: {waits:?}");
    let in_kernel = |function: &str| -> u64 {
        let has = |stack: &str| stack.split(',').any(|frame| frame == format!("{function}_[k]"));
        stacks.iter().filter(|(stack, _)| has(stack)).map(|(_, time)| time).sum()
    };
    assert_eq!(in_kernel("do_nanosleep"), waits["timer"].0, "{waits:?}");
    let end = |stack: &String| stack.ends_with("schedule_[k]") || stack.ends_with("schedule_rtlock_[k]");
    assert!(stacks.keys().all(end), "without what reads the stack: {stacks:?}");
    // The C library may keep no frame pointers: some of its functions hide their callers.
    let functions = |stack: &str| stack.split(',').filter(|frame| !frame.ends_with("_[k]")).count() > 2;
    let named: u64 = stacks.iter().filter(|(stack, _)| functions(stack)).map(|(_, time)| time).sum();
    assert!(named > sum(&stacks) / 2, "with the functions of the program: {stacks:?}");

    agent.store(state, "stop");
    let stopped = by_stack(&mut agent);
    process.sleep(0);
    assert_eq!(by_stack(&mut agent), stopped, "after the run");
    agent.store(state, "start");
    process.sleep(1);
    let again = by_stack(&mut agent);
    assert!(sum(&again) > sum(&stopped) && stopped.iter().all(|(stack, time)| again[stack] >= *time), "no step back");
    lost(&mut agent);
}

/// Stacks with those of what ended the waits: a child that exits, the test that gives an order, a timer.
#[test]
fn stacks_have_those_of_who_ended_the_waits() {
    let _alone = alone();
    let mut process = Sleeper::doing(wait);
    process.sleep(0);
    let options = format!("process = {}\nstacks = True\nwaker_stacks = True", process.pid());
    let needs = "variables by CPU in the kernel's BTF";
    let Some(mut agent) = Agent::where_possible_avoiding("", needs, "offcpu", &options) else { return };
    agent.store(find("offcpu").unwrap().tables[8], "start");
    process.sleep(0); // The first wait began before.
    process.arrivals();
    let (before, stacks_before) = (of_process(&mut agent, process.pid()), by_stack(&mut agent));
    (0..ORDERS).for_each(|order| process.sleep(order));
    process.arrivals();
    let waits = since(&of_process(&mut agent, process.pid()), &before);
    let mut stacks = by_stack(&mut agent);
    lost(&mut agent);
    stacks.iter_mut().for_each(|(stack, time)| *time -= stacks_before.get(stack).unwrap_or(&0));
    stacks.iter().for_each(|(stack, time)| println!("{stack} {time}"));
    let waited: u64 = waits.iter().filter(|(reason, _)| *reason != "runq").map(|(_, (time, _))| time).sum();
    assert_eq!(stacks.values().sum::<u64>(), waited, "each wait has its stack: {waits:?}");
    let ended = |inside: &str, by: &str| -> u64 {
        let has =
            |stack: &str| stack.split_once(",--,").is_some_and(|(of, waker)| of.contains(inside) && waker.contains(by));
        stacks.iter().filter(|(stack, _)| has(stack)).map(|(_, time)| time).sum()
    };
    assert_eq!(ended("do_nanosleep_[k]", "[interrupt]"), waits["timer"].0, "{waits:?}");
    let by_children = ended("do_wait", "do_exit_[k]");
    assert!(by_children > waits["child"].0 / 2, "{by_children} of {waits:?}");
    let by_test = ended("pipe_read_[k]", "pipe_write_[k]") + ended("unix_stream", "unix_stream_sendmsg_[k]");
    assert!(by_test > 0, "orders come by a pipe or a socket: {stacks:?}");
}

#[test]
fn stacks_add_up_to_the_waits_of_a_process() {
    let _alone = alone();
    stacks_are_counted(|options| Agent::new("offcpu", options));
}

#[test]
fn stacks_are_the_same_with_probe_reads() {
    let _alone = alone();
    stacks_are_counted(|options| Agent::avoiding("tp_btf", "offcpu", options));
}

#[test]
fn stacks_beyond_the_largest_number_count_as_lost() {
    let _alone = alone();
    let mut agent = Agent::new("offcpu", "stacks = True\nstack_storage_size = 1");
    agent.store(find("offcpu").unwrap().tables[8], "start");
    // Each of the processes has stacks of its own.
    for _ in 0..100 {
        Sleeper::doing(wait).sleep(0);
    }
    agent.tick();
    assert!(!by_stack(&mut agent).is_empty());
    let warnings = agent.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("stack_storage_size")), "{warnings:?}");
}

/// Returns the numbers of each row of a table, by the first word of its name.
fn by_word(agent: &mut Agent, spec: &'static TableSpec) -> BTreeMap<String, Vec<u64>> {
    let table = agent.other(spec);
    let word = |name: String| name.split(' ').next().unwrap().to_string();
    let values = |row| (0..spec.metrics.len()).map(|column| number(&table, row, column)).collect();
    names(&table).into_iter().enumerate().map(|(row, name)| (word(name), values(row))).collect()
}

fn wakers_are_counted(avoided: &str) {
    let mut process = Sleeper::doing(wait);
    let pid = process.pid();
    process.sleep(0);
    let options = format!("process = {pid}\nwakers = True");
    let started = Agent::where_possible_avoiding(avoided, "variables by CPU in the kernel's BTF", "offcpu", &options);
    let Some(mut agent) = started else { return };
    let unseen = UnseenArrivals::record();
    process.sleep(0); // The first wait began before.
    process.arrivals();
    let tables = find("offcpu").unwrap().tables;
    let (before, wakers_before) = (of_process(&mut agent, pid), by_word(&mut agent, tables[7]));
    (0..ORDERS).for_each(|order| process.sleep(order));
    process.arrivals();
    let waits = since(&of_process(&mut agent, pid), &before);
    let wakers = by_word(&mut agent, tables[7]);
    let unseen = unseen.either() + lost(&mut agent);
    println!("{waits:?}\n{wakers:?}, {unseen} unseen");
    let grown = |name: &str, column: usize| -> u64 {
        let before = wakers_before.get(name).map_or(0, |values| values[column]);
        wakers.get(name).map_or(0, |values| values[column] - before)
    };
    let sum = |column| wakers.keys().map(|name| grown(name, column)).sum::<u64>();
    let waited = waits.iter().filter(|(reason, _)| *reason != "runq").map(|(_, wait)| *wait);
    let (time, count) = waited.fold((0, 0), |(time, count), wait| (time + wait.0, count + wait.1));
    assert!(unseen > 0 || (sum(0), sum(1)) == (count, time), "each wait has its waker: {count} in {time} ns");
    // Of the timers: sleeps, polls, both kinds of futexes, sockets.
    let by_interrupts = grown(&format!("{pid:06}::interrupt"), 0);
    let fewest = (5 * TIMES * 9 / 10).saturating_sub(unseen);
    assert!(
        (fewest..=5 * TIMES + TERMINAL + u64::from(ORDERS)).contains(&by_interrupts),
        "{by_interrupts} by interrupts"
    );
    let by_test = grown(&format!("{pid:06}::{:06}", std::process::id()), 0);
    assert!((1..=u64::from(ORDERS)).contains(&by_test), "{by_test} orders");
    let others = [format!("{pid:06}::interrupt"), format!("{pid:06}::{:06}", std::process::id())];
    let children: u64 = wakers.keys().filter(|name| !others.contains(name)).map(|name| grown(name, 0)).sum();
    assert!((1..=2 * CHILDREN + u64::from(ORDERS)).contains(&children), "{children} by children");
}

#[test]
fn each_wait_has_its_waker() {
    let _alone = alone();
    wakers_are_counted("");
}

#[test]
fn wakers_are_the_same_with_probe_reads() {
    let _alone = alone();
    wakers_are_counted("tp_btf");
}

#[test]
fn the_longest_wait_for_each_reason_is_known_by_all_of_it() {
    let _alone = alone();
    let mut process = Sleeper::doing(wait);
    let mut agent = Agent::new("offcpu", &format!("process = {}\nexemplars = True", process.pid()));
    (0..ORDERS).for_each(|order| process.sleep(order));
    process.arrivals();
    let waits = of_process(&mut agent, process.pid());
    (0..2).for_each(|_| agent.tick());
    let spec = find("offcpu").unwrap().tables[5];
    let table = agent.other(spec);
    let rows = names(&table);
    println!("{waits:?}");
    for (row, reason) in rows.iter().enumerate() {
        let text = |column| match table.value(row, column) {
            Some(Atom::Str(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        };
        let [time, pid] = [0, 2].map(|column| number(&table, row, column));
        println!("{reason} {time} {pid} {} {} {}", text(3), text(4), text(5));
        assert_eq!(pid, u64::from(process.pid()), "{reason}");
        assert!(time <= waits[reason].0 && time >= waits[reason].0 / waits[reason].1, "{reason}: {time} of {waits:?}");
        let (call, function) = match reason.as_str() {
            "timer" => ("nanosleep", "nanosleep"),
            "poll" => ("poll", "poll"),
            "lock" | "cond" => ("futex", "futex_wait"),
            "child" => ("wait4", "do_wait"),
            _ => continue,
        };
        // Both need a typed task.
        let typed = agent.way_of("sched_switch") == "tp_btf";
        assert!(!typed || text(4).contains(call) && text(5).contains(function), "{reason}: {} {}", text(4), text(5));
    }
    let counted = waits.iter().filter(|(_, (_, count))| *count > 0).map(|(reason, _)| reason);
    assert!(counted.into_iter().all(|reason| rows.contains(reason)), "{rows:?} of {waits:?}");
    assert!(rows.iter().any(|reason| reason == "timer"), "{rows:?}");
}

#[test]
fn a_lock_has_the_waits_of_its_process() {
    let _alone = alone();
    let mut process = Sleeper::doing(wait);
    let pid = process.pid();
    let mut agent = Agent::new("offcpu", &format!("process = {pid}\nlocks = True"));
    (0..ORDERS).for_each(|order| process.sleep(order));
    process.arrivals();
    let (waits, locks) = (of_process(&mut agent, pid), by_word(&mut agent, find("offcpu").unwrap().tables[6]));
    println!("{waits:?}\n{locks:?}");
    assert_eq!(locks.len(), 1, "a condition is no lock: {locks:?}");
    let [count, time, max] = locks[&format!("{pid:06}::{:012x}", &raw const LOCK as usize)][..] else {
        panic!("{locks:?}")
    };
    assert_eq!((time, count), waits["lock"], "{locks:?}");
    lost(&mut agent);
    assert!(max <= time && max >= time / count, "the longest: {locks:?}");
}

/// A file on a disk, with a NUL at its end.
static FILE: OnceLock<CString> = OnceLock::new();
const BYTES: usize = 64 << 20;
const PAGE: usize = 4096;
const BLOCK: usize = 1 << 20;
const READS: usize = 400;
const FAULTS: usize = 3000;

/// The order 0 is to read blocks past the page cache, 1 to read pages by faults, any other to do nothing.
fn wait_for_disk(order: u32) {
    let path = FILE.get().map_or(null(), |path| path.as_ptr());
    let place = |nth: usize, size: usize| nth * 7919 % (BYTES / size) * size;
    // SAFETY: the memory has the size of what is read into it, and the mapping that of the file.
    unsafe {
        match order {
            0 => {
                let file = libc::open(path, libc::O_RDONLY | libc::O_DIRECT);
                let memory = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let block = libc::mmap(null_mut(), BLOCK, libc::PROT_READ | libc::PROT_WRITE, memory, -1, 0);
                (0..READS).for_each(|nth| _ = libc::pread(file, block, BLOCK, place(nth, BLOCK) as i64));
                libc::close(file);
            }
            1 => {
                let file = libc::open(path, libc::O_RDONLY);
                libc::posix_fadvise(file, 0, 0, libc::POSIX_FADV_DONTNEED);
                let pages = libc::mmap(null_mut(), BYTES, libc::PROT_READ, libc::MAP_PRIVATE, file, 0);
                libc::madvise(pages, BYTES, libc::MADV_RANDOM);
                (0..FAULTS).for_each(|nth| _ = pages.cast::<u8>().add(place(nth, PAGE)).read_volatile());
                libc::close(file);
            }
            _ => (),
        }
    }
}

/// A switch of the kernel that is on until this is dropped.
struct Switch(&'static str);

impl Switch {
    fn on(path: &'static str) -> Option<Switch> {
        fs::write(path, "1").ok().map(|()| Switch(path))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(self.0, "0");
    }
}

/// Major faults of a process, and the nanoseconds that it waited for disks, in ticks of 10 ms (proc(5), `majflt`, `delayacct_blkio_ticks`).
fn of_disks(process: &Sleeper) -> [u64; 2] {
    process.arrivals();
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    [fields[12 - 3].parse().unwrap(), fields[42 - 3].parse::<u64>().unwrap() * 10_000_000]
}

#[test]
fn times_of_disks_and_faults_are_those_of_the_kernel() {
    let _alone = alone();
    const ACCOUNTING: &str = "/proc/sys/kernel/task_delayacct";
    let was_on = fs::read_to_string(ACCOUNTING).is_ok_and(|value| value.trim() == "1");
    let _accounting = match Switch::on(ACCOUNTING) {
        None => return skip("CONFIG_TASK_DELAY_ACCT"),
        on if !was_on => on,
        on => {
            std::mem::forget(on);
            None
        }
    };
    // Not in memory: what is there has no reads to wait for.
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(file.path(), vec![1; BYTES]).unwrap();
    file.as_file().sync_all().unwrap();
    FILE.set(CString::new(file.path().to_str().unwrap()).unwrap()).unwrap();
    let mut process = Sleeper::doing(wait_for_disk);
    // Since 6.12 the kernel begins such a wait late, and for another task, where the fair scheduler leaves who blocks in its queue (DELAY_DEQUEUE).
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the priority outlives the call.
    if unsafe { libc::sched_setscheduler(process.pid() as i32, libc::SCHED_FIFO, &first) } != 0 {
        return skip("SCHED_FIFO");
    }
    process.sleep(9);
    let mut agent = Agent::new("offcpu", &format!("process = {}", process.pid()));
    process.sleep(9); // The first wait began before.
    let mut done = (of_process(&mut agent, process.pid()), of_disks(&process));
    for (order, reason, number) in [(0, "disk", READS), (1, "fault", FAULTS)] {
        process.sleep(order);
        let now = (of_process(&mut agent, process.pid()), of_disks(&process));
        let (time, count) = since(&now.0, &done.0)[reason];
        let [faults, kept] = [0, 1].map(|of: usize| now.1[of] - done.1[of]);
        println!("{reason}: {count} waits, {time} ns; by the kernel {faults} major faults, {kept} ns");
        // A read may be over before its process has left the CPU.
        let most = if order == 0 { number as u64 } else { faults };
        assert!((most / 2..=most).contains(&count), "{count} waits of {most}");
        // To a tick.
        assert!(time.abs_diff(kept) <= 11_000_000 + kept / 100, "{time} ns, by the kernel {kept} ns");
        done = now;
    }
    assert_eq!(lost(&mut agent), 0);
}
