//! offcpu against waits of known number and time, and against what the kernel keeps of a process.

use crate::cgroups::{hierarchy, Cgroup};
use crate::common::tracers::UnseenArrivals;
use crate::support::{alone, names, number, Agent, Sleeper};
use corebcc::host::Controller;
use corebcc::kit::{Key, Table};
use corebcc::modules::find;
use nix::libc;
use std::collections::BTreeMap;
use std::fs;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const MILLISECOND: i64 = 1_000_000;

/// Number of waits of each kind but `child` and `tty`, of two milliseconds each.
const TIMES: u64 = 20;
const CHILDREN: u64 = 5;
const TERMINAL: u64 = 2;

/// Waits that a process makes, by the number of its order; without memory and other threads.
fn wait(order: u32) {
    let two = libc::timespec { tv_sec: 0, tv_nsec: 2 * MILLISECOND };
    // SAFETY: the buffers are as long as the calls are told and outlive them; the calls that may fail have no effect then.
    unsafe {
        match order {
            0 => (0..TIMES).for_each(|_| _ = libc::nanosleep(&two, null_mut())),
            1 => (0..TIMES).for_each(|_| _ = libc::poll(null_mut(), 0, 2)),
            2 => {
                let word = 0u32;
                let futex = |operation: i32, until: &libc::timespec| {
                    libc::syscall(libc::SYS_futex, &word, operation, 0u32, until, null_mut::<u32>(), u32::MAX)
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
    let [spec, _, _, _, in_seconds] = find("offcpu").unwrap().tables else { panic!("five tables") };
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
    let unseen = unseen.either();
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
    assert!((1..=CHILDREN).contains(&count("child")), "a child may have ended before it is waited for: {waits:?}");
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
