//! The agent's part in owned tables, whose rows programs claim and the agent releases (bpf/shared/owned.bpf.h).

use super::Row;
use crate::bpf::Field;
use std::sync::atomic::Ordering;

/// A table whose rows come and go.
pub struct OwnedTable<T> {
    /// Field of a row that is 0 while the row is nobody's.
    key: Field<T, u64>,
    /// Field of a row that counts the claims.
    claims: Field<T, u64>,
    /// Rows that were claimed but not filled in at the last tick.
    left: Vec<usize>,
}

/// A step of the release of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// No program finds the row from now on.
    Key,
    /// Everything else but the claims is zeroed.
    Counts,
    /// Programs can claim the row from now on.
    Claims(Ordering),
}

/// Steps of a release. Its last one is the only barrier of the protocol: who finds the claims 0 also finds everything else so.
const RELEASE: [Step; 3] = [Step::Key, Step::Counts, Step::Claims(Ordering::Release)];

impl<T> OwnedTable<T> {
    /// Makes it before the first tick.
    pub fn new(key: Field<T, u64>, claims: Field<T, u64>) -> Self {
        OwnedTable { key, claims, left: Vec::new() }
    }

    /// Zeroes a row, so that programs can claim it. To be called when no program can be counting in it any more; rows of
    /// other maps that belong to it have to be cleared before.
    pub fn release(&self, row: Row<'_, T>) {
        for step in RELEASE {
            match step {
                Step::Key => row.set(self.key, 0),
                Step::Counts => row.clear_except(self.claims),
                Step::Claims(order) => row.store(self.claims, 0, order),
            }
        }
    }

    /// Releases contested rows among those given with their numbers; to be called at each tick. Two programs that claim a
    /// row at the same time both give it up. It is released at the second tick that finds it without a key, since at the
    /// first one a program may still be filling it in.
    pub fn release_contested<'a>(&mut self, rows: impl Iterator<Item = (usize, Row<'a, T>)>)
    where
        T: 'a,
    {
        let now: Vec<_> = rows.filter(|(_, row)| row.get(self.claims) > 1 && row.get(self.key) == 0).collect();
        now.iter().filter(|(place, _)| self.left.contains(place)).for_each(|(_, row)| self.release(*row));
        self.left = now.into_iter().map(|(place, _)| place).collect();
    }
}

