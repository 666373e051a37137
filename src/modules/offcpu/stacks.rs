//! Time off a CPU by stack, between the stores of `start` and `stop`: bcc.proc.waits.stacks. Rows of bpf/shared/stack_rows.bpf.h.

use super::{CHAINS, PLACES, SCRATCH, STACKS, STATS, WAKE_PLACES};
use crate::bpf::types::{self, ofc_chain, ofc_stat, stack_row};
use crate::host::forget_symbols;
use crate::kit::*;
use crate::metrics;
use crate::modules::shared::stacks::{Folded, Order, Run, Stack, Waker};
use crate::pcp::PmErr;
use std::collections::HashMap;
use std::time::{Duration, Instant};

mod status {
    use super::*;

    metrics! {
        STATE: str = 0 "proc.waits.profile" INSTANT NONE "off-CPU stacks: whether times are counted by stack";
    }

    pub static TABLE: TableSpec =
        TableSpec { options: &["stacks"], ..TableSpec::single("the state of the off-CPU stacks", 2001, METRICS) };

    pub fn fill(run: &Run, table: &mut Table) {
        table.single().text(STATE, run.state().as_bytes());
    }
}

metrics! {
    TIME: u64 = 0 "proc.waits.stacks" COUNTER NSEC "time that threads waited, by the stack at which they left their CPU";
}

/// The table of the state.
pub static STATUS: &TableSpec = &status::TABLE;

/// The table of stacks.
pub static TABLE: TableSpec = TableSpec {
    options: &["stacks"],
    started_by: Some(&status::TABLE),
    ..TableSpec::numbered("each stack", 448, METRICS)
};

/// Time for names of new stacks at once: the first of a program takes the reading of its symbols, and a client waits meanwhile.
const NAMING: Duration = Duration::from_millis(100);

/// Who ended a wait (`enum ofc_waker`): an interrupt; from this number on, the row of a stack.
const INTERRUPT: u32 = 1;
const STACK: u32 = 2;

/// A stack of the current run, or a stack and its waker, by its row.
struct Known {
    number: u32,
    ns: u64,
}

/// Stacks at which threads left their CPU, and the time until they could run again.
pub struct WaitStacks {
    run: Run,
    /// True if stacks have those of who ended the waits.
    pub by_waker: bool,
    /// Number of the last run, by which programs tell a wait that began in another one.
    number: u64,
    known: HashMap<usize, Known>,
    /// True if all stacks of the last run have names and all of their time.
    is_complete: bool,
    folded: Folded,
}

impl WaitStacks {
    /// Makes an empty list, for the section with this name.
    pub fn new(section: &str, by_waker: bool) -> WaitStacks {
        let (run, folded) = (Run::new(section), Folded::default());
        WaitStacks { run, by_waker, number: 0, known: HashMap::new(), is_complete: true, folded }
    }

    /// Sizes the maps for this many stacks. `threads` is the number of sets of tables by thread.
    pub fn plan(&self, most: u64, threads: usize, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let rows = table_size(most as usize, 64, 1 << 16);
        constants.ofc_stack_mask = rows as u32 - 1;
        plan.entries(STACKS.def.name, rows);
        plan.entries(SCRATCH.name, host.cpus);
        plan.entries(PLACES.name, threads);
        if self.by_waker {
            constants.ofc_waker_stacks = true;
            plan.entries(CHAINS.def.name, rows);
            plan.entries(WAKE_PLACES.name, threads);
        }
    }

    /// Carries out an order of a client.
    pub fn store(&mut self, kernel: &dyn Kernel, value: &[u8]) -> Result<(), PmErr> {
        match self.run.order(value)? {
            Some(Order::Start) => self.begin(kernel),
            Some(Order::Stop) => self.end(kernel),
            Some(Order::Clear) => (self.folded, self.is_complete) = (Folded::default(), true),
            None => {}
        }
        Ok(())
    }

