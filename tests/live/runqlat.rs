//! runqlat against the kernel's number of switches by thread, the machine's number of switches, and bpftrace.

use crate::common::tracers::{Arrivals, Bpftrace, UnseenArrivals};
use crate::common::{lacks, skip};
use crate::support::{alone, number, part, settle, since, Agent, Script, Sleeper};
use corebcc::kit::{Buckets, Fine, Key, Table, SERIES_METRICS};
use corebcc::modules::find;

fn machine() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    stat.lines().find_map(|line| line.strip_prefix("ctxt ")).unwrap().parse().unwrap()
}

/// Returns how often the threads of a process left a CPU, and the number of threads.
fn switches(pid: u32) -> (u64, u64) {
    let (mut sum, mut threads) = (0, 0);
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        threads += 1;
        for line in status.lines().filter(|line| line.contains("ctxt_switches:")) {
            sum += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    (sum, threads)
}

/// Waits until all threads of a process have slept for a while: each arrival has had its departure then. A thread sleeps in the words of its
/// status from before it leaves its processor; its system call can be read once it has left.
fn asleep(pid: u32) {
    let awake = || {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.any(|thread| {
            let path = thread.unwrap().path();
            let status = std::fs::read_to_string(path.join("status")).unwrap();
            !status.lines().any(|line| line.starts_with("State:") && line.contains("sleeping"))
                || std::fs::read_to_string(path.join("syscall")).is_ok_and(|call| call.starts_with("running"))
        })
    };
    loop {
        let before = switches(pid);
        settle();
        if !awake() && switches(pid) == before {
            return;
        }
    }
}

const SCRIPTS: &str = include_str!("../programs/runqlat.py");

/// End of the log line about arrivals that did not count.
const UNMEASURED: &str = " wake-ups that were not seen, so the wait is unknown";

/// Returns the number of arrivals in that line.
fn unmeasured(agent: &mut Agent) -> u64 {
    agent.warnings().iter().find_map(|line| line.strip_suffix(UNMEASURED)?.parse().ok()).unwrap_or(0)
}

/// Feature to set, so that wake-ups record since when a task waits, as on a kernel that does not.
const BY_WAKEUPS: &str = "no_sched_info";

#[test]
fn a_process_arrives_as_often_as_it_left() {
    for avoid in ["", BY_WAKEUPS] {
        println!("avoiding `{avoid}`");
        arrives_as_often_as_it_left(avoid);
    }
}

fn arrives_as_often_as_it_left(avoid: &str) {
    let _alone = alone();
    let mut script = Script::part(SCRIPTS, "turns");
    script.line();
    let mut agent = Agent::avoiding(avoid, "runqlat", &format!("process = {}", script.pid()));
    assert!(avoid.is_empty() || agent.is_attached("sched_wakeup"));
    asleep(script.pid());
    let arrivals = Arrivals::of_process(script.pid());
    let before = switches(script.pid());
    let counted_before = agent.total();
    script.go();
    assert_eq!(script.line(), "done");
    asleep(script.pid());
    let after = switches(script.pid());
    let counted = agent.total() - counted_before;
    // All its threads sleep at both ends, so that each arrival had its departure.
    let left = after.0 - before.0;
    let arrived = arrivals.map_or(left, Arrivals::end);
    let unmeasured = unmeasured(&mut agent);
    println!("{counted} arrivals, {unmeasured} without a time, {arrived} by ftrace, {left} departures");
    // Those that ftrace sees are counted, and no more than there were. Where the kernel has threads on top of which no program runs, programs
    // see more than ftrace, and not quite all; elsewhere ftrace sees all.
    let counted = counted + unmeasured;
    assert!(
        (arrived..=left + unmeasured).contains(&counted),
        "{counted} arrivals, {arrived} by ftrace, {left} departures"
    );
    assert!(counted * 100 >= left * 99, "{counted} arrivals, {left} departures");
    let warnings = agent.warnings();
    // Since when a task waits that was preempted on its way to sleep the kernel does not keep, and the program of one task per CPU only.
    assert!(unmeasured <= 5 && warnings.iter().all(|line| line.ends_with(UNMEASURED)), "{warnings:?}");
    assert!(counted >= 10_000, "{counted}");
}

#[test]
fn the_total_is_bpftraces_count_and_below_proc_stats() {
    let _alone = alone();
    if lacks(&["bpftrace"]) {
        return;
    }
    let mut script = Script::part(SCRIPTS, "ping pong");
    script.line();
    let mut agent = Agent::new("runqlat", "");
    let stat_0 = machine();
    let outer_0 = agent.total();
    let bpftrace = Bpftrace::count("tracepoint:sched:sched_switch /args->next_pid != 0/");
    let inner_0 = agent.total();
    script.go();
    script.line();
    let inner_1 = agent.total();
    let theirs = bpftrace.end();
    let outer_1 = agent.total();
    let stat_1 = machine();
    println!(
        "inner {} bpftrace {theirs} outer {} /proc/stat {}",
        inner_1 - inner_0,
        outer_1 - outer_0,
        stat_1 - stat_0
    );
    assert!(inner_1 - inner_0 >= 10_000);
    // While somebody makes map system calls on a CPU, the kernel skips bpftrace's program there, never the module's.
    assert!(theirs * 100 >= (inner_1 - inner_0) * 98, "{theirs} of {}", inner_1 - inner_0);
    assert!(theirs <= outer_1 - outer_0, "{theirs} of {}", outer_1 - outer_0);
    assert!(outer_1 - outer_0 <= stat_1 - stat_0);
    assert_eq!(agent.warnings(), [""; 0]);
}

#[test]
fn more_hogs_than_cpus_wait_for_milliseconds() {
    let _alone = alone();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut script = Script::python(&part(SCRIPTS, "hogs").replace("HOGS", &(cpus * 3).to_string()));
    script.line();
    let mut agent = Agent::new("runqlat", "");
    let before = agent.histogram();
    script.go();
    script.line();
    let added = since(&agent.histogram(), &before);
    println!("{added:?}");
    // Slot 11 begins at 2 ms. Three hogs to a CPU: each waits for two time slices of the others again and again.
    let long: u64 = added.iter().skip(11).sum();
    assert!(long >= 50, "{added:?}");
    // The waits of the hogs, by the lower bound of each, are at most what they can have waited: 1.5 s and the rest of
    // the machine; without the upper end of the range a wait of days would pass.
    assert!(added.len() <= 23, "a wait beyond 8 s: {added:?}");
}

#[test]
fn the_waits_add_up_to_the_run_delay_the_kernel_keeps() {
    for avoid in ["", BY_WAKEUPS] {
        println!("avoiding `{avoid}`");
        add_up_to_the_run_delay(avoid);
    }
}

fn add_up_to_the_run_delay(avoid: &str) {
    let _alone = alone();
    let hogs = std::thread::available_parallelism().unwrap().get() * 2;
    let source = part(SCRIPTS, "delays").replace("HOGS", &hogs.to_string());
    if !std::path::Path::new("/proc/self/schedstat").exists() {
        skip("no /proc/PID/schedstat on this kernel");
        return;
    }
    let mut script = Script::python(&source);
    script.line();
    let mut agent = Agent::avoiding(avoid, "runqlat", "");
    let before = agent.histogram();
    script.go();
    let delays: u64 = script.numbers().iter().sum::<u64>() / 1000;
    let added = since(&agent.histogram(), &before);
    let most: u64 = added.iter().enumerate().map(|(slot, count)| count * ((2u64 << slot) - 1)).sum();
    println!("kernel {delays} us, histogram at most {most} us: {added:?}");
    assert!(most >= delays, "the kernel kept {delays} us of waiting, the histogram at most {most}: {added:?}");
}

/// At such a switch the scheduler does not read its clock again: by that clock all waits would be zero. On a busy CPU a wake-up can
/// be as quick, hence the attempts.
#[test]
fn a_wake_up_on_an_idle_cpu_waits_for_the_cpu_to_come_back() {
    const ATTEMPTS: usize = 10;
    let _alone = alone();
    let mut script = Script::python(&part(SCRIPTS, "sleeps").replace("ATTEMPTS", &ATTEMPTS.to_string()));
    script.line();
    let mut agent = Agent::new("runqlat", &format!("process = {}", script.pid()));
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        asleep(script.pid());
        let unseen = UnseenArrivals::record();
        let (before, left) = (agent.histogram(), switches(script.pid()).0);
        script.go();
        let late = script.numbers()[0];
        asleep(script.pid());
        let left = switches(script.pid()).0 - left;
        let added = since(&agent.histogram(), &before);
        let least: u64 = added.iter().enumerate().skip(1).map(|(slot, count)| count << slot).sum();
        let arrivals: u64 = added.iter().sum();
        let missed = unseen.end().0 + unmeasured(&mut agent) + agent.skipped_runs();
        assert!((left.saturating_sub(missed)..=left).contains(&arrivals) && left > 400, "{left} departures: {added:?}");
        // What it slept too long was the timer's lateness and the wait.
        assert!(least <= late, "{least} us of waiting in {late} us: {added:?}");
        if added[0] < arrivals / 2 {
            return;
        }
        seen.push(added);
    }
    panic!("{seen:?}");
}

