//! oncpu against what the kernel keeps of processes and of their switches.

use crate::cgroups::{hierarchy, Cgroup};
use crate::common::skip;
use crate::support::{alone, names, number, Agent, Sleeper};
use corebcc::host::Controller;
use corebcc::modules::find;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// Counts that the kernel keeps of a process with one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    voluntary: u64,
    involuntary: u64,
    /// Nanoseconds on a CPU.
    time: u64,
    /// Moves to another CPU; 0 where the kernel does not tell.
    migrations: u64,
}

impl Kept {
    /// Reads it once the process waits for orders.
    fn of(process: &Sleeper) -> Kept {
        process.arrivals();
        let file = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", process.pid())).unwrap_or_default();
        let of = |name: &str, text: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().last()?.parse().ok()).unwrap_or(0)
        };
        let status = file("status");
        Kept {
            voluntary: of("voluntary_ctxt_switches:", &status),
            involuntary: of("nonvoluntary_ctxt_switches:", &status),
            time: file("schedstat").split_whitespace().next().unwrap().parse().unwrap(),
            migrations: of("se.nr_migrations", &file("sched")),
        }
    }

    fn since(self, earlier: Kept) -> Kept {
        Kept {
            voluntary: self.voluntary - earlier.voluntary,
            involuntary: self.involuntary - earlier.involuntary,
            time: self.time - earlier.time,
            migrations: self.migrations - earlier.migrations,
        }
    }
}

/// Computes for a number of milliseconds; for none, sleeps.
fn compute(milliseconds: u32) {
    if milliseconds == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let end = Instant::now() + Duration::from_millis(milliseconds.into());
    while Instant::now() < end {}
}

/// Moves to another CPU a number of times.
fn move_about(times: u32) {
    for time in 0..times as usize {
        let mut cpus = CpuSet::new();
        let _ = cpus.set(1 - time % 2);
        let _ = sched_setaffinity(Pid::from_raw(0), &cpus);
    }
}

/// Starts a process that computes on the first CPU only.
fn hog() -> Sleeper {
    let hog = Sleeper::doing(compute);
    let mut cpus = CpuSet::new();
    cpus.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(hog.pid() as i32), &cpus).unwrap();
    hog
}

/// Computes in two processes at once.
fn compete(one: &mut Sleeper, other: &mut Sleeper) {
    one.begin(300);
    other.begin(300);
    one.end();
    other.end();
}

/// Returns the table of all CPUs: turns, their time, voluntary and involuntary switches, migrations.
fn counted(agent: &mut Agent) -> [u64; 5] {
    let [spec, _, _, in_seconds] = find("oncpu").unwrap().tables else { panic!("four tables") };
    agent.tick();
    let table = agent.table();
    let columns =
        ["oncpu.count", "oncpu.sum", "switches.voluntary.count", "switches.involuntary.count", "migrations.count"];
    let columns = columns.map(|name| {
        let column = spec.metrics.iter().position(|metric| metric.name == format!("sched.{name}")).unwrap();
        number(&table, 0, column)
    });
    assert!(agent.scraped("oncpu", in_seconds.cluster, 0)["all"] >= columns[0]);
    columns
}

/// The turns of which a program did not see the beginning, as the log has them.
fn unmeasured(agent: &mut Agent) -> u64 {
    const LINE: &str = " turns whose beginning was not seen";
    agent.warnings().iter().find_map(|line| line.strip_suffix(LINE)?.parse().ok()).unwrap_or(0)
}

/// Compares the switches of a process that sleeps and competes, and its time, with the kernel's.
fn process_is_counted(start: impl FnOnce(&str) -> Agent) {
    let (mut process, mut other) = (hog(), hog());
    let before = Kept::of(&process);
    let mut agent = start(&format!("process = {}\nprometheus = True", process.pid()));
    let begin = Instant::now();
    compete(&mut process, &mut other);
    for _ in 0..50 {
        process.sleep(0);
    }
    let elapsed = begin.elapsed().as_nanos() as u64;
    let kept = Kept::of(&process).since(before);
    let [turns, time, voluntary, involuntary, migrations] = counted(&mut agent);
    let unmeasured = unmeasured(&mut agent);
    println!("{kept:?}, {turns} turns, {unmeasured} unmeasured, {time} ns");
    assert_eq!([voluntary, involuntary, migrations], [kept.voluntary, kept.involuntary, kept.migrations]);
    assert!(voluntary >= 40 && involuntary >= 5, "{kept:?}");
    assert_eq!(turns + unmeasured, voluntary + involuntary);
    // A turn has the interrupts and, on a virtual machine, the time that another one had the CPU. It begins a moment after the kernel's:
    // an emulated CPU takes a tenth of a millisecond for that.
    let least = (kept.time / 100 * 99).saturating_sub(turns * 200_000);
    assert!(unmeasured > 0 || (least..elapsed).contains(&time), "{time} ns in {elapsed} ns, {kept:?}");
}

