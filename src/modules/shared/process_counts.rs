//! Counts by process, with those of ended processes for a while.

use std::collections::{BTreeMap, BTreeSet};

/// Counts by process identifier. They restart at zero if an identifier is used again, and those of an ended process are kept for a while,
/// so that its last counts are read.
pub struct ProcessCounts<T> {
    /// Processes, in no order.
    all: Vec<Counted<T>>,
    /// Indices in `all`, by process identifier.
    places: BTreeMap<u32, usize>,
    ticks: u64,
}

struct Counted<T> {
    pid: u32,
    /// Start time of the process; 0 if it is not known.
    born: u64,
    its: T,
    /// Its total count at the last tick.
    count: u64,
    /// Tick at which its count was last seen to grow.
    counted: Option<u64>,
    /// Tick at which its end was noticed.
    ended: Option<u64>,
}

impl<T: Default> Counted<T> {
    fn new(pid: u32, born: u64) -> Counted<T> {
        Counted { pid, born, its: T::default(), count: 0, counted: None, ended: None }
    }
}

impl<T> Default for ProcessCounts<T> {
    fn default() -> ProcessCounts<T> {
        ProcessCounts { all: Vec::new(), places: BTreeMap::new(), ticks: 0 }
    }
}

impl<T: Default> ProcessCounts<T> {
    /// Ticks (seconds) for which an ended process stays after its last count: at least the usual interval between two fetches of a
    /// logger, which has its last counts by then.
    pub const GRACE: u64 = 60;
    /// Smallest number of ticks for which a process stays after its end: a client asks for names after fetching.
    pub const LINGER: u64 = 5;
    /// Largest number of processes; those that ended longest ago are dropped first.
    const MOST: usize = 16 * 1024;

    /// Returns the counts of a process with this start time; `None` if a later process has its identifier by now. If the start time
    /// was not known (0), it is set.
    pub fn of(&mut self, pid: u32, born: u64) -> Option<&mut T> {
        let place = *self.places.entry(pid).or_insert_with(|| {
            self.all.push(Counted::new(pid, born));
            self.all.len() - 1
        });
        let process = self.all.get_mut(place)?; // it has a place
        if process.born == 0 && process.ended.is_none() {
            process.born = born;
        } else if born > process.born {
            *process = Counted::new(pid, born);
        }
        (born == process.born).then_some(&mut process.its)
    }

    /// Returns the counts of a process, for callers that ask for the same ones repeatedly: `hint` is its likely index before, and its
    /// index afterwards.
    pub fn of_at(&mut self, hint: &mut u32, pid: u32, born: u64) -> Option<&mut T> {
        let is = |process: &Counted<T>| process.pid == pid && process.born == born;
        if !self.all.get(*hint as usize).is_some_and(is) {
            self.of(pid, born)?;
            *hint = u32::try_from(*self.places.get(&pid)?).ok()?;
        }
        self.all.get_mut(*hint as usize).map(|process| &mut process.its)
    }

