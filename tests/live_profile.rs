//! Stack sampling on the running kernel, against a program that is known to spend its time in one function.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

use corebcc::collector::Engine;
use corebcc::kit::{Key, Table, TableId};
use corebcc::pcp::Atom;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::burner::{self, Burner};
use support::{loaded, skip};

const PROFILE: TableId = TableId::new(14);
const STACKS: TableId = TableId::new(310);

/// A busy program, one at a time: several would share the CPUs and get too few samples each.
struct Alone {
    burner: Burner,
    _turn: MutexGuard<'static, ()>,
}

impl Alone {
    fn with(start: impl FnOnce() -> Option<Burner>, missing: &str) -> Option<Alone> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let burner = start();
        if burner.is_none() {
            skip(missing);
        }
        Some(Alone { burner: burner?, _turn: turn })
    }

    fn id(&self) -> u32 {
        self.burner.child.id()
    }

    /// Returns its time on CPUs so far, in hundredths of a second.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum() // utime and stime
    }
}

/// Starts a program that is busy in a function of its own.
fn burner() -> Option<Alone> {
    Alone::with(burner::burner, "a C compiler (cc)")
}

/// Starts a program that is busy in the kernel, copying zeros.
fn copier() -> Option<Alone> {
    let start = || Command::new("dd").args(["if=/dev/zero", "of=/dev/null", "bs=1M"]).spawn().ok();
    Alone::with(|| Some(burner::of(start()?, tempfile::tempdir().unwrap())), "dd")
}

