//! Successful execs by command name. Kernel side: bpf/exectop.bpf.c.

use crate::bpf::types::{self, exec_row, exec_stat};
use crate::host::until_nul;
use crate::kit::*;
use crate::{maps, metrics, tracepoint};
use std::collections::{BTreeMap, BTreeSet};

metrics! {
    COUNT: u64 = 0 "proc.exec.count" COUNTER COUNT "successful execs by the new program's command name";
}

maps! {
    rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats";
    rows STATS: exec_stat = "exec_stats";
}

/// Number of rows that programs take, that of the Python agent's table.
const NAMES: usize = 16 * 1024;
/// Number of rows behind these, for names that gave way. They are pinned with the others, so that their counts continue over
/// restarts, too.
const KEPT: usize = NAMES / 2;

/// Ticks (seconds) between two looks for names that are not used.
const LOOK: u64 = 60;
/// Ticks without an exec after which a name may give way to new ones.
const IDLE: u64 = 600;
/// Number of names from which on there may be no place for a new one.
const CROWDED: usize = NAMES / 8 * 7;
/// Number of names that give way at once.
const GIVE_WAY: usize = NAMES / 4;

static EXEC: Hook = tracepoint!("sched_process_exec");

/// The table of execs by name. A name has two rows if it was new on two CPUs at once, and another one if it gave way before.
static TABLE: TableSpec =
    TableSpec { cluster: 13, shape: Shape::Named { max: NAMES + KEPT }, metrics: METRICS, ..TableSpec::NEW };

static BY_NAME: PerKey<exec_row> = PerKey {
    rows: ROWS,
    name: |row| used(row).map(|comm| until_nul(&comm).to_vec()),
    cells: &[(COUNT, exec_row::count)],
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "exectop",
    summary: "executions by command name",
    overhead: Overhead::low("220 ns per exec"),
    tables: &[&TABLE],
    hooks: &[&EXEC],
    maps: MAPS,
    counts: &[ROWS.def, STATS.def],
    make: |_| Ok(Box::new(Exectop::new())),
    ..Spec::NEW
};

type Comm = [u8; 16];

/// The last use of a name, as far as the looks can tell.
struct Use {
    count: u64,
    tick: u64,
}

struct Exectop {
    claims: OwnedTable<exec_row>,
    ticks: u64,
    uses: BTreeMap<Comm, Use>,
    lost: u64,
    /// Rows whose names gave way at the last look.
    emptied: Vec<Emptied>,
}

/// A row whose name gave way, with the count that is kept for it.
struct Emptied {
    place: usize,
    comm: Comm,
    count: u64,
}

impl Exectop {
    fn new() -> Exectop {
        let claims = OwnedTable::new(exec_row::comm.nth(0), exec_row::claims);
        Exectop { claims, ticks: 0, uses: BTreeMap::new(), lost: 0, emptied: Vec::new() }
    }

    /// Notes the names that were used. If the table is crowded, those not used for the longest time give way: their counts are moved
    /// to rows that no program takes.
    fn look(&mut self, kernel: &dyn Kernel) {
        let rows = kernel.rows(ROWS);
        let (now, counts, lost) = (self.ticks, counts(rows), lost(kernel));
        self.uses.retain(|comm, _| counts.contains_key(comm));
        for (comm, count) in &counts {
            let last = self.uses.entry(*comm).or_insert(Use { count: 0, tick: now });
            if last.count != *count {
                *last = Use { count: *count, tick: now };
            }
        }
        let crowded = counts.len() >= CROWDED || lost > std::mem::replace(&mut self.lost, lost);
        if !crowded {
            return;
        }
        let idle = self.uses.iter().filter(|(_, last)| now - last.tick >= IDLE);
        let mut idle: Vec<(u64, Comm)> = idle.map(|(comm, last)| (last.tick, *comm)).collect();
        idle.sort_unstable();
        idle.truncate(GIVE_WAY);
        let mut idle: Vec<Comm> = idle.into_iter().map(|(_, comm)| comm).collect();
        idle.sort_unstable();
        let mut kept = KeptRows::of(rows, &counts);
        for (place, row) in rows.iter().enumerate().take(NAMES) {
            let (comm, count) = (comm_of(row), row.get(exec_row::count));
            if idle.binary_search(&comm).is_ok() {
                kept.add(rows, comm, count);
                // No program finds the row from now on; one that has found it may still count in it.
                row.set_bytes(exec_row::comm, &[0; 16]);
                self.emptied.push(Emptied { place, comm, count });
            }
        }
    }