    /// Returns the processes in the order of their identifiers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.places.iter().filter_map(|(&pid, &place)| Some((pid, &self.all.get(place)?.its)))
    }

    /// Returns the processes in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.all.iter_mut().map(|process| (process.pid, &mut process.its))
    }

    /// Keeps the processes for which `keep` returns true.
    fn retain(&mut self, keep: impl FnMut(&Counted<T>) -> bool) {
        let before = self.all.len();
        self.all.retain(keep);
        if self.all.len() < before {
            self.all.shrink_to(2 * self.all.len());
            self.places = self.all.iter().enumerate().map(|(place, process)| (process.pid, place)).collect();
        }
    }

    /// Notices which processes have ended and, unless they are to stay, drops those whose last counts were read. Called once a
    /// second. `count` returns the total count of a process.
    pub fn tick(&mut self, stay: bool, has_ended: impl Fn(u32, &T) -> bool, count: impl Fn(&T) -> u64) {
        self.ticks += 1;
        let now = self.ticks;
        for process in &mut self.all {
            if std::mem::replace(&mut process.count, count(&process.its)) != process.count {
                process.counted = Some(now);
            }
            if process.ended.is_none() && has_ended(process.pid, &process.its) {
                process.ended = Some(now);
            }
        }
        if !stay {
            self.retain(|process| {
                let is_news = process.counted.is_some_and(|counted| now - counted < Self::GRACE);
                is_news || process.ended.is_none_or(|ended| now - ended < Self::LINGER)
            });
        }
        if let Some(surplus @ 1..) = self.all.len().checked_sub(Self::MOST) {
            let mut ended: Vec<_> = self.all.iter().filter_map(|process| Some((process.ended?, process.pid))).collect();
            ended.sort_unstable();
            let gone: BTreeSet<u32> = ended.into_iter().take(surplus).map(|(_, pid)| pid).collect();
            self.retain(|process| !gone.contains(&process.pid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_id_begins_anew_without_the_counts_that_come_late() {
        let mut lives = ProcessCounts::<u64>::default();
        *lives.of(7, 1).unwrap() += 5;
        *lives.of(7, 1).unwrap() += 5;
        assert!(lives.iter().eq([(7, &10)]));
        *lives.of(7, 2).unwrap() += 1;
        assert_eq!(lives.of(7, 1), None);
        assert!(lives.iter().eq([(7, &1)]));
    }

    #[test]
    fn a_hint_finds_what_a_search_finds() {
        let mut lives = filled(4);
        let mut hints = [0; 6];
        for round in 0..3 {
            for pid in 0..6 {
                *lives.of_at(&mut hints[pid as usize], pid, 1).unwrap() += 10;
            }
            assert!(lives.iter().map(|(pid, _)| pid).eq(0..6), "{round}");
        }
        assert_eq!(lives.of(5, 1), Some(&mut 30));
        assert_eq!(hints[5], 5);
        // Others take the places of those that go, and a process id is used again.
        (0..=ProcessCounts::<u64>::GRACE).for_each(|_| lives.tick(false, |pid, _| pid < 2, |count| *count));
        assert_eq!(pids(&lives), [2, 3, 4, 5]);
        assert_eq!(lives.of_at(&mut hints[5], 5, 1), Some(&mut 30));
        assert_eq!(lives.of_at(&mut hints[5], 4, 1), Some(&mut 30));
        assert_eq!(lives.of_at(&mut hints[4], 4, 2), Some(&mut 0), "begun later");
        assert_eq!(lives.of_at(&mut hints[4], 4, 1), None, "ended before");
        assert_eq!(lives.of_at(&mut hints[4], 4, 2), Some(&mut 0));
    }

    fn filled(count: u32) -> ProcessCounts<u64> {
        let mut lives = ProcessCounts::<u64>::default();
        (0..count).for_each(|pid| *lives.of(pid, 1).unwrap() += 1);
        lives
    }

    fn pids(lives: &ProcessCounts<u64>) -> Vec<u32> {
        lives.iter().map(|(pid, _)| pid).collect()
    }

    #[test]
    fn a_start_that_was_not_known_is_learnt_and_changes_nothing() {
        let mut lives = ProcessCounts::<u64>::default();
        *lives.of(7, 0).unwrap() += 5;
        assert_eq!(lives.of(7, 100), Some(&mut 5));
        assert_eq!(lives.of(7, 99), None);
        *lives.of(8, 0).unwrap() += 5;
        lives.tick(false, |_, _| true, |count| *count);
        assert_eq!(lives.of(8, 100), Some(&mut 0), "of a process that ended the id is another's");
    }

    #[test]
    fn a_process_that_ended_is_kept_for_its_last_counts_only() {
        let ended = |pid: u32, from: u32| pid >= from;
        let mut lives = filled(3);
        let tick = |lives: &mut ProcessCounts<u64>, from| lives.tick(false, |pid, _| ended(pid, from), |count| *count);
        // 1 counts until it ends, 2 ended without having counted for more than a minute.
        for _ in 0..2 * ProcessCounts::<u64>::GRACE {
            *lives.of(1, 1).unwrap() += 1;
            tick(&mut lives, 3);
        }
        for _ in 0..ProcessCounts::<u64>::LINGER {
            tick(&mut lives, 1);
            assert_eq!(pids(&lives), [0, 1, 2]);
        }
        tick(&mut lives, 1);
        assert_eq!(pids(&lives), [0, 1]);
        for _ in ProcessCounts::<u64>::LINGER + 1..ProcessCounts::<u64>::GRACE - 1 {
            tick(&mut lives, 1);
            assert_eq!(pids(&lives), [0, 1]);
        }
        tick(&mut lives, 1);
        assert_eq!(pids(&lives), [0], "0 lives");
    }

    #[test]
    fn ended_processes_stay_a_minute_or_until_there_are_too_many() {
        let mut lives = filled(2);
        for _ in 0..ProcessCounts::<u64>::GRACE {
            lives.tick(false, |pid, _| pid == 1, |count| *count);
            assert_eq!(lives.iter().count(), 2);
        }
        lives.tick(false, |pid, _| pid == 1, |count| *count);
        assert!(lives.iter().map(|(pid, _)| pid).eq([0]));
        let mut lives = filled(2);
        (0..100).for_each(|_| lives.tick(true, |_, _| true, |count| *count));
        assert_eq!(lives.iter().count(), 2);
        let most = ProcessCounts::<u64>::MOST as u32;
        let mut lives = filled(most + 2);
        lives.tick(true, |pid, _| pid == 9, |count| *count);
        lives.tick(true, |pid, _| pid < 9, |count| *count);
        assert!(lives.iter().map(|(pid, _)| pid).eq((1..9).chain(10..most + 2)), "9 ended first, then 0");
    }
}
