//! Times of calls that kprobe_hits and uprobe_hits take, against functions that take a known time.

use crate::files::OVERLAY;
use crate::support::{alone, names, number, wait_together, Agent};
use corebcc::modules::find;
use std::fs::{self, Permissions};
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const NEEDS_USER: &str = "root on a kernel with CONFIG_UPROBE_EVENTS";
const NEEDS_KERNEL: &str = "a kernel with fexit or kprobes";

/// Counts and times of a function in the tables of times.
#[derive(Debug)]
struct Times {
    count: u64,
    sum: u64,
    nested: u64,
    /// Calls by the lower bounds of their buckets, in microseconds.
    buckets: Vec<(u64, u64)>,
}

impl Times {
    fn of(agent: &mut Agent, module: &str, function: &str) -> Times {
        let [_, by_function, by_bucket, in_seconds] = find(module).unwrap().tables else { panic!("four tables") };
        agent.tick();
        let (table, buckets) = (agent.other(by_function), agent.other(by_bucket));
        let functions = names(&table);
        let row = functions.iter().position(|name| name == function);
        let row = row.unwrap_or_else(|| panic!("{function}: {functions:?}"));
        let value = |end: &str| {
            let column = by_function.metrics.iter().position(|metric| metric.name.ends_with(end)).unwrap();
            number(&table, row, column)
        };
        let bucket = |(row, name): (usize, String)| {
            let (range, of) = name.split_once("::").unwrap();
            (of == function).then(|| (range.split('-').next().unwrap().parse().unwrap(), number(&buckets, row, 0)))
        };
        let times = Times {
            count: value("time.count"),
            sum: value("time.sum"),
            nested: value("time.nested.count"),
            buckets: names(&buckets).into_iter().enumerate().filter_map(bucket).collect(),
        };
        println!("{times:?}");
        assert_eq!(times.at_least(0), times.count, "{times:?}");
        assert_eq!(agent.scraped(module, in_seconds.cluster, 0)[function], times.count);
        times
    }

    /// Returns the number of calls in buckets from this many microseconds on.
    fn at_least(&self, least: u64) -> u64 {
        self.buckets.iter().filter(|(from, _)| *from >= least).map(|(_, count)| count).sum()
    }
}

/// Sleeps for a number of milliseconds.
#[no_mangle]
#[inline(never)]
extern "C" fn corebcc_naps(milliseconds: u64) -> u64 {
    std::thread::sleep(Duration::from_millis(milliseconds));
    black_box(milliseconds)
}

/// Calls itself a number of times, and sleeps for a millisecond in the innermost call.
#[no_mangle]
#[inline(never)]
extern "C" fn corebcc_descends(depth: u64) -> u64 {
    if depth == 0 {
        return corebcc_naps(1);
    }
    black_box(corebcc_descends(depth - 1)) + 1
}

/// Reads a byte.
#[no_mangle]
#[inline(never)]
extern "C" fn corebcc_reads(mut pipe: &std::io::PipeReader) -> u64 {
    black_box(pipe.read(&mut [0]).unwrap() as u64)
}

/// Times functions of this program.
fn timed(functions: &[&str], lines: &str) -> Option<Agent> {
    let path = std::env::current_exe().unwrap();
    let list: Vec<String> = functions.iter().map(|function| format!("{}:{function}", path.display())).collect();
    let lines = format!("uprobes = {}\nhistograms = True\nprometheus = True\n{lines}", list.join(","));
    Agent::where_possible(NEEDS_USER, "uprobe_hits", &lines)
}

fn times_of(agent: &mut Agent, function: &str) -> (u64, Times) {
    let name = format!("{}::{function}", std::env::current_exe().unwrap().display());
    (agent.numbers(0)[&name], Times::of(agent, "uprobe_hits", &name))
}

#[test]
fn calls_of_a_user_function_have_the_times_they_took() {
    let _alone = alone();
    let Some(mut agent) = timed(&["corebcc_naps", "corebcc_descends"], "") else { return };
    let (_, before) = times_of(&mut agent, "corebcc_naps");
    assert_eq!((before.count, before.sum), (0, 0), "a function has an instance before its first call");
    let start = Instant::now();
    for time in [3; 20].into_iter().chain([12; 30]) {
        corebcc_naps(time);
    }
    let elapsed = start.elapsed().as_nanos() as u64;
    let (hits, times) = times_of(&mut agent, "corebcc_naps");
    assert_eq!((hits, times.count, times.nested), (50, 50, 0));
    assert!((20 * 3_000_000 + 30 * 12_000_000..elapsed).contains(&times.sum), "{times:?} in {elapsed} ns");
    assert!(times.at_least(2048) == 50 && times.at_least(8192) >= 30, "{times:?}");
    let (hits, times) = times_of(&mut agent, "corebcc_descends");
    assert_eq!((hits, times.count), (0, 0));
    agent.assert_complete();
}