/// A model of the protocol on a machine with the order of arm64: the operations of a thread happen in any order that its
/// dependencies allow, each of them for all threads at once. All executions of two claimers and the agent are gone through.
#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashSet};

    const KEY: usize = 0;
    const CLAIMS: usize = 1;
    const COUNT: usize = 2;
    /// Counts of the owner before, which the agent takes over.
    const BEFORE: u8 = 5;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Op {
        /// Reads a word into the register of the operation's number.
        Load(usize),
        /// Writes a word.
        Store(usize, u8),
        /// Writes a word after everything before it.
        StoreRelease(usize, u8),
        /// Writes a word: a register plus 1.
        StoreNext(usize, usize),
        /// Adds 1 to a word, locked and without order.
        Add(usize),
        /// Continues if a register is, or is not, a value: a branch that was foretold.
        Is(usize, bool, u8),
    }

    use Op::*;

    impl Op {
        /// The word, and whether it is written.
        fn word(self) -> Option<(usize, bool)> {
            match self {
                Load(word) => Some((word, false)),
                Store(word, _) | StoreRelease(word, _) | StoreNext(word, _) | Add(word) => Some((word, true)),
                Is(..) => None,
            }
        }

        /// True if `later`, further down in the program, cannot happen before this operation, which is number `number`.
        fn comes_before(self, number: usize, later: Op) -> bool {
            let writes = later.word().is_some_and(|(_, writes)| writes);
            match (self, later) {
                (_, StoreRelease(..)) => true,
                (Is(..), _) => writes,
                (Load(_), Is(register, ..) | StoreNext(_, register)) if register == number => true,
                // A load may take the value of an earlier store of its thread before others see that.
                (Store(..), Load(_)) => false,
                _ => matches!((self.word(), later.word()), (Some((one, _)), Some((other, _))) if one == other),
            }
        }
    }

    /// A way through a thread's program, with a name for what it leads to.
    type Path = (&'static str, Vec<Op>);

    #[derive(Clone, PartialEq, Eq, Hash)]
    struct State {
        words: [u8; 3],
        /// Executed operations of each thread, and its registers.
        threads: Vec<(u32, Vec<u8>)>,
    }

    /// Executes paths in all orders; passes each end to `end`.
    fn execute(paths: &[&Path], words: [u8; 3], end: &mut dyn FnMut(&[u8; 3])) {
        let threads = paths.iter().map(|(_, ops)| (0, vec![0; ops.len()])).collect();
        let (mut seen, mut open) = (HashSet::new(), vec![State { words, threads }]);
        while let Some(state) = open.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            if paths.iter().zip(&state.threads).all(|((_, ops), (done, _))| done.count_ones() as usize == ops.len()) {
                end(&state.words);
            }
            for (thread, (_, ops)) in paths.iter().enumerate() {
                for number in 0..ops.len() {
                    open.extend(state.after(thread, ops, number));
                }
            }
        }
    }

    impl State {
        /// Returns the state after an operation; `None` if it cannot happen now.
        fn after(&self, thread: usize, ops: &[Op], number: usize) -> Option<State> {
            let is_done = |number: usize| self.threads[thread].0 >> number & 1 == 1;
            let is_late = |earlier: usize| !is_done(earlier) && ops[earlier].comes_before(earlier, ops[number]);
            if is_done(number) || (0..number).any(is_late) {
                return None;
            }
            let mut next = self.clone();
            let (done, registers) = &mut next.threads[thread];
            *done |= 1 << number;
            match ops[number] {
                Load(word) => {
                    let own =
                        (0..number).rev().filter(|&earlier| !is_done(earlier)).find_map(|earlier| match ops[earlier] {
                            Store(of, value) if of == word => Some(value),
                            _ => None,
                        });
                    registers[number] = own.unwrap_or(self.words[word]);
                }
                Store(word, value) | StoreRelease(word, value) => next.words[word] = value,
                StoreNext(word, register) => next.words[word] = registers[register] + 1,
                Add(word) => next.words[word] += 1,
                Is(register, is, value) if (registers[register] == value) != is => return None,
                Is(..) => {}
            }
            Some(next)
        }
    }

    /// The agent's path: it takes the counts over and releases the row with the steps of [`RELEASE`], or others.
    fn agent(steps: &[Step]) -> Vec<Path> {
        let mut ops = vec![Load(COUNT), Is(0, true, BEFORE)];
        ops.extend(steps.iter().map(|step| match step {
            Step::Key => Store(KEY, 0),
            Step::Counts => Store(COUNT, 0),
            Step::Claims(Ordering::Release) => StoreRelease(CLAIMS, 0),
            Step::Claims(_) => Store(CLAIMS, 0),
        }));
        vec![("released", ops)]
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Count {
        /// Locked adds.
        Locked,
        /// Plain adds.
        Plain,
        /// Plain adds to what the claimer has zeroed.
        Begun,
    }

    /// The paths of a program that counts once for an owner: `claim` and `OWNED_ROW` of bpf/shared/owned.bpf.h.
    fn claimer(key: u8, count: Count) -> Vec<Path> {
        let counted = |mut ops: Vec<Op>| {
            match count {
                Count::Locked => ops.push(Add(COUNT)),
                _ => ops.extend([Load(COUNT), StoreNext(COUNT, ops.len())]),
            }
            ops
        };
        let unknown = [Load(KEY), Is(0, false, key), Load(CLAIMS)];
        let tried = [&unknown[..], &[Is(2, true, 0), Add(CLAIMS), Load(CLAIMS)]].concat();
        let mut claimed = [&tried[..], &[Is(5, true, 1)]].concat();
        claimed.extend((count == Count::Begun).then_some(Store(COUNT, 0)));
        claimed.push(Store(KEY, key));
        vec![
            ("found", counted(vec![Load(KEY), Is(0, true, key)])),
            ("taken", [&unknown[..], &[Is(2, false, 0)]].concat()),
            ("contested", [&tried[..], &[Is(5, false, 1)]].concat()),
            ("claimed", counted(claimed)),
        ]
    }

    /// Goes through all executions of threads. Returns the outcomes of the claimers, and how they ended where that is not as it should
    /// be: the row has an owner if somebody claimed it, with all that was counted and nothing else.
    fn outcomes(threads: &[Vec<Path>], words: [u8; 3]) -> (BTreeSet<Vec<&'static str>>, BTreeSet<String>) {
        let (mut outcomes, mut faults) = (BTreeSet::new(), BTreeSet::new());
        let combinations = threads.iter().fold(vec![vec![]], |all: Vec<Vec<&Path>>, paths| {
            all.iter().flat_map(|before| paths.iter().map(|path| [&before[..], &[path]].concat())).collect()
        });
        for paths in combinations {
            let names: Vec<_> = paths.iter().map(|(name, _)| *name).filter(|name| *name != "released").collect();
            let times = |what: &str| names.iter().filter(|name| **name == what).count();
            let (counted, claimed) = (times("claimed") + times("found"), times("claimed"));
            execute(&paths, words, &mut |&[key, claims, count]| {
                outcomes.insert(names.clone());
                if claimed > 1 || (key != 0) != (claimed == 1) || (key != 0 && claims == 0) || count as usize != counted
                {
                    faults.insert(format!("{names:?}: key {key}, claims {claims}, count {count}"));
                }
            });
        }
        (outcomes, faults)
    }

    /// The row of an owner that has ended.
    const RETIRED: [u8; 3] = [9, 1, BEFORE];

    /// Releases the row while two programs want one.
    fn released(steps: &[Step], keys: [u8; 2], count: Count) -> (BTreeSet<Vec<&'static str>>, BTreeSet<String>) {
        outcomes(&[agent(steps), claimer(keys[0], count), claimer(keys[1], count)], RETIRED)
    }

    #[test]
    fn who_claims_a_released_row_counts_from_0_on_arm64_too() {
        let (two_owners, faults) = released(&RELEASE, [1, 2], Count::Locked);
        assert_eq!(faults, BTreeSet::new());
        for outcome in [["claimed", "taken"], ["claimed", "contested"], ["contested", "contested"], ["taken", "taken"]]
        {
            assert!(two_owners.contains(&outcome[..]), "{outcome:?}: {two_owners:?}");
        }
        let (one_owner, faults) = released(&RELEASE, [1, 1], Count::Locked);
        assert_eq!(faults, BTreeSet::new());
        assert!(one_owner.contains(&["claimed", "found"][..]), "{one_owner:?}");
    }

    #[test]
    fn without_release_order_a_claimer_finds_or_loses_counts() {
        let relaxed = [Step::Key, Step::Counts, Step::Claims(Ordering::Relaxed)];
        let early = [RELEASE[2], RELEASE[0], RELEASE[1]];
        for steps in [relaxed, early] {
            let (_, faults) = released(&steps, [1, 2], Count::Locked);
            for fault in ["key 1, claims 1, count 0", "key 0, claims 1"] {
                assert!(faults.iter().any(|seen| seen.contains(fault)), "{steps:?}: {fault}: {faults:?}");
            }
        }
    }

    #[test]
    fn plain_adds_are_for_those_who_begin_them() {
        let (_, faults) = released(&RELEASE, [1, 2], Count::Plain);
        assert!(faults.iter().any(|fault| fault.contains(&format!("count {}", BEFORE + 1))), "{faults:?}");
        assert_eq!(released(&RELEASE, [1, 2], Count::Begun).1, BTreeSet::new());
        // Or the agent clears the counts long before it releases the row.
        let late = vec![("released", vec![Store(KEY, 0), StoreRelease(CLAIMS, 0)])];
        let (_, faults) = outcomes(&[late, claimer(1, Count::Plain), claimer(2, Count::Plain)], [9, 1, 0]);
        assert_eq!(faults, BTreeSet::new());
    }

    #[test]
    fn a_contested_row_stays_while_its_owner_may_be_filling_it_in() {
        let contested = vec![Load(CLAIMS), Is(0, true, 2), Load(KEY), Is(2, true, 0)];
        let release = vec![Store(KEY, 0), Store(COUNT, 0), StoreRelease(CLAIMS, 0)];
        let at_once = vec![("released", [contested, release].concat())];
        let (_, faults) = outcomes(&[at_once, claimer(1, Count::Locked), claimer(2, Count::Locked)], [0; 3]);
        assert!(faults.iter().any(|fault| fault.contains("claimed") && fault.contains("claims 0")), "{faults:?}");
        let (seen, faults) = outcomes(&[claimer(1, Count::Locked), claimer(2, Count::Locked)], [0; 3]);
        assert_eq!(faults, BTreeSet::new());
        assert!(seen.contains(&["contested", "contested"][..]), "{seen:?}");
    }
}