/// Returns the sum over all rows of a table, in the column of a histogram's metric.
fn total(table: &Table, metric: &str) -> u64 {
    let column = SERIES_METRICS.iter().position(|known| *known == metric).unwrap();
    (0..table.len()).map(|row| number(table, row, column)).sum()
}

#[test]
fn two_delays_are_two_modes_and_cpus_add_up() {
    let _alone = alone();
    let mut script = Script::part(SCRIPTS, "held up");
    let cpu = script.line().split_whitespace().nth(1).unwrap().to_owned();
    let mut agent = Agent::new("runqlat", &format!("process = {}\nper_cpu = True\nbuckets = fine", script.pid()));
    script.go();
    assert_eq!(script.line(), "done");
    asleep(script.pid());
    agent.tick();
    let [_, all, all_buckets, _, by_cpu, cpu_buckets, _] = find("runqlat").unwrap().tables else {
        panic!("seven tables")
    };
    let (all, buckets) = (agent.other(all), agent.other(all_buckets));
    let (by_cpu, by_both) = (agent.other(by_cpu), agent.other(cpu_buckets));
    let quantile = |metric: &str| total(&all, metric);
    let low = |row: usize| Fine::served(Buckets::Fine)[row].name.split('-').next().unwrap().parse().unwrap();
    let waits = (0..buckets.len()).map(|row| (low(row), number(&buckets, row, 0)));
    let waits: Vec<(f64, u64)> = waits.filter(|(_, count)| *count > 0).collect();
    println!("{waits:?}");
    let between = |from: f64, to: f64| -> u64 {
        waits.iter().filter(|(low, _)| (from..to).contains(low)).map(|(_, count)| count).sum()
    };
    // The partner holds the CPU at least that long; the machine may take it away from both meanwhile.
    assert!(between(288.0, 1000.0) >= 80 && between(5800.0, 12_000.0) >= 9, "two modes: {waits:?}");
    assert!(between(1000.0, 5800.0) <= 8, "little between them: {waits:?}");
    assert!((290..1000).contains(&quantile("p50")) && (5800..12_000).contains(&quantile("p99")), "{}", quantile("p99"));

    // All of its threads sleep: each table has the same arrivals.
    let count = total(&all, "count");
    assert!((100..200).contains(&count), "{count}");
    assert_eq!((total(&by_cpu, "count"), total(&by_cpu, "sum")), (count, total(&all, "sum")));
    assert_eq!(agent.total(), count, "by the old metric");
    assert_eq!(waits.iter().map(|(_, count)| count).sum::<u64>(), count);
    assert_eq!((0..by_both.len()).map(|row| number(&by_both, row, 0)).sum::<u64>(), count);
    let ran_on = by_cpu.keys().iter().enumerate().filter(|&(row, _)| number(&by_cpu, row, 0) > 0);
    let ran_on: Vec<&Key> = ran_on.map(|(_, key)| key).collect();
    assert!(matches!(ran_on[..], [Key::Numbered(number, _)] if number.to_string() == cpu), "{ran_on:?}, not {cpu}");
}