#[test]
fn of_a_user_function_that_calls_itself_the_outermost_is_timed() {
    let _alone = alone();
    let Some(mut agent) = timed(&["corebcc_descends"], &format!("process = {}", std::process::id())) else { return };
    let start = Instant::now();
    for _ in 0..20 {
        assert_eq!(corebcc_descends(9), 10);
    }
    let elapsed = start.elapsed().as_nanos() as u64;
    let (hits, times) = times_of(&mut agent, "corebcc_descends");
    assert_eq!((hits, times.count, times.nested), (200, 20, 180));
    assert!((20_000_000..elapsed).contains(&times.sum), "{times:?} in {elapsed} ns");
    agent.assert_complete();
}

#[test]
fn a_user_function_where_500_threads_wait_is_timed_in_each() {
    const THREADS: usize = 500;
    let _alone = alone();
    let Some(mut agent) = timed(&["corebcc_reads"], "") else { return };
    let time = Duration::from_millis(200);
    wait_together(THREADS, time, |pipe| assert_eq!(corebcc_reads(pipe), 0));
    let (hits, times) = times_of(&mut agent, "corebcc_reads");
    // A program in user code can be preempted while it takes a place for its thread in a table; the place of another thread is not found
    // meanwhile. Such returns are counted as lost.
    const LINE: &str = " returns of functions whose start was not seen";
    let lost = agent.warnings().iter().find_map(|line| line.strip_suffix(LINE)?.parse().ok()).unwrap_or(0);
    let all = times.count + times.nested + lost;
    assert_eq!((hits, all), (THREADS as u64, THREADS as u64), "{lost} lost, {times:?}");
    assert!(times.count >= THREADS as u64 * 98 / 100, "{lost} lost, {times:?}");
    assert_eq!(times.at_least(131_072), times.count, "{times:?}");
}

/// Times kernel functions for this process.
fn timed_of_kernel(functions: &str) -> Option<Agent> {
    let own = format!("process = {}\nhistograms = True\nprometheus = True\nkprobes = {functions}", std::process::id());
    Agent::where_possible(NEEDS_KERNEL, "kprobe_hits", &own)
}

#[test]
fn calls_of_a_kernel_function_have_the_times_they_took() {
    let _alone = alone();
    let Some(mut agent) = timed_of_kernel("kprobe:hrtimer_nanosleep, kprobe:no_such_function") else { return };
    let start = Instant::now();
    for time in [3; 20].into_iter().chain([12; 30]) {
        std::thread::sleep(Duration::from_millis(time));
    }
    let elapsed = start.elapsed().as_nanos() as u64;
    let times = Times::of(&mut agent, "kprobe_hits", "hrtimer_nanosleep");
    // The agent's own threads may sleep besides.
    assert!(times.count >= 50 && times.at_least(2048) >= 50 && times.at_least(8192) >= 30, "{times:?}");
    assert!(times.sum >= 20 * 3_000_000 + 30 * 12_000_000, "{times:?} in {elapsed} ns");
    assert_eq!(agent.numbers(3)["hrtimer_nanosleep"], times.sum, "the sum of the calls is that of the histogram");
    assert!(
        names(&agent.other(find("kprobe_hits").unwrap().tables[1])).len() == 1,
        "what is not there has no instance"
    );
}

/// Overlayfs changes the mode of a file by the same function of the file system below.
#[test]
fn a_kernel_function_inside_itself_is_part_of_the_outer_call() {
    let _alone = alone();
    OVERLAY.mounted(|mount| {
        let file = mount.join("all/file");
        fs::write(&file, "x").unwrap();
        let Some(mut agent) = timed_of_kernel("kprobe:notify_change") else { return };
        for mode in [0o600, 0o640].into_iter().cycle().take(100) {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        }
        let times = Times::of(&mut agent, "kprobe_hits", "notify_change");
        let hits = agent.numbers(0)["notify_change"];
        agent.assert_counted([hits, times.count, times.nested], [200, 100, 100]);
        agent.assert_complete();
    });
}