    fn begin(&mut self, kernel: &dyn Kernel) {
        if !self.is_complete {
            self.take(kernel, None);
        }
        kernel.rows(CHAINS).iter().filter(|row| row.get(ofc_chain::claims) != 0).for_each(Row::clear);
        kernel.rows(STACKS).iter().filter(|row| row.get(stack_row::claims) != 0).for_each(Row::clear);
        forget_symbols();
        self.known.clear();
        self.folded.begin();
        self.number += 1;
        set_run(kernel, self.number);
    }

    fn end(&mut self, kernel: &dyn Kernel) {
        set_run(kernel, 0);
        self.is_complete = false;
    }

    /// Adds what was counted since the last time, and names new stacks, once a second: while their processes live.
    pub fn tick(&mut self, kernel: &dyn Kernel) {
        if !self.run.is_on() && self.is_complete {
            return;
        }
        self.is_complete = self.take(kernel, Some(Instant::now() + NAMING)) && !self.run.is_on();
        if self.is_complete {
            forget_symbols();
        }
    }

    /// Adds the time since the last time to that of each stack. False if some have no name at this time, and keep theirs.
    fn take(&mut self, kernel: &dyn Kernel, until: Option<Instant>) -> bool {
        let (stacks, chains) = (kernel.rows(STACKS), kernel.rows(CHAINS));
        let times: Box<dyn Iterator<Item = u64>> = match self.by_waker {
            true => Box::new(chains.iter().map(|row| row.get(ofc_chain::ns))),
            false => Box::new(stacks.iter().map(|row| row.get(stack_row::ns))),
        };
        let stack = |place: usize| stacks.get(place).map(stack_of);
        let name = |place: usize| match chains.get(place).filter(|_| self.by_waker) {
            Some(chain) => name_of(chain.get(ofc_chain::key), stack),
            None => stack(place).map(|stack| stack.name_of_wait()),
        };
        let mut is_complete = true;
        for (place, ns) in times.enumerate().filter(|(_, ns)| *ns > 0) {
            if !self.known.contains_key(&place) && until.is_some_and(|until| Instant::now() >= until) {
                is_complete = false;
                continue;
            }
            let folded = &mut self.folded;
            let known = self
                .known
                .entry(place)
                .or_insert_with(|| Known { number: folded.number(name(place).unwrap_or_default()), ns: 0 });
            self.folded.add(known.number, ns.wrapping_sub(known.ns));
            known.ns = ns;
        }
        is_complete
    }

    /// Fills the table of the state.
    pub fn fill_status(&mut self, table: &mut Table) {
        status::fill(&self.run, table);
    }

    /// Fills the table with the time by stack.
    pub fn fill(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        self.tick(kernel);
        self.folded.fill(table, TIME);
    }
}

/// Sets the number of the run in which programs count; 0: in none.
fn set_run(kernel: &dyn Kernel, number: u64) {
    if let Some(run) = kernel.rows(STATS).get(0) {
        run.set(ofc_stat::run, number);
    }
}

/// Returns the name of a stack and its waker (`ofc_chain.key`); `stack` returns that of a row.
fn name_of(key: u64, stack: impl Fn(usize) -> Option<Stack>) -> Option<String> {
    let waker = match key as u32 {
        0 => Waker::Unknown,
        INTERRUPT => Waker::Interrupt,
        place => Waker::Stack(stack((place - STACK) as usize)?),
    };
    Some(stack((key >> 32) as usize - 1)?.name_of_wake(&waker))
}

