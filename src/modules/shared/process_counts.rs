//! What is counted by process, for as long as it is of interest.

use std::collections::BTreeMap;

/// By process id: one that is used again begins anew, and what ended is kept for a while, so that its last counts are read.
pub struct ProcessCounts<T> {
    all: BTreeMap<u32, Counted<T>>,
    ticks: u64,
}

struct Counted<T> {
    /// The start time of the process; 0: not known.
    born: u64,
    its: T,
    /// What it had counted at the last tick.
    count: u64,
    /// The tick at which it was last seen to have counted something.
    counted: Option<u64>,
    /// The tick its end was noticed at.
    ended: Option<u64>,
}

impl<T: Default> Counted<T> {
    fn new(born: u64) -> Counted<T> {
        Counted { born, its: T::default(), count: 0, counted: None, ended: None }
    }
}

impl<T> Default for ProcessCounts<T> {
    fn default() -> ProcessCounts<T> {
        ProcessCounts { all: BTreeMap::new(), ticks: 0 }
    }
}

impl<T: Default> ProcessCounts<T> {
    /// Ended processes stay for so many ticks (seconds) after they last counted something: no less than the usual interval
    /// between two fetches of a logger, which has their last counts by then.
    pub const GRACE: u64 = 60;
    /// They stay for so many ticks after their end at least: a client asks for names after it has fetched.
    pub const LINGER: u64 = 5;
    /// Processes kept at most: those that ended longest ago go first.
    const MOST: usize = 16 * 1024;

    /// What is counted for a process that began then; `None` if a later one has its id by now. Where it was not known when the
    /// process began (0), it is from now on.
    pub fn of(&mut self, pid: u32, born: u64) -> Option<&mut T> {
        let life = self.all.entry(pid).or_insert_with(|| Counted::new(born));
        if life.born == 0 && life.ended.is_none() {
            life.born = born;
        } else if born > life.born {
            *life = Counted::new(born);
        }
        (born == life.born).then_some(&mut life.its)
    }

    /// In the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.all.iter().map(|(&pid, life)| (pid, &life.its))
    }

    /// In the order of their ids.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.all.iter_mut().map(|(&pid, life)| (pid, &mut life.its))
    }

    /// Once a second: notices which ended and, unless they are to stay, drops those whose last counts everybody has seen. `count`
    /// is the sum of what is counted for a process.
    pub fn tick(&mut self, stay: bool, has_ended: impl Fn(u32, &T) -> bool, count: impl Fn(&T) -> u64) {
        self.ticks += 1;
        let now = self.ticks;
        for (&pid, life) in &mut self.all {
            if std::mem::replace(&mut life.count, count(&life.its)) != life.count {
                life.counted = Some(now);
            }
            if life.ended.is_none() && has_ended(pid, &life.its) {
                life.ended = Some(now);
            }
        }
        if !stay {
            self.all.retain(|_, life| {
                let is_news = life.counted.is_some_and(|counted| now - counted < Self::GRACE);
                is_news || life.ended.is_none_or(|ended| now - ended < Self::LINGER)
            });
        }
        while self.all.len() > Self::MOST {
            let oldest = self.all.iter().filter_map(|(pid, life)| Some((life.ended?, *pid))).min();
            let Some((_, pid)) = oldest else { return };
            self.all.remove(&pid);
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
