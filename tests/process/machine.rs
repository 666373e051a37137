//! A machine whose CPUs go off and on, and whose clock steps, while the agent counts.

use crate::own::values;
use crate::peer::Peer;
use crate::support::script::copy_program;
use crate::support::{config, lacks_bpf, lacks_own_machine, skip, wait_for, Home};
use corebcc::host::online_cpus;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::time::{clock_gettime, clock_settime, ClockId};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Executions on each CPU in each part of a test.
const EACH: u64 = 20;

/// Puts a CPU on or off.
#[track_caller]
fn switch(cpu: usize, on: bool) {
    fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), if on { "1" } else { "0" }).unwrap();
    assert_eq!(online_cpus().contains(&cpu), on);
}

/// Lets this thread and what it starts run on these CPUs.
fn bind<'a>(cpus: impl IntoIterator<Item = &'a usize>) {
    let mut set = CpuSet::new();
    cpus.into_iter().for_each(|cpu| set.set(*cpu).unwrap());
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

/// Executes a copy of `true` on each CPU that is on, and returns how often.
fn work(program: &Path) -> u64 {
    let cpus = online_cpus();
    for cpu in &cpus {
        bind([cpu]);
        for _ in 0..EACH {
            assert!(Command::new(program).arg0("true").status().unwrap().success());
        }
    }
    bind(&cpus);
    EACH * cpus.len() as u64
}

/// Counters of all events of their kind.
const COUNTERS: [&str; 6] = [
    "bcc.proc.sysfork",
    "bcc.proc.exits.all.count",
    "bcc.runq.all.bucket",
    "bcc.runq.latency",
    "bcc.irq.soft.run.count",
    "bcc.proc.syscall.count",
];

/// An agent, with what it has to count.
struct Counted {
    peer: Peer,
    /// Program whose executions are counted, and how often it has run.
    program: std::path::PathBuf,
    executions: u64,
    /// Counters at the last look, by metric and instance.
    before: BTreeMap<(&'static str, String), u64>,
    home: Home,
}

impl Counted {
    fn new() -> Counted {
        let home = Home::new(&config(&["sysfork", "exectop", "exitsnoop", "runqlat", "softirqs", "syscount"]));
        let program = home.path(&format!("cpu-{}", std::process::id()));
        copy_program("/bin/true", &program);
        let mut peer = Peer::ready(&home, &[]);
        wait_for("quantiles", || (!values(&mut peer, "bcc.runq.all.p99").is_empty()).then_some(()));
        Counted { peer, program, executions: 0, before: BTreeMap::new(), home }
    }

    /// Works, and looks whether all of it is counted and no counter is less than before.
    #[track_caller]
    fn check(&mut self, what: &str) {
        self.executions += work(&self.program);
        let name = self.program.file_name().unwrap().to_str().unwrap();
        let counted = values(&mut self.peer, "bcc.proc.exec.count").remove(name);
        assert_eq!(counted, Some(self.executions.to_string()), "executions {what}");
        for metric in COUNTERS {
            for (instance, value) in values(&mut self.peer, metric) {
                let value: u64 = value.parse().unwrap();
                let before = self.before.insert((metric, instance.clone()), value).unwrap_or(0);
                assert!(value >= before, "{metric}[{instance}] {what}: {value} after {before}");
            }
        }
        let p99 = values(&mut self.peer, "bcc.runq.all.p99");
        assert_eq!(p99.len(), 1, "quantiles {what}");
    }
}

#[test]
fn counts_go_on_exactly_while_cpus_go_off_and_on() {
    if lacks_own_machine() || lacks_bpf() {
        return;
    }
    let all = online_cpus();
    let Some(last) =
        all.last().filter(|cpu| **cpu > 0 && Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}/online")).exists())
    else {
        return skip("a second CPU that can be put off (CONFIG_HOTPLUG_CPU)");
    };
    let mut counted = Counted::new();
    counted.check("with all CPUs");
    for time in 1..=3 {
        switch(*last, false);
        counted.check(&format!("with a CPU off, {time}"));
        switch(*last, true);
        counted.check(&format!("with the CPU on again, {time}"));
    }
    let Counted { mut peer, home, .. } = counted;
    assert_eq!(peer.close().0.code(), Some(0));

    // An agent that begins without a CPU has its counts when it comes.
    switch(*last, false);
    let mut counted = Counted::new();
    counted.check("begun with a CPU off");
    switch(*last, true);
    counted.check("once it is on");
    for log in [home.log(), counted.home.log()] {
        assert!(!log.contains("Error: ") && !log.contains("panicked"), "{log}");
    }
}

#[test]
fn counts_quantiles_and_rows_are_right_after_steps_of_the_clock() {
    if lacks_own_machine() || lacks_bpf() {
        return;
    }
    let now = || clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
    let mut counted = Counted::new();
    counted.check("before");
    for step in [3_600, -7_200, 86_400 * 400, -86_400 * 400, 3_600] {
        clock_settime(ClockId::CLOCK_REALTIME, now() + TimeSpec::seconds(step)).unwrap();
        counted.check(&format!("after a step of {step} s"));
        // The row of the last end: others are of the time before the step.
        let number = |text: &String| text.parse::<i64>().unwrap();
        let rows = values(&mut counted.peer, "bcc.proc.exit.seq");
        let (row, _) = rows.iter().max_by_key(|(_, seq)| number(seq)).unwrap();
        let ended = number(&values(&mut counted.peer, "bcc.proc.exit.time")[row]) / 1000;
        let seconds = now().num_seconds();
        assert!((seconds - 30..=seconds).contains(&ended), "after a step of {step} s: ended at {ended}, now {seconds}");
    }
    let log = counted.home.log();
    assert!(!log.contains("Error: ") && !log.contains("panicked"), "{log}");
}