fn stack_of(row: Row<'_, stack_row>) -> Stack {
    let frames = |field| row.words(field).collect::<Vec<u64>>();
    let (kernel, user) = (frames(stack_row::kernel), frames(stack_row::user));
    let bytes = |field| row.get(field) as i32;
    let (kernel_bytes, user_bytes) = (bytes(stack_row::kernel_bytes), bytes(stack_row::user_bytes));
    let pid = row.get(stack_row::pid) as u32;
    Stack::new(pid, row.bytes(stack_row::comm), (kernel_bytes, &kernel), (user_bytes, &user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::shared::stacks::tests::named;
    use crate::pcp::Atom;

    fn kernel() -> Fake {
        Fake::new().with(STACKS, 4).with(STATS, 1)
    }

    /// Adds a wait at a stack, which differs by its command.
    fn wait(fake: &Fake, place: usize, command: u8, ns: u64) {
        let row = fake.row(STACKS, place);
        row.set(stack_row::key, 1);
        row.set(stack_row::claims, 1);
        row.set_bytes(stack_row::comm, &[command; 3]);
        row.set(stack_row::user_bytes, -14i64 as u64);
        row.set(stack_row::kernel_bytes, -14i64 as u64);
        row.set(stack_row::ns, row.get(stack_row::ns) + ns);
    }

    fn filled(stacks: &mut WaitStacks, fake: &Fake) -> Vec<(String, u64)> {
        let mut table = Table::of(&TABLE);
        stacks.fill(fake, &mut table);
        named(&table)
    }

    #[test]
    fn times_of_runs_add_up_by_name() {
        let (fake, mut stacks) = (kernel(), WaitStacks::new("offcpu", false));
        let number = || fake.row(STATS, 0).get(ofc_stat::run);
        assert_eq!(stacks.store(&fake, b"start"), Ok(()));
        assert_eq!(number(), 1);
        wait(&fake, 2, b'a', 5);
        assert_eq!(filled(&mut stacks, &fake), [("aaa".into(), 5)]);
        wait(&fake, 2, b'a', 2);
        wait(&fake, 3, b'b', 1);
        assert_eq!(stacks.store(&fake, b"stop"), Ok(()));
        assert_eq!(number(), 0);
        assert_eq!(filled(&mut stacks, &fake), [("aaa".into(), 7), ("bbb".into(), 1)]);
        assert_eq!(stacks.store(&fake, b"start"), Ok(()));
        assert_eq!(number(), 2, "a wait of the first run is none of the second");
        assert!((0..4).all(|place| fake.row(STACKS, place).is_zero()), "room for other stacks");
        wait(&fake, 0, b'a', 3);
        assert_eq!(filled(&mut stacks, &fake), [("aaa".into(), 10), ("bbb".into(), 1)]);
        assert_eq!(stacks.store(&fake, b"stop"), Ok(()));
        assert_eq!(stacks.store(&fake, b"clear"), Ok(()));
        assert!(filled(&mut stacks, &fake).is_empty());
    }

    #[test]
    fn a_stack_has_that_of_who_ended_the_wait_behind_it() {
        let (fake, mut stacks) = (kernel().with(CHAINS, 4), WaitStacks::new("offcpu", true));
        assert_eq!(stacks.store(&fake, b"start"), Ok(()));
        wait(&fake, 1, b'a', 0);
        wait(&fake, 2, b'b', 0);
        for (place, waker) in [0, INTERRUPT, STACK + 2].into_iter().enumerate() {
            let row = fake.row(CHAINS, place);
            row.set(ofc_chain::claims, 1);
            row.set(ofc_chain::key, 2 << 32 | u64::from(waker));
            row.set(ofc_chain::ns, 5 + place as u64);
        }
        let names = [("aaa,--,[interrupt]".into(), 6), ("aaa,--,[unknown]".into(), 5), ("aaa,--,bbb".into(), 7)];
        let mut found = filled(&mut stacks, &fake);
        found.sort();
        assert_eq!(found, names);
        assert_eq!((stacks.store(&fake, b"stop"), stacks.store(&fake, b"start")), (Ok(()), Ok(())));
        assert!((0..4).all(|place| fake.row(CHAINS, place).is_zero()), "room for others");
    }

    #[test]
    fn the_state_is_told_and_other_orders_are_refused() {
        let (fake, mut stacks) = (kernel(), WaitStacks::new("offcpu", false));
        let state = |stacks: &mut WaitStacks| {
            let mut table = Table::of(STATUS);
            stacks.fill_status(&mut table);
            match table.value(0, 0) {
                Some(Atom::Str(text)) => String::from_utf8_lossy(text).into_owned(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(state(&mut stacks), "stopped");
        assert_eq!(stacks.store(&fake, b"pause"), Err(PmErr::BADSTORE));
        assert_eq!(stacks.store(&fake, b"stop"), Ok(()), "as the Python agent's profiler: it is logged");
        assert_eq!(stacks.store(&fake, b"start"), Ok(()));
        assert_eq!(state(&mut stacks), "started");
    }
}
