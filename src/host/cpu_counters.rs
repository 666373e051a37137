//! Pairs of events that each processor counts itself (`perf_event_open(2)`), without a program and without interrupts.

use super::online_cpus;
use perf_event::events::Event;
use perf_event::{Builder, Counter, ReadFormat};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;

/// Counts of the first event of a pair and of the second.
pub type Counts = [u64; 2];

/// Counters of a pair of events on every CPU, for all that runs there or for the tasks of a cgroup. Both events of a pair are counted
/// at the same times. If the processor has fewer counters than are asked for, it takes turns; the counts are then extrapolated.
pub struct CpuCounters<E> {
    events: [E; 2],
    cgroup: Option<File>,
    cpus: BTreeMap<usize, OfCpu>,
}

/// Counts of one CPU. They go on with new counters when it was offline, which ends the old ones.
#[derive(Default)]
struct OfCpu {
    counters: Option<[Counter; 2]>,
    at: Reading,
    counts: Counts,
}

/// Values of a group of counters, and the nanoseconds for which it was to count and did.
#[derive(Clone, Copy, Default)]
struct Reading {
    values: Counts,
    enabled: u128,
    running: u128,
}

impl<E: Event + Clone> CpuCounters<E> {
    /// Opens the counters of each CPU that is online; `cgroup` is a directory of cgroup v2, or of the controller perf_event of v1.
    pub fn open(events: [E; 2], cgroup: Option<File>) -> io::Result<CpuCounters<E>> {
        let mut opened = CpuCounters { events, cgroup, cpus: BTreeMap::new() };
        opened.follow_cpus()?;
        Ok(opened)
    }

    /// Opens the counters of CPUs that have come online, and closes those of CPUs that have gone offline.
    pub fn follow_cpus(&mut self) -> io::Result<()> {
        let online = online_cpus();
        for (cpu, of_cpu) in &mut self.cpus {
            if !online.contains(cpu) {
                of_cpu.counters = None;
            }
        }
        for cpu in online {
            let of_cpu = self.cpus.entry(cpu).or_default();
            if of_cpu.counters.is_none() {
                of_cpu.counters = Some(group(&self.events, self.cgroup.as_ref(), cpu)?);
                of_cpu.at = Reading::default();
            }
        }
        Ok(())
    }

    /// Returns the counts of each CPU that was ever online. They only grow.
    pub fn read(&mut self) -> impl Iterator<Item = (usize, Counts)> + '_ {
        self.cpus.iter_mut().map(|(cpu, of_cpu)| (*cpu, of_cpu.read()))
    }
}

impl OfCpu {
    fn read(&mut self) -> Counts {
        match self.counters.as_mut().map(reading) {
            Some(Ok(now)) => self.add(now),
            Some(Err(_)) => self.counters = None, // the CPU went offline
            None => {}
        }
        self.counts
    }

    /// Adds what was counted since the last reading. While the counters wait for their turn, nothing is added: the next turn stands for
    /// the wait before it.
    fn add(&mut self, now: Reading) {
        let enabled = now.enabled.saturating_sub(self.at.enabled);
        let running = now.running.saturating_sub(self.at.running);
        if running == 0 {
            return;
        }
        for ((count, value), before) in self.counts.iter_mut().zip(now.values).zip(self.at.values) {
            let extrapolated = u128::from(value.saturating_sub(before)) * enabled.max(running) / running;
            *count = count.wrapping_add(extrapolated as u64);
        }
        self.at = now;
    }
}

fn group<E: Event + Clone>(events: &[E; 2], cgroup: Option<&File>, cpu: usize) -> io::Result<[Counter; 2]> {
    let builder = |event: &E| {
        let mut builder = Builder::new(event.clone());
        builder.one_cpu(cpu).include_kernel().include_hv().enabled(true).read_format(
            ReadFormat::GROUP | ReadFormat::ID | ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING,
        );
        match cgroup {
            Some(directory) => builder.observe_cgroup(directory),
            None => builder.any_pid(),
        };
        builder
    };
    let mut first = builder(&events[0]).build()?;
    let second = builder(&events[1]).build_with_group(&mut first)?;
    Ok([first, second])
}

fn reading(counters: &mut [Counter; 2]) -> io::Result<Reading> {
    let [first, second] = counters;
    let data = first.read_group()?;
    let value = |counter: &Counter| data.get(counter).map_or(0, |entry| entry.value());
    Ok(Reading {
        values: [value(first), value(second)],
        enabled: data.time_enabled().map_or(0, |time| time.as_nanos()),
        running: data.time_running().map_or(0, |time| time.as_nanos()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_turns_are_extrapolated_and_never_fall() {
        let mut cpu = OfCpu::default();
        let mut after = |values, enabled, running| {
            cpu.add(Reading { values, enabled, running });
            cpu.counts
        };
        assert_eq!(after([100, 10], 50, 50), [100, 10], "alone on the counters");
        assert_eq!(after([200, 20], 150, 100), [300, 30], "half of the time");
        assert_eq!(after([200, 20], 250, 100), [300, 30], "waiting for a turn");
        assert_eq!(after([201, 20], 350, 150), [304, 30], "a turn stands for the wait before it: 1 in 50 of 200");
    }

    #[test]
    fn a_cpu_that_was_offline_goes_on_counting() {
        let mut cpu = OfCpu::default();
        cpu.add(Reading { values: [7, 1], enabled: 10, running: 10 });
        (cpu.counters, cpu.at) = (None, Reading::default());
        assert_eq!(cpu.read(), [7, 1]);
        cpu.add(Reading { values: [2, 1], enabled: 5, running: 5 });
        assert_eq!(cpu.counts, [9, 2]);
    }
}