    /// Lets programs take the rows whose names gave way a tick ago.
    fn free_emptied(&mut self, kernel: &dyn Kernel) {
        let rows = kernel.rows(ROWS);
        for Emptied { place, comm, count } in self.emptied.drain(..) {
            let Some(row) = rows.get(place).filter(|row| comm_of(*row) == Comm::default()) else { continue };
            let late = row.get(exec_row::count).wrapping_sub(count);
            let kept = || rows.iter().skip(NAMES).find(|row| comm_of(*row) == comm);
            if let Some(kept) = (late > 0).then(kept).flatten() {
                kept.set(exec_row::count, kept.get(exec_row::count).wrapping_add(late));
            }
            self.claims.release(row);
        }
    }
}

/// The rows of names that gave way.
struct KeptRows {
    places: BTreeMap<Comm, usize>,
    /// Rows that other names may take, by their counts. A name that is in use again keeps its row, since its count continues from
    /// there.
    others: BTreeSet<(u64, usize)>,
}

impl KeptRows {
    fn of(rows: RowsView<'_, exec_row>, in_use: &BTreeMap<Comm, u64>) -> KeptRows {
        let (mut places, mut others) = (BTreeMap::new(), BTreeSet::new());
        for (place, row) in rows.iter().enumerate().skip(NAMES) {
            let comm = comm_of(row);
            if !in_use.contains_key(&comm) {
                others.insert((row.get(exec_row::count), place));
            }
            places.insert(comm, place);
        }
        places.remove(&Comm::default());
        KeptRows { places, others }
    }

    /// Adds to the count that is kept for a name. Without room for it, the name with the fewest execs is forgotten: anybody can
    /// execute programs of many names once.
    fn add(&mut self, rows: RowsView<'_, exec_row>, comm: Comm, count: u64) {
        let own = self.places.get(&comm).and_then(|&place| rows.get(place));
        if let Some(row) = own {
            return row.set(exec_row::count, row.get(exec_row::count).wrapping_add(count));
        }
        let fewest = self.others.first().copied().filter(|(least, _)| *least < count);
        let Some((least, place, row)) = fewest.and_then(|(least, place)| Some((least, place, rows.get(place)?))) else {
            return;
        };
        self.others.remove(&(least, place));
        self.places.remove(&comm_of(row));
        row.set(exec_row::claims, 1);
        row.set_bytes(exec_row::comm, &comm);
        row.set(exec_row::count, count);
        self.places.insert(comm, place);
        self.others.insert((count, place));
    }
}

fn comm_of(row: Row<'_, exec_row>) -> Comm {
    row.bytes(exec_row::comm)
}

fn lost(kernel: &dyn Kernel) -> u64 {
    kernel.rows(STATS).sum(exec_stat::lost)
}

/// Returns the name of a row that has counted something.
fn used(row: Row<'_, exec_row>) -> Option<Comm> {
    let comm = comm_of(row);
    (row.get(exec_row::count) > 0 && comm != Comm::default()).then_some(comm)
}

/// Returns the execs of each name since it last gave way.
fn counts(rows: RowsView<'_, exec_row>) -> BTreeMap<Comm, u64> {
    let mut counts = BTreeMap::new();
    for row in rows.iter().take(NAMES) {
        if let Some(comm) = used(row) {
            *counts.entry(comm).or_default() += row.get(exec_row::count);
        }
    }
    counts
}

impl Module for Exectop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.exec_mask = NAMES as u32 - 1;
        constants.hash_key = secret().of_programs();
        plan.attach(&EXEC);
        plan.counts_by(secret().hash(b"places of names"));
        plan.entries(ROWS.def.name, NAMES + KEPT);
        plan.entries(STATS.def.name, host.cpus);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, |_, kernel, table| BY_NAME.read(kernel, table))
            .tick(Self::tick)
            .losses(Self::losses)
            .started()
    }
}