#[test]
fn switches_of_a_process_are_those_that_the_kernel_counts() {
    let _alone = alone();
    process_is_counted(|options| Agent::new("oncpu", options));
}

#[test]
fn switches_of_a_process_count_the_same_with_probe_reads() {
    let _alone = alone();
    process_is_counted(|options| Agent::avoiding("tp_btf", "oncpu", options));
}

#[test]
fn switches_of_a_process_count_the_same_beside_runqlat() {
    let _alone = alone();
    process_is_counted(|options| Agent::beside("runqlat", "oncpu", options));
}

#[test]
fn switches_of_a_process_count_the_same_beside_cgroup_runq() {
    let _alone = alone();
    if hierarchy(Controller::Unified).is_some() {
        process_is_counted(|options| Agent::beside("cgroup_runq", "oncpu", options));
    }
}

#[test]
fn moves_to_another_cpu_are_those_that_the_kernel_counts() {
    const MOVES: u32 = 100;
    let _alone = alone();
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skip("a second CPU");
    }
    let mut process = Sleeper::doing(move_about);
    let before = Kept::of(&process);
    let mut agent = Agent::new("oncpu", &format!("process = {}\nprometheus = True", process.pid()));
    process.sleep(MOVES);
    let kept = Kept::of(&process).since(before);
    let [.., migrations] = counted(&mut agent);
    println!("{migrations} moves, {kept:?}");
    assert!(migrations >= u64::from(MOVES) - 1, "{migrations}");
    if kept.migrations == 0 {
        return skip("moves in /proc/PID/sched (CONFIG_SCHED_DEBUG)");
    }
    assert_eq!(migrations, kept.migrations);
}

/// Who takes the CPU from a task is one of its own cgroup, or not.
#[test]
fn a_cgroup_has_its_switches_and_who_took_the_cpu() {
    let _alone = alone();
    let Some(tree) = hierarchy(Controller::Unified) else { return };
    let (own, foreign) = (Cgroup::make(&tree, "own"), Cgroup::make(&tree, "foreign"));
    let (mut one, mut two, mut stranger) = (hog(), hog(), hog());
    [&one, &two].iter().for_each(|process| own.take(process.pid()));
    foreign.take(stranger.pid());
    let before = [&one, &two].map(Kept::of);
    let mut agent = Agent::new("oncpu", "by_cgroup = True");
    let columns = |agent: &mut Agent| {
        let spec = find("oncpu").unwrap().tables[2];
        agent.tick();
        let table = agent.other(spec);
        let row = names(&table).iter().position(|name| *name == own.name);
        [0, 1, 2, 3, 4, 5].map(|column| row.map_or(0, |row| number(&table, row, column)))
    };
    compete(&mut one, &mut two);
    let [.., by_own, by_others] = columns(&mut agent);
    println!("two of the cgroup: {by_own} by its own, {by_others} by others");
    assert!(by_own >= 5, "{by_own}, {by_others}"); // others may want that CPU, too
    compete(&mut one, &mut stranger);
    let [time, voluntary, involuntary, migrations, own_then, others_then] = columns(&mut agent);
    println!("one of the cgroup: {} by its own, {} by others", own_then - by_own, others_then - by_others);
    assert!(others_then - by_others >= 5 && own_then - by_own <= 2, "{own_then}, {others_then}");
    let kept = [&one, &two].map(Kept::of);
    let of = |field: fn(Kept) -> u64| (0..2).map(|at| field(kept[at].since(before[at]))).sum::<u64>();
    let wanted = [of(|kept| kept.voluntary), of(|kept| kept.involuntary), of(|kept| kept.migrations)];
    let [_, voluntary_then, involuntary_then, migrations_then, ..] = columns(&mut agent);
    assert_eq!([voluntary_then, involuntary_then, migrations_then], wanted, "{voluntary} {involuntary} {migrations}");
    assert!(own_then + others_then <= involuntary, "{own_then} {others_then} {involuntary}");
    assert!(time >= of(|kept| kept.time) * 9 / 10, "{time} ns");
}
