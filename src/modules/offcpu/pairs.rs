//! What processes waited for: others that woke them, with the option `wakers`, and locks, with the option `locks`.

use super::{FUTEXES, LOCKS, STATS, WAKERS, WAKING, WAKINGS};
use crate::bpf::types::{self, ofc_pair, ofc_stat, span_times};
use crate::bpf::Field;
#[cfg(target_arch = "x86_64")]
use crate::host::per_cpu_distance;
use crate::host::{command_word, exists, until_nul};
use crate::kit::*;
use crate::metrics;
use crate::modules::shared::ended::RowsOfProcesses;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Largest number of names with an instance identifier.
const NAMES: usize = 32 * 1024;
/// Number of locks that are shown: those with most time.
const HOTTEST: usize = 256;

/// Wake-ups.
pub mod wakers {
    use super::*;

    metrics! {
        COUNT: u64 = 0 "sched.waits.count" COUNTER COUNT "waits of the first process that the second ended by waking it";
        TIME: u64 = 1 "sched.waits.time" COUNTER NSEC "time of these waits";
    }

    /// The table of processes that waited and processes that woke them.
    pub static TABLE: TableSpec = TableSpec {
        options: &["wakers"],
        shape: Shape::Words { max: NAMES },
        ..TableSpec::named("each process that waited and process that woke it", 447, METRICS, NAMES)
    };

    /// Fills the table. An interrupt has no process.
    pub fn fill(kernel: &dyn Kernel, table: &mut Table) {
        for (Pair { process, other }, waits) in Waits::read(kernel, WAKERS) {
            let (waiter, waker) = (command_word(&[&waits.comm]), command_word(&[&waits.other_comm]));
            let mut name = match other {
                0 => format!("{process:06}::interrupt ").into_bytes(),
                other => format!("{process:06}::{other:06} ").into_bytes(),
            };
            name.extend(waiter);
            if other != 0 {
                name.push(b' ');
                name.extend(waker);
            }
            table.named(&name).set(COUNT, waits.count).set(TIME, waits.ns);
        }
    }
}

/// Locks.
pub mod locks {
    use super::*;

    metrics! {
        COUNT: u64 = 0 "proc.locks.count" COUNTER COUNT "waits of the process for the lock";
        TIME: u64 = 1 "proc.locks.time" COUNTER NSEC "time of these waits";
        MAX: u64 = 2 "proc.locks.max" INSTANT NSEC "longest of these waits so far";
    }

    /// The table of processes and locks.
    pub static TABLE: TableSpec = TableSpec {
        options: &["locks"],
        shape: Shape::Words { max: NAMES },
        ..TableSpec::named("each process and lock, the 256 with most time", 446, METRICS, NAMES)
    };

    /// Fills the table.
    pub fn fill(kernel: &dyn Kernel, table: &mut Table) {
        let mut locks: Vec<_> = Waits::read(kernel, LOCKS).into_iter().collect();
        locks.sort_by_key(|(pair, waits)| (Reverse(waits.ns), *pair));
        locks.truncate(HOTTEST);
        for (Pair { process, other }, waits) in locks {
            let mut name = format!("{process:06}::{other:012x} ").into_bytes();
            name.extend(command_word(&[&waits.comm]));
            table.named(&name).set(COUNT, waits.count).set(TIME, waits.ns).set(MAX, waits.max);
        }
    }
}

/// A process that waited, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    process: u64,
    other: u64,
}

/// Waits of a process for another one, or for a lock.
#[derive(Default)]
struct Waits {
    count: u64,
    ns: u64,
    max: u64,
    comm: Vec<u8>,
    other_comm: Vec<u8>,
}

impl Waits {
    /// Reads all rows with waits. Two rows may belong to the same, if they were claimed at once on two CPUs: they are added up.
    fn read(kernel: &dyn Kernel, rows: Rows<ofc_pair>) -> BTreeMap<Pair, Waits> {
        let mut all: BTreeMap<Pair, Waits> = BTreeMap::new();
        for row in kernel.rows(rows).iter() {
            let times = row.part(ofc_pair::times);
            let (process, count) = (row.get(ofc_pair::key), times.get(span_times::count));
            if process == 0 || count == 0 {
                continue;
            }
            let waits = all.entry(Pair { process, other: row.get(ofc_pair::other) }).or_default();
            waits.count += count;
            waits.ns += times.get(span_times::ns);
            waits.max = times.words(span_times::max).fold(waits.max, u64::max);
            let text = |field| until_nul(&row.bytes::<_, _, 16>(field)).to_vec();
            (waits.comm, waits.other_comm) = (text(ofc_pair::comm), text(ofc_pair::other_comm));
        }
        all
    }
}