#[test]
fn every_table_has_the_arrivals_that_a_process_had() {
    every_table_has_the_arrivals("");
}

#[test]
fn every_table_has_the_arrivals_by_the_wake_ups_too() {
    every_table_has_the_arrivals(BY_WAKEUPS);
}

fn every_table_has_the_arrivals(avoid: &str) {
    let _alone = alone();
    let mut sleeper = Sleeper::new();
    let mut agent =
        Agent::avoiding(avoid, "runqlat", &format!("process = {}\nper_cpu = True\nprometheus = True", sleeper.pid()));
    let before = sleeper.arrivals();
    let unseen = UnseenArrivals::record();
    sleeper.sleep(200);
    let arrivals = sleeper.arrivals() - before;
    agent.tick();
    let unseen = unseen.either();
    let tables = find("runqlat").unwrap().tables;
    let [_, all, by_bucket, _, by_cpu, by_both, _] = tables else { panic!("seven tables") };
    let counts = [all, by_cpu].map(|spec| total(&agent.other(spec), "count"));
    let buckets = [by_bucket, by_both].map(|spec| {
        let table = agent.other(spec);
        (0..table.len()).map(|row| number(&table, row, 0)).sum::<u64>()
    });
    println!("{arrivals} arrivals, {counts:?}, by bucket {buckets:?}");
    assert!(arrivals >= 180 && (arrivals.saturating_sub(unseen)..=arrivals).contains(&counts[0]), "{counts:?}");
    assert_eq!([counts[1], buckets[0], buckets[1], agent.total()], [counts[0]; 4]);
    let scraped = [434, 435].map(|cluster| agent.scraped("runqlat", cluster, 0).into_values().sum::<u64>());
    assert_eq!(scraped, [counts[0]; 2], "by the tables for Prometheus");
}
