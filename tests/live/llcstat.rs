//! Counters of processors, with events of the kernel in the place of the cache's, which this machine may not have.

use crate::cgroups::{hierarchy, Cgroup};
use crate::support::{alone, Agent};
use corebcc::host::{Controller, Counts, CpuCounters};
use perf_event::events::{Event, Hardware, Software};
use std::fs;

const SWITCHES: [Software; 2] = [Software::CONTEXT_SWITCHES, Software::CPU_MIGRATIONS];

fn sum<E: Event + Clone>(counters: &mut CpuCounters<E>) -> Counts {
    counters.read().fold([0; 2], |sum, (_, counts)| [sum[0] + counts[0], sum[1] + counts[1]])
}

/// Returns the kernel's own count of context switches.
fn ctxt() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    stat.lines().find_map(|line| line.strip_prefix("ctxt ")).unwrap().parse().unwrap()
}

/// Runs a program that sleeps this often; returns its context switches from the first sleep on. Those before are partly the shell's, which
/// may wait before it is in a cgroup.
fn sleep(times: u32, run: impl FnOnce(&str, &[&str]) -> String) -> u64 {
    let script = format!(
        "import time, resource\n\
         def switches():\n    usage = resource.getrusage(resource.RUSAGE_SELF)\n    return usage.ru_nvcsw + usage.ru_nivcsw\n\
         before = switches()\nfor _ in range({times}): time.sleep(0.0001)\nprint(switches() - before)"
    );
    run("python3", &["-c", &script]).trim().parse().unwrap()
}

#[test]
fn counters_of_all_cpus_agree_with_proc_stat() {
    let _alone = alone();
    let mut counters = CpuCounters::open(SWITCHES, None).unwrap();
    let outer = ctxt();
    let before = sum(&mut counters);
    let inner = ctxt();
    let own = sleep(2000, crate::support::run);
    let inner = ctxt() - inner;
    let counted = sum(&mut counters)[0] - before[0];
    let outer = ctxt() - outer;
    println!("counted {counted}, /proc/stat {inner} to {outer}, of them {own} of the sleeper");
    assert!((inner..=outer).contains(&counted) && inner >= own && own >= 2000);
}

#[test]
fn counters_of_a_cgroup_count_its_tasks_only() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let cgroup = Cgroup::make(&cgroups, "llcstat");
    let directory = || cgroups.open(cgroup.name.as_bytes()).unwrap();
    let mut counters = CpuCounters::open(SWITCHES, Some(directory())).unwrap();
    let elsewhere = sleep(1000, crate::support::run);
    assert_eq!(sum(&mut counters), [0; 2], "beside {elsewhere} switches of others");
    let own = sleep(4000, |program, arguments| cgroup.run(program, arguments));
    let counted = sum(&mut counters)[0];
    println!("counted {counted}, {own} while the program slept");
    // The program switched before and after that, too, and the shell that became it.
    assert!((own..own * 6 / 5).contains(&counted), "{counted}, {own}");
}

#[test]
fn a_processor_without_counters_of_its_cache_is_named() {
    let _alone = alone();
    const CACHE: [Hardware; 2] = [Hardware::CACHE_REFERENCES, Hardware::CACHE_MISSES];
    match CpuCounters::open(CACHE, None) {
        Ok(mut counters) => {
            let mut agent = Agent::new("llcstat", "");
            let inner = sum(&mut counters);
            let counted = agent.numbers(0).into_values().sum::<u64>();
            let work: Vec<u64> = (0..1 << 22).collect(); // 32 MB
            let (inner, outer) =
                (sum(&mut counters)[0] - inner[0], agent.numbers(0).into_values().sum::<u64>() - counted);
            println!("{outer} references, {inner} of them counted by the test, for {} numbers", work.len());
            assert!(outer >= inner && inner > 0, "{outer} {inner}");
        }
        Err(error) => {
            let Err(refused) = Agent::try_new("llcstat", "") else { panic!("loaded although {error}") };
            println!("{refused}");
            assert!(
                refused.reason.starts_with("the processor shows no counters of its cache: perf_event_open"),
                "{refused}"
            );
        }
    }
}