/// Rows of processes that waited, of which the agent frees those that ended.
pub struct Pairs {
    rows: Rows<ofc_pair>,
    /// Number of events that found no row.
    lost: Field<ofc_stat, u64>,
    /// True if a row belongs to two processes.
    by_other: bool,
    processes: RowsOfProcesses<ofc_pair>,
    /// Number of events that had found no row at the last tick.
    crowded: u64,
    /// Rows that were taken away at the last tick. By the next one no program counts in them.
    retired: Vec<usize>,
}

impl Pairs {
    /// Makes the rows by process that woke another.
    pub fn of_wakers() -> Pairs {
        Pairs::new(WAKERS, ofc_stat::wakerless, true)
    }

    /// Makes the rows by lock.
    pub fn of_locks() -> Pairs {
        Pairs::new(LOCKS, ofc_stat::lockless, false)
    }

    fn new(rows: Rows<ofc_pair>, lost: Field<ofc_stat, u64>, by_other: bool) -> Pairs {
        let processes = RowsOfProcesses::new(ofc_pair::key, ofc_pair::claims, exists);
        Pairs { rows, lost, by_other, processes, crowded: 0, retired: Vec::new() }
    }

    /// Plans the hook for wake-ups, and how programs know those of interrupts.
    pub fn plan_wake_ups(plan: &mut Plan, constants: &mut types::rodata) {
        plan.attach(&WAKING);
        #[cfg(target_arch = "x86_64")]
        match ["__preempt_count", "pcpu_hot"].iter().find_map(|name| per_cpu_distance("runqueues", name)) {
            Some(distance) => constants.preempt_count_at = distance,
            None => plan.refuse(
                "the options wakers and waker_stacks need the variables by CPU in the kernel's BTF, which tell an interrupt from a \
                 system call: Debian's kernels have them from 6.1 on"
                    .into(),
            ),
        }
    }

    /// Sizes the maps. `threads` is the number of sets of tables by thread.
    pub fn plan(&self, threads: usize, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let rows = table_size(host.threads * 4, 4096, 1 << 15);
        let (mask, numbers) = match self.by_other {
            true => (&mut constants.ofc_waker_mask, WAKINGS),
            false => (&mut constants.ofc_lock_mask, FUTEXES),
        };
        *mask = rows as u32 - 1;
        plan.entries(self.rows.def.name, rows);
        plan.entries(numbers.name, threads);
    }

    /// Frees rows of processes that ended some time ago, and takes the half with the least time away if the table was full: a process
    /// can wait for any number of locks. Called once a second.
    pub fn tick(&mut self, kernel: &dyn Kernel) {
        let (rows, lost, by_other) = (kernel.rows(self.rows), kernel.rows(STATS).sum(self.lost), self.by_other);
        for place in std::mem::take(&mut self.retired) {
            rows.get(place).into_iter().for_each(|row| self.processes.release(place, row));
        }
        if std::mem::replace(&mut self.crowded, lost) < lost {
            self.retired = coldest_half(rows);
            self.retired.iter().filter_map(|&place| rows.get(place)).for_each(|row| row.set(ofc_pair::key, 0));
        }
        self.processes.tick(rows, lost, |row| {
            [row.get(ofc_pair::key) as u32, if by_other { row.get(ofc_pair::other) as u32 } else { 0 }]
        });
    }
}