impl Exectop {
    fn tick(&mut self, kernel: &dyn Kernel) {
        self.ticks += 1;
        self.claims.release_contested(kernel.rows(ROWS).iter().enumerate());
        self.free_emptied(kernel);
        if self.ticks == 1 && kernel.continues(&ROWS.def) {
            let rows = kernel.rows(ROWS);
            let is_left = |row: Row<'_, exec_row>| row.get(exec_row::claims) == 1 && comm_of(row) == Comm::default();
            // The agent before emptied them; one that a program is just filling in is not empty at the next tick.
            let left = rows.iter().enumerate().take(NAMES).filter(|(_, row)| is_left(*row));
            let emptied = |(place, row): (usize, Row<'_, exec_row>)| Emptied {
                place,
                comm: Comm::default(),
                count: row.get(exec_row::count),
            };
            self.emptied = left.map(emptied).collect();
        }
        if self.ticks.is_multiple_of(LOOK) {
            self.look(kernel);
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each("table-full: execs of commands without a row in the table", lost(kernel));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    #[test]
    fn each_name_is_a_row() {
        let fake = Fake::new().with(ROWS, 8);
        fake.row(ROWS, 3).set_bytes(exec_row::comm, b"bash");
        fake.set(ROWS, 3, exec_row::count, 12);
        let table = fake.filled(&TABLE, &Box::new(Exectop::new()).start(&fake));
        assert_eq!(table.len(), 1);
        assert_eq!(table.value(0, 0), Some(Atom::U64(12)));
        assert!(matches!(&table.keys()[0], Key::Name(name) if table.text(name) == b"bash"));
    }

    #[test]
    fn a_place_both_claimants_left_is_freed_at_the_second_look() {
        let fake = Fake::new().with(ROWS, 8);
        fake.set(ROWS, 2, exec_row::claims, 2);
        let mut module = Exectop::new();
        let kernel: &dyn Kernel = &fake;
        let claims = || kernel.rows(ROWS).get(2).map(|row| row.get(exec_row::claims));
        module.tick(kernel);
        assert_eq!(claims(), Some(2));
        module.tick(kernel);
        assert_eq!(claims(), Some(0));
    }

    /// Makes a row with a name and a count.
    fn fill(fake: &Fake, row: usize, name: u64, count: u64) {
        fake.set(ROWS, row, exec_row::claims, 1);
        fake.row(ROWS, row).set_bytes(exec_row::comm, format!("name{name}").as_bytes());
        fake.set(ROWS, row, exec_row::count, count);
    }

    fn shown(fake: &Fake) -> usize {
        fake.filled_by(&TABLE, |kernel, table| BY_NAME.read(kernel, table)).len()
    }

    #[test]
    fn a_name_with_two_rows_has_one_count() {
        let fake = Fake::new().with(ROWS, 8);
        fill(&fake, 2, 7, 3);
        fill(&fake, 5, 7, 4);
        let table = fake.filled(&TABLE, &Box::new(Exectop::new()).start(&fake));
        assert_eq!((table.len(), table.value(0, 0)), (1, Some(Atom::U64(7))));
    }

    #[test]
    fn names_long_unused_give_way_once_there_is_no_place() {
        let fake = Fake::new().with(ROWS, 64).with(STATS, 1);
        (0..64).for_each(|row| fill(&fake, row, row as u64, 1));
        let mut module = Exectop::new();
        let seconds = |module: &mut Exectop, seconds: u64| (0..seconds).for_each(|_| module.tick(&fake));
        seconds(&mut module, 2 * IDLE);
        assert_eq!(shown(&fake), 64, "there is place enough");
        fill(&fake, 9, 9, 2);
        seconds(&mut module, LOOK);
        fake.set(STATS, 0, exec_stat::lost, 1);
        seconds(&mut module, LOOK);
        assert_eq!(shown(&fake), 1, "all but the one that was used");
        let kernel: &dyn Kernel = &fake;
        let claimed = || kernel.rows(ROWS).iter().filter(|row| row.get(exec_row::claims) != 0).count();
        assert_eq!(claimed(), 64, "programs may still count in these rows");
        seconds(&mut module, 1);
        assert_eq!(claimed(), 1);
        fill(&fake, 8, 100, 1);
        assert_eq!(shown(&fake), 2);
    }

    /// Returns the counts that are served, by name.
    fn served(fake: &Fake) -> BTreeMap<String, u64> {
        let table = fake.filled_by(&TABLE, |kernel, table| BY_NAME.read(kernel, table));
        let count = |row| table.number(row, 0).expect("each has a count");
        (0..table.len()).map(|row| (table.name(row), count(row))).collect()
    }

    /// Makes the idle names give way.
    fn crowd(module: &mut Exectop, fake: &Fake) {
        (0..IDLE).for_each(|_| module.tick(fake));
        fake.set(STATS, 0, exec_stat::lost, module.lost + 1);
        (0..LOOK + 1).for_each(|_| module.tick(fake));
    }

    #[test]
    fn a_name_that_gave_way_never_takes_a_step_back() {
        let fake = Fake::new().with(ROWS, NAMES + KEPT).with(STATS, 1);
        (0..9).for_each(|name| fill(&fake, name as usize, name, 5));
        let mut module = Exectop::new();
        let claimed = |fake: &Fake| (0..NAMES).filter(|&row| fake.row(ROWS, row).get(exec_row::claims) != 0).count();
        for round in 1..4 {
            let before = served(&fake);
            assert_eq!((before.len(), before["name3"]), (9, 5 + 3 * (round - 1)));
            crowd(&mut module, &fake);
            assert_eq!((served(&fake), claimed(&fake)), (before, 0), "round {round}: there is room again");
            fill(&fake, 11, 3, 2);
            assert_eq!(served(&fake)["name3"], 5 + 3 * (round - 1) + 2);
            fill(&fake, 11, 3, 3);
        }
        // The next agent continues them with the maps.
        let (before, mut next) = (served(&fake), Exectop::new());
        next.tick(&fake);
        assert_eq!(served(&fake), before);
    }

    #[test]
    fn an_exec_that_is_being_counted_as_its_name_gives_way_counts() {
        let fake = Fake::new().with(ROWS, NAMES + KEPT).with(STATS, 1);
        fill(&fake, 4, 4, 5);
        let mut module = Exectop::new();
        (0..IDLE).for_each(|_| module.tick(&fake));
        fake.set(STATS, 0, exec_stat::lost, 1);
        (0..LOOK).for_each(|_| module.tick(&fake));
        assert_eq!(comm_of(fake.row(ROWS, 4)), Comm::default());
        fake.set(ROWS, 4, exec_row::count, 6);
        module.tick(&fake);
        assert_eq!(served(&fake), BTreeMap::from([("name4".into(), 6)]));
    }

    #[test]
    fn programs_executed_once_take_no_name_its_count() {
        let fake = Fake::new().with(ROWS, NAMES + KEPT).with(STATS, 1);
        (0..2).for_each(|name| fill(&fake, name as usize, name, 7));
        let mut module = Exectop::new();
        crowd(&mut module, &fake);
        for round in 0..6 {
            let names = 1000 + round * GIVE_WAY as u64..;
            (0..GIVE_WAY).zip(names).for_each(|(row, name)| fill(&fake, row, name, 1));
            crowd(&mut module, &fake);
        }
        let served = served(&fake);
        assert_eq!((served.len(), served["name0"], served["name1"]), (KEPT, 7, 7));
    }

    #[test]
    fn rows_that_an_agent_before_emptied_are_freed() {
        let fake = Fake::new().with(ROWS, 4).with(STATS, 1).continuing();
        [0, 1, 2].into_iter().for_each(|row| fake.set(ROWS, row, exec_row::claims, 1));
        fill(&fake, 3, 9, 2);
        let mut module = Exectop::new();
        module.tick(&fake);
        fill(&fake, 1, 7, 1); // by the program that claimed it just before
        module.tick(&fake);
        let claimed = [0, 1, 2, 3].map(|row| fake.row(ROWS, row).get(exec_row::claims) != 0);
        assert_eq!(claimed, [false, true, false, true]);
        assert_eq!(shown(&fake), 2);
    }

    #[test]
    fn those_unused_longest_give_way_and_not_all_at_once() {
        let fake = Fake::new().with(ROWS, NAMES).with(STATS, 1);
        let half = NAMES / 2;
        (0..half).for_each(|row| fill(&fake, row, row as u64, 1));
        let mut module = Exectop::new();
        (0..LOOK).for_each(|_| module.tick(&fake));
        (half..NAMES).for_each(|row| fill(&fake, row, row as u64, 1));
        (0..IDLE).for_each(|_| module.tick(&fake));
        assert_eq!(shown(&fake), NAMES - GIVE_WAY);
        let kernel: &dyn Kernel = &fake;
        let later = kernel.rows(ROWS).iter().skip(half).all(|row| comm_of(row) != Comm::default());
        assert!(later, "a later name gave way before an earlier one");
    }
}
