//! What is counted by process, for as long as it is of interest.

use std::collections::BTreeMap;

/// By process id: one that is used again begins anew, and what ended is kept for a while, so that its last counts are read.
pub struct Lives<T> {
    all: BTreeMap<u32, Life<T>>,
    ticks: u64,
}

struct Life<T> {
    /// The start time of the process; 0: not known.
    born: u64,
    its: T,
    /// The tick its end was noticed at.
    ended: Option<u64>,
}

impl<T> Default for Lives<T> {
    fn default() -> Lives<T> {
        Lives { all: BTreeMap::new(), ticks: 0 }
    }
}

impl<T: Default> Lives<T> {
    /// Ended processes stay for so many ticks (seconds): longer than the usual interval between two fetches of a logger.
    pub const GRACE: u64 = 60;
    /// Processes kept at most: those that ended longest ago go first.
    const MOST: usize = 16 * 1024;

    /// What is counted for a process that began then; `None` if a later one has its id by now.
    pub fn of(&mut self, pid: u32, born: u64) -> Option<&mut T> {
        let life = self.all.entry(pid).or_insert_with(|| Life { born, its: T::default(), ended: None });
        if born > life.born {
            *life = Life { born, its: T::default(), ended: None };
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

    /// Once a second: notices which ended and, unless they are to stay, drops those that ended long ago.
    pub fn tick(&mut self, stay: bool, has_ended: impl Fn(u32, &T) -> bool) {
        self.ticks += 1;
        let now = self.ticks;
        for (&pid, life) in &mut self.all {
            if life.ended.is_none() && has_ended(pid, &life.its) {
                life.ended = Some(now);
            }
        }
        if !stay {
            self.all.retain(|_, life| life.ended.is_none_or(|ended| now - ended < Self::GRACE));
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
    fn an_id_used_again_begins_anew_and_what_comes_late_of_the_earlier_process_does_not_count_for_it() {
        let mut lives = Lives::<u64>::default();
        *lives.of(7, 1).unwrap() += 5;
        *lives.of(7, 1).unwrap() += 5;
        assert!(lives.iter().eq([(7, &10)]));
        *lives.of(7, 2).unwrap() += 1;
        assert_eq!(lives.of(7, 1), None);
        assert!(lives.iter().eq([(7, &1)]));
    }

    #[test]
    fn what_ended_stays_for_a_minute_or_for_good_and_the_oldest_go_where_there_are_too_many() {
        let filled = |count: u32| {
            let mut lives = Lives::<u64>::default();
            (0..count).for_each(|pid| assert!(lives.of(pid, 1).is_some()));
            lives
        };
        let mut lives = filled(2);
        for _ in 0..Lives::<u64>::GRACE {
            lives.tick(false, |pid, _| pid == 1);
            assert_eq!(lives.iter().count(), 2);
        }
        lives.tick(false, |pid, _| pid == 1);
        assert!(lives.iter().map(|(pid, _)| pid).eq([0]));
        let mut lives = filled(2);
        (0..100).for_each(|_| lives.tick(true, |_, _| true));
        assert_eq!(lives.iter().count(), 2);
        let most = Lives::<u64>::MOST as u32;
        let mut lives = filled(most + 2);
        lives.tick(true, |pid, _| pid == 9);
        lives.tick(true, |pid, _| pid < 9);
        assert!(lives.iter().map(|(pid, _)| pid).eq((1..9).chain(10..most + 2)), "9 ended first, then 0");
    }
}