fn value(group: &mut Engine) -> String {
    let mut table = Table::new(1);
    group.refresh(PROFILE, &mut table).unwrap();
    match table.value(0, 0) {
        Some(Atom::Str(text)) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Samples a busy program with these options; returns the value at the end, and the duration in seconds.
fn profile(busy: &mut Alone, options: &str) -> Option<(String, f64)> {
    profile_until(busy, options, |_| ())
}

/// Returns the stacks, with the samples of each.
fn stacks_now(group: &mut Engine) -> BTreeMap<String, u64> {
    let mut table = Table::of(corebcc::modules::find("profile").unwrap().tables[1]);
    group.refresh(STACKS, &mut table).unwrap();
    let row = |(row, key): (usize, &Key)| match (key, table.value(row, 0)) {
        (Key::Numbered(_, name), Some(Atom::U64(samples))) => {
            (String::from_utf8_lossy(table.text(name)).into_owned(), samples)
        }
        other => panic!("{other:?}"),
    };
    table.keys().iter().enumerate().map(row).collect()
}

/// Lets the agent do its periodic work for a second, and longer until the program was on a CPU for half a second: a
/// busy machine gives it little.
fn attend(group: &mut Engine, busy: &Alone) {
    let (quiet, _other) = UnixStream::pair().unwrap();
    let (before, until) = (busy.ticks(), Instant::now() + Duration::from_secs(60));
    loop {
        group.attend(quiet.as_fd(), Some(Instant::now() + Duration::from_secs(1)));
        if busy.ticks() - before >= 50 {
            return;
        }
        assert!(Instant::now() < until, "{} of 50 ticks in a minute", busy.ticks() - before);
    }
}

/// Samples a busy program like [`profile`], and calls `end` just before the stop.
fn profile_until(busy: &mut Alone, options: &str, end: impl FnOnce(&mut Alone)) -> Option<(String, f64)> {
    let (mut group, start) = started(busy, options)?;
    attend(&mut group, busy);
    end(busy);
    group.store(PROFILE, 0, b"stop").unwrap();
    Some((value(&mut group), start.elapsed().as_secs_f64()))
}

/// Returns the module with a started run, and its start time.
fn started(busy: &Alone, options: &str) -> Option<(Engine, Instant)> {
    let section = format!("[profile]\nmodule = profile\ncluster = 14\nprocess = {}\n{options}", busy.id());
    let text = format!("[pmda]\nmodules = profile\n{section}");
    let (mut group, _) = loaded(&text, None);
    if let Err(failure) = &group.outcomes()[0] {
        skip(&failure.reason);
        return None;
    }
    assert_eq!(value(&mut group), r#"{"status": "stopped", "data": null}"#);
    let start = Instant::now();
    group.store(PROFILE, 0, b"start").unwrap();
    if value(&mut group) != r#"{"status": "started", "data": null}"# {
        skip("software perf events");
        return None;
    }
    Some((group, start))
}

/// Returns the samples of a node, by its name.
fn samples(json: &str, name: &str) -> u64 {
    let key = format!("\"name\": \"{name}\"");
    let Some((_, rest)) = json.split_once(&key) else { return 0 };
    let (_, value) = rest.split_once("\"value\": ").unwrap();
    value.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn a_busy_function_has_as_many_samples_as_it_had_time() {
    let Some(mut burner) = burner() else { return };
    let Some((json, seconds)) = profile(&mut burner, "sample_frequency = 99\n") else {
        return;
    };
    let total = samples(&json, "root");
    assert!(total > 10 && total as f64 <= 99.0 * seconds * 1.5, "{total} samples in {seconds} s: {json}");
    assert_eq!(samples(&json, "burn_test"), total, "one process only: {json}");
    assert!(samples(&json, "burn_cycles") * 10 >= total * 9, "{json}");
    assert!(json.find("\"main\"").unwrap() < json.find("burn_cycles").unwrap(), "outermost first: {json}");
}

#[test]
fn the_busy_stack_is_in_order_and_counts_reach_the_trees() {
    let Some(burner) = burner() else { return };
    let Some((mut group, _)) = started(&burner, "sample_frequency = 99\n") else { return };
    attend(&mut group, &burner);
    let first = stacks_now(&mut group);
    attend(&mut group, &burner);
    let second = stacks_now(&mut group);
    group.store(PROFILE, 0, b"stop").unwrap();
    let (tree, last) = (value(&mut group), stacks_now(&mut group));
    for (before, after) in [(&first, &second), (&second, &last)] {
        assert!(before.iter().all(|(name, samples)| after.get(name) >= Some(samples)), "{before:?} {after:?}");
    }
    let total = |stacks: &BTreeMap<String, u64>| stacks.values().sum::<u64>();
    assert!(total(&first) > 0 && total(&second) > total(&first), "{first:?} {second:?}");
    assert_eq!(total(&last), samples(&tree, "root"), "{tree}");
    let busy = |name: &str| name.starts_with("burn_test,") && name.ends_with(",main,burn_outer,burn_cycles");
    let samples: u64 = last.iter().filter(|(name, _)| busy(name)).map(|(_, samples)| samples).sum();
    assert!(total(&last) > 20 && samples * 10 >= total(&last) * 9, "{last:?}");

    group.store(PROFILE, 0, b"start").unwrap();
    attend(&mut group, &burner);
    group.store(PROFILE, 0, b"stop").unwrap();
    let (tree, again) = (value(&mut group), stacks_now(&mut group));
    assert!(last.iter().all(|(name, samples)| again.get(name) >= Some(samples)), "a step back: {last:?} {again:?}");
    assert_eq!(total(&again), total(&last) + self::samples(&tree, "root"), "the tree is of the last run: {tree}");
    group.store(PROFILE, 0, b"clear").unwrap();
    assert!(stacks_now(&mut group).is_empty());
}

#[test]
fn frames_of_the_kernel_follow_the_users_and_say_so() {
    let Some(copier) = copier() else { return };
    let Some((mut group, _)) = started(&copier, "sample_frequency = 99\n") else {
        return;
    };
    attend(&mut group, &copier);
    let stacks = stacks_now(&mut group);
    let reads = |name: &str| ["read_zero_[k]", "read_iter_zero_[k]"].iter().any(|frame| name.contains(frame));
    let read: u64 = stacks.iter().filter(|(name, _)| reads(name)).map(|(_, samples)| samples).sum();
    assert!(read * 2 > stacks.values().sum::<u64>(), "{stacks:?}");
    for frames in stacks.keys().map(|name| name.split(',').collect::<Vec<_>>()) {
        assert!(frames[0] == "dd" && frames.iter().is_sorted_by_key(|frame| frame.ends_with("_[k]")), "{frames:?}");
    }
}

#[test]
fn a_process_that_is_gone_at_the_stop_has_its_names() {
    let Some(mut burner) = burner() else { return };
    let end = |burner: &mut Alone| {
        burner.burner.child.kill().unwrap();
        burner.burner.child.wait().unwrap();
    };
    let Some((json, _)) = profile_until(&mut burner, "sample_frequency = 99\n", end) else { return };
    let total = samples(&json, "root");
    // What came since the agent last looked cannot be named: it looks once a second, and whenever there are samples.
    assert!(total > 10 && samples(&json, "burn_cycles") * 2 >= total, "{json}");
}

/// Returns the names on the path to each leaf, with their kinds.
fn stacks(json: &str) -> Vec<Vec<(&str, &str)>> {
    let (mut stacks, mut stack) = (Vec::new(), Vec::new());
    for node in json.split("{\"name\": \"").skip(1) {
        let mut parts = node.split('"');
        let (name, kind) = (parts.next().unwrap(), parts.nth(3).unwrap());
        stack.push((name, kind));
        if node.contains("\"children\": []") {
            stacks.push(stack.clone());
        }
        let closed = node.matches("]}").count().min(stack.len());
        stack.truncate(stack.len() - closed);
    }
    stacks
}

#[test]
fn the_innermost_frame_of_the_kernel_is_there_once() {
    let Some(mut copier) = copier() else { return };
    let Some((json, _)) = profile(&mut copier, "sample_frequency = 99\n") else { return };
    let stacks = stacks(&json);
    let of_kernel = stacks.iter().filter(|stack| stack.last().is_some_and(|(_, kind)| *kind == "kernel"));
    let ends: Vec<_> = of_kernel.map(|stack| &stack[stack.len() - 2..]).collect();
    assert!(!ends.is_empty(), "{json}");
    assert!(ends.iter().all(|end| end[0] != end[1]), "{ends:?}");
}

#[test]
fn kernel_stacks_only_leaves_the_users_frames_out() {
    let Some(mut burner) = burner() else { return };
    let options = "kernel_stacks_only = True\nsample_frequency = 0\nsample_period = 5000000\n";
    let Some((json, _)) = profile(&mut burner, options) else { return };
    assert!(samples(&json, "burn_test") > 10 && !json.contains("burn_cycles"), "{json}");
}

#[test]
fn without_the_process_nothing_is_started() {
    let text = "[pmda]\nmodules = profile\n[profile]\nmodule = profile\ncluster = 14\nprocess = nosuchprocess\n";
    let (mut group, _) = loaded(text, None);
    if let Err(failure) = &group.outcomes()[0] {
        return skip(&failure.reason);
    }
    group.store(PROFILE, 0, b"start").unwrap();
    assert_eq!(value(&mut group), r#"{"status": "stopped", "data": null}"#);
}

#[test]
fn user_stacks_only_leaves_the_kernels_frames_out() {
    let Some(mut copier) = copier() else { return };
    for (only, kernel) in [("False", true), ("True", false)] {
        let options = format!("user_stacks_only = {only}\nsample_frequency = 99\n");
        let Some((json, _)) = profile(&mut copier, &options) else { return };
        assert!(samples(&json, "dd") > 10, "{json}");
        assert_eq!(json.contains(r#""libtype": "kernel""#), kernel, "user_stacks_only = {only}: {json}");
    }
}

#[test]
fn one_cpu_has_the_samples_of_what_ran_there() {
    let Some(mut burner) = burner() else { return };
    let pid = burner.id().to_string();
    let pinned = Command::new("taskset").args(["-pc", "0", &pid]).output().is_ok_and(|output| output.status.success());
    if !pinned || std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return skip("taskset and two CPUs");
    }
    for (cpu, there) in [(0, true), (1, false)] {
        let options = format!("cpu = {cpu}\nsample_frequency = 99\n");
        let Some((json, _)) = profile(&mut burner, &options) else { return };
        assert_eq!(samples(&json, "burn_test") > 0, there, "CPU {cpu}: {json}");
    }
}