/// Returns the places of the half of the rows that has the least time. A row without a count has a wait under way, which may be a long one.
fn coldest_half(rows: RowsView<'_, ofc_pair>) -> Vec<usize> {
    let times = rows.iter().map(|row| (row.get(ofc_pair::key), row.part(ofc_pair::times))).enumerate();
    let used = times.filter(|(_, (key, times))| *key != 0 && times.get(span_times::count) != 0);
    let mut used: Vec<(u64, usize)> = used.map(|(place, (_, times))| (times.get(span_times::ns), place)).collect();
    used.sort_unstable();
    used.truncate(used.len() / 2);
    used.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(fake: &Fake, map: Rows<ofc_pair>, place: usize, (process, other): (u64, u64), [count, ns, max]: [u64; 3]) {
        let row = fake.row(map, place);
        row.set(ofc_pair::claims, 1);
        row.set(ofc_pair::key, process);
        row.set(ofc_pair::other, other);
        row.set_bytes(ofc_pair::comm, b"web");
        row.set_bytes(ofc_pair::other_comm, b"database");
        let times = row.part(ofc_pair::times);
        times.set(span_times::count, count);
        times.set(span_times::ns, ns);
        times.set(span_times::max.nth(place % 4), max);
    }

    fn filled(spec: &'static TableSpec, fill: fn(&dyn Kernel, &mut Table), fake: &Fake) -> Vec<(String, Vec<u64>)> {
        let table = fake.filled_by(spec, fill);
        let values = |row| (0..spec.metrics.len()).map(|column| table.number(row, column).unwrap()).collect();
        (0..table.len()).map(|row| (table.name(row), values(row))).collect()
    }

    #[test]
    fn who_waited_for_whom_is_in_the_name_and_interrupts_are_nobody() {
        let fake = Fake::new().with(WAKERS, 8);
        pair(&fake, WAKERS, 1, (7, 0), [2, 30, 20]);
        pair(&fake, WAKERS, 2, (7, 9), [1, 10, 10]);
        pair(&fake, WAKERS, 5, (7, 9), [4, 15, 5]);
        pair(&fake, WAKERS, 6, (8, 9), [0, 0, 0]);
        let waits = filled(&wakers::TABLE, wakers::fill, &fake);
        let wanted = [("000007::interrupt web", vec![2, 30]), ("000007::000009 web database", vec![5, 25])];
        assert_eq!(waits, wanted.map(|(name, values)| (name.to_string(), values)));
    }

    #[test]
    fn the_locks_with_most_time_are_shown() {
        let fake = Fake::new().with(LOCKS, 300);
        for place in 0..300 {
            pair(&fake, LOCKS, place, (7, 0x7f00 + place as u64), [1, 1 + place as u64, 1 + place as u64]);
        }
        let locks = filled(&locks::TABLE, locks::fill, &fake);
        assert_eq!(locks.len(), HOTTEST);
        assert_eq!(locks[0], ("000007::00000000802b web".to_string(), vec![1, 300, 300]));
    }

    #[test]
    fn rows_are_freed_a_minute_after_either_process_ended() {
        let fake = Fake::new().with(WAKERS, 8).with(LOCKS, 8).with(STATS, 1);
        let exists = |pid| pid < 100;
        let (mut wakers, mut locks) = (Pairs::of_wakers(), Pairs::of_locks());
        (wakers.processes.exists, locks.processes.exists) = (exists, exists);
        pair(&fake, WAKERS, 0, (7, 0), [1, 1, 1]);
        pair(&fake, WAKERS, 1, (7, 300), [1, 1, 1]);
        pair(&fake, WAKERS, 2, (300, 7), [1, 1, 1]);
        pair(&fake, LOCKS, 0, (7, 0x7f00), [1, 1, 1]);
        let mut tick = |times: usize| {
            for _ in 0..times {
                wakers.tick(&fake);
                locks.tick(&fake);
            }
            Waits::read(&fake, WAKERS).len()
        };
        assert_eq!(tick(60), 3);
        assert_eq!(tick(10), 1);
        assert_eq!(Waits::read(&fake, LOCKS).len(), 1, "an address is no process");
    }

    #[test]
    fn the_half_with_the_least_time_gives_way_in_a_full_table() {
        let fake = Fake::new().with(LOCKS, 8).with(STATS, 1);
        let mut locks = Pairs::of_locks();
        locks.processes.exists = |_| true;
        for place in 0..8 {
            pair(&fake, LOCKS, place, (7, 0x7f00 + place as u64), [1, 8 - place as u64, 1]);
        }
        let places = |fake: &Fake| -> Vec<u64> {
            let addresses = Waits::read(fake, LOCKS).into_keys().map(|pair| pair.other - 0x7f00);
            addresses.collect()
        };
        locks.tick(&fake);
        assert_eq!(places(&fake).len(), 8, "nothing was lost");
        fake.row(LOCKS, 7).part(ofc_pair::times).set(span_times::count, 0);
        fake.set(STATS, 0, ofc_stat::lockless, 3);
        locks.tick(&fake);
        assert_eq!(places(&fake), [0, 1, 2, 3]);
        assert_eq!(fake.row(LOCKS, 7).get(ofc_pair::key), 7, "somebody waits");
        assert_eq!(fake.row(LOCKS, 5).get(ofc_pair::claims), 1, "a program may still count in it");
        locks.tick(&fake);
        assert!((4..7).all(|place| fake.row(LOCKS, place).is_zero()), "for other locks");
        assert_eq!(places(&fake), [0, 1, 2, 3]);
    }
}
