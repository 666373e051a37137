//! Successful execs by command name. Kernel side: bpf/exectop.bpf.c.

use crate::bpf::types::{self, exec_row, exec_stat};
use crate::host::until_nul;
use crate::kit::*;
use crate::{maps, metrics, tracepoint};
use std::collections::BTreeMap;

metrics! {
    COUNT: u64 = 0 "proc.exec.count" COUNTER COUNT "successful execs by the new program's command name";
}

maps! {
    rows ROWS: exec_row = "exec_rows", taken claims, lost exec_stat.lost in "exec_stats";
    rows STATS: exec_stat = "exec_stats";
}

/// Names: as many as the Python agent's table held.
const NAMES: usize = 16 * 1024;

/// Ticks (seconds) between two looks for names that are not used.
const LOOK: u64 = 60;
/// Ticks without an exec after which a name may give way to new ones.
const IDLE: u64 = 600;
/// With so many names there may be no place left for a new one.
const CROWDED: usize = NAMES / 8 * 7;
/// So many names give way at once.
const GIVE_WAY: usize = NAMES / 4;

static EXEC: Hook = tracepoint!("sched_process_exec", NEEDS_BTF);

/// A name has two rows if it was new on two CPUs at once.
static TABLE: TableSpec = TableSpec {
    cluster: 13,
    shape: Shape::Named { max: NAMES },
    metrics: METRICS,
    readings: &[&PerKey {
        rows: ROWS,
        name: |row| used(row).map(|comm| until_nul(&comm).to_vec()),
        cells: &[(COUNT, exec_row::count)],
    }],
    ..TableSpec::NEW
};

/// The declaration.
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

/// When a name was used last, as far as the looks can tell.
struct Use {
    count: u64,
    tick: u64,
}

struct Exectop {
    claims: RowClaims<exec_row>,
    ticks: u64,
    uses: BTreeMap<Comm, Use>,
    lost: u64,
    /// Rows whose names gave way at the last look.
    emptied: Vec<usize>,
}

impl Exectop {
    fn new() -> Exectop {
        let claims = RowClaims::new(exec_row::claims);
        Exectop { claims, ticks: 0, uses: BTreeMap::new(), lost: 0, emptied: Vec::new() }
    }

    /// Notes which names were used. Where it gets crowded, those give way that were not for the longest time.
    fn look(&mut self, kernel: &dyn Kernel) {
        let (now, counts, lost) = (self.ticks, counts(kernel), lost(kernel));
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
        for (place, row) in kernel.rows(ROWS).iter().enumerate() {
            if idle.binary_search(&comm_of(row)).is_ok() {
                // No program finds the row from now on; one that has found it may still count in it.
                row.set_bytes(exec_row::comm, &[0; 16]);
                self.emptied.push(place);
            }
        }
    }

    /// Lets programs take the rows whose names gave way a tick ago.
    fn free_emptied(&mut self, kernel: &dyn Kernel) {
        let emptied = self.emptied.drain(..).filter_map(|place| kernel.rows(ROWS).get(place));
        for row in emptied.filter(|row| comm_of(*row) == Comm::default()) {
            row.set(exec_row::count, 0);
            row.set(exec_row::claims, 0); // last of all: it lets a program take the row
        }
    }
}

fn comm_of(row: Row<'_, exec_row>) -> Comm {
    row.bytes(exec_row::comm)
}

fn lost(kernel: &dyn Kernel) -> u64 {
    kernel.rows(STATS).sum(exec_stat::lost)
}

/// The name of a row that counted something.
fn used(row: Row<'_, exec_row>) -> Option<Comm> {
    let comm = comm_of(row);
    (row.get(exec_row::count) > 0 && comm != Comm::default()).then_some(comm)
}

/// Execs by name.
fn counts(kernel: &dyn Kernel) -> BTreeMap<Comm, u64> {
    let mut counts = BTreeMap::new();
    for row in kernel.rows(ROWS).iter() {
        if let Some(comm) = used(row) {
            *counts.entry(comm).or_default() += row.get(exec_row::count);
        }
    }
    counts
}

impl Module for Exectop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.exec_mask = NAMES as u32 - 1;
        plan.attach(&EXEC);
        plan.entries(ROWS.def.name, NAMES);
        plan.entries(STATS.def.name, host.cpus);
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        self.ticks += 1;
        self.claims.release_contested(kernel.rows(ROWS), |row| comm_of(row) == Comm::default());
        self.free_emptied(kernel);
        if self.ticks == 1 && kernel.continues(&ROWS.def) {
            let rows = kernel.rows(ROWS);
            let is_left = |row: Row<'_, exec_row>| row.get(exec_row::claims) == 1 && comm_of(row) == Comm::default();
            // The agent before emptied them; one that a program is just filling in is not empty at the next tick.
            self.emptied = rows.iter().enumerate().filter(|(_, row)| is_left(*row)).map(|(place, _)| place).collect();
        }
        if self.ticks.is_multiple_of(LOOK) {
            self.look(kernel);
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
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
        let table = fake.filled(&TABLE, &mut Exectop::new());
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

    /// A row with a name and a count.
    fn fill(fake: &Fake, row: usize, name: u64, count: u64) {
        fake.set(ROWS, row, exec_row::claims, 1);
        fake.row(ROWS, row).set_bytes(exec_row::comm, format!("name{name}").as_bytes());
        fake.set(ROWS, row, exec_row::count, count);
    }

    fn shown(module: &mut Exectop, fake: &Fake) -> usize {
        fake.filled(&TABLE, module).len()
    }

    #[test]
    fn a_name_with_two_rows_has_one_count() {
        let fake = Fake::new().with(ROWS, 8);
        fill(&fake, 2, 7, 3);
        fill(&fake, 5, 7, 4);
        let table = fake.filled(&TABLE, &mut Exectop::new());
        assert_eq!((table.len(), table.value(0, 0)), (1, Some(Atom::U64(7))));
    }

    #[test]
    fn names_long_unused_give_way_once_there_is_no_place() {
        let fake = Fake::new().with(ROWS, 64).with(STATS, 1);
        (0..64).for_each(|row| fill(&fake, row, row as u64, 1));
        let mut module = Exectop::new();
        let seconds = |module: &mut Exectop, seconds: u64| (0..seconds).for_each(|_| module.tick(&fake));
        seconds(&mut module, 2 * IDLE);
        assert_eq!(shown(&mut module, &fake), 64, "there is place enough");
        fill(&fake, 9, 9, 2);
        seconds(&mut module, LOOK);
        fake.set(STATS, 0, exec_stat::lost, 1);
        seconds(&mut module, LOOK);
        assert_eq!(shown(&mut module, &fake), 1, "all but the one that was used");
        let kernel: &dyn Kernel = &fake;
        let claimed = || kernel.rows(ROWS).iter().filter(|row| row.get(exec_row::claims) != 0).count();
        assert_eq!(claimed(), 64, "programs may still count in these rows");
        seconds(&mut module, 1);
        assert_eq!(claimed(), 1);
        fill(&fake, 8, 100, 1);
        assert_eq!(shown(&mut module, &fake), 2);
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
        assert_eq!(shown(&mut module, &fake), 2);
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
        assert_eq!(shown(&mut module, &fake), NAMES - GIVE_WAY);
        let kernel: &dyn Kernel = &fake;
        let later = kernel.rows(ROWS).iter().skip(half).all(|row| comm_of(row) != Comm::default());
        assert!(later, "a later name gave way before an earlier one");
    }
}
