//! The `process` options of all modules: which processes are in which module's filter. Kernel side: bpf/filter.bpf.c, which
//! judges processes by their command names as they begin; the rest is done here: command lines, processes that were there
//! before, and a look at all of them every so often.

use super::processes::{Process, Watch};
use super::{Fake, Hook, Host, Kernel, MapDef, Module, Plan, RefreshError, Rows, Table, Tier};
use crate::bpf::record;
use crate::bpf::types::{filter_ask, filter_member, filter_place, filter_stat, rodata};
use crate::{maps, tracepoint};
use std::mem::offset_of;
use std::time::Duration;

maps! {
    hash MEMBERS: filter_member = "filter_members";
    hash NAMES: u64 = "filter_names";
    rows PLACES: filter_place = "filter_places";
    rows STATS: filter_stat = "filter_stats";
    ring ASKS: filter_ask = "filter_asks";
}

const CALLS: &str = "a kernel that runs the programs of raw tracepoints when asked to (5.10)";

static FORK: Hook = tracepoint!("task_newtask", "a kernel with BTF");
static EXEC: Hook = tracepoint!("sched_process_exec", "a kernel with BTF");
static END: Hook = tracepoint!("sched_process_free", "a kernel with BTF");
static ADMIT: Hook =
    Hook { name: "admission", tiers: &[Tier { kind: "call", programs: &["call__admit"] }], needs: CALLS };
static NAME: Hook =
    Hook { name: "name of a filter", tiers: &[Tier { kind: "call", programs: &["call__name"] }], needs: CALLS };

/// Processes that are in filters at once.
const MOST: usize = 16 * 1024;
/// Bytes: 4096 execs whose command line is to be looked at.
const RING: usize = 1 << 16;
/// Looks in a row at most: a process that is admitted by its command line may have forked just before.
const LOOKS: usize = 8;

/// The filters of the modules that have one. To the loader and the collector it is one more module, without metrics.
pub struct Filters {
    /// Each with its bit.
    watches: Vec<(u64, Watch)>,
    /// Places that had no process at the last tick although somebody claimed them.
    claimed: Vec<usize>,
    /// What could not be told to the kernel; said once.
    fault: Option<String>,
}

impl Filters {
    /// The stem of the file in bpf/.
    pub const NAME: &'static str = "filter";
    /// The maps.
    pub const MAPS: &'static [MapDef] = MAPS;
    /// Where it attaches.
    pub const HOOKS: &'static [&'static Hook] = &[&FORK, &EXEC, &END, &ADMIT, &NAME];

    /// The filters of these modules' plans, each with the module's name; `None` if none has one.
    pub fn of<'a>(plans: impl Iterator<Item = (&'a str, &'a Plan)>, refresh: Option<Duration>) -> Option<Filters> {
        let watch =
            |(name, plan): (&str, &Plan)| Some((plan.filter_bit(), Watch::new(name, plan.filter.clone()?, refresh)));
        let watches: Vec<_> = plans.filter_map(watch).collect();
        (!watches.is_empty()).then(|| Filters { watches, claimed: Vec::new(), fault: None })
    }

    /// The names that processes may have, in the kernel before the first look at them.
    fn tell_names(&mut self, kernel: &dyn Kernel) {
        for (name, bits) in self.names() {
            let word = |half: usize| u64::from_ne_bytes(std::array::from_fn(|i| name[half * 8 + i]));
            if !matches!(kernel.call(&NAME, &[word(0), word(1), bits]), Ok(1)) {
                log::error!("process: `{}` is looked for only from time to time", String::from_utf8_lossy(&name));
            }
        }
    }

    /// Each command name, as the kernel keeps it, with the filters it is in.
    fn names(&self) -> Vec<([u8; 16], u64)> {
        let mut names: std::collections::BTreeMap<[u8; 16], u64> = std::collections::BTreeMap::new();
        for (bit, watch) in &self.watches {
            for name in watch.filter().names() {
                let mut comm = [0; 16];
                comm[..name.len()].copy_from_slice(name);
                *names.entry(comm).or_default() |= bit;
            }
        }
        names.into_iter().collect()
    }

    /// The filters a process is in: by its name, by its command line, by its id.
    fn judge(&self, process: &Process) -> [u64; 3] {
        let mut by = [0; 3];
        for (bit, watch) in &self.watches {
            let filter = watch.filter();
            let reasons = [filter.has_name(&process.comm), filter.has_line(&process.line), filter.has_id(process.pid)];
            for (by, _) in by.iter_mut().zip(reasons).filter(|(_, is)| *is) {
                *by |= bit;
            }
        }
        by
    }

    /// Tells the kernel what a process is, again if it has become another meanwhile. Yields whether that was news.
    fn admit(&mut self, kernel: &dyn Kernel, pid: u32, mut process: Option<Process>) -> bool {
        let mut news = false;
        loop {
            let [name, line, id] = process.as_ref().map_or([0; 3], |process| self.judge(process));
            match kernel.call(&ADMIT, &[pid.into(), name, line, id]) {
                Ok(0) => return news,
                Ok(_) => news = true,
                Err(error) => {
                    let said = self.fault.replace(error.clone());
                    if said.is_none() {
                        log::error!("process: process {pid} is not counted: {error}");
                    }
                    return news;
                }
            }
            let now = Process::read(pid);
            if now == process {
                return news;
            }
            process = now;
        }
    }

    /// Looks at every process.
    fn look(&mut self, kernel: &dyn Kernel) {
        let mut all = Process::all();
        for _ in 0..LOOKS {
            let mut news = false;
            for process in &all {
                news |= self.admit(kernel, process.pid, Some(process.clone()));
            }
            if !news {
                break;
            }
            all = Process::all();
        }
        for (_, watch) in &mut self.watches {
            watch.look(&all, &mut |_, _| {});
        }
    }
}

impl Module for Filters {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut rodata) {
        let lines = self.watches.iter().filter(|(_, watch)| watch.filter().has_expressions());
        constants.filter_lines = lines.fold(0, |lines, (bit, _)| lines | bit);
        [&FORK, &EXEC, &END].into_iter().for_each(|hook| plan.hook(hook));
        [&ADMIT, &NAME].into_iter().for_each(|hook| plan.hook_if(hook, "only when it is called"));
        plan.entries(MEMBERS.name, MOST);
        plan.entries(NAMES.name, self.names().len().max(1));
        plan.entries(PLACES.def.name, Places::COUNT);
        plan.entries(STATS.def.name, host.cpus);
        plan.entries(ASKS.name, RING);
    }

    fn refresh(&mut self, _kernel: &dyn Kernel, _table: &mut Table) -> Result<(), RefreshError> {
        Ok(())
    }

    /// After those of the modules.
    fn tick(&mut self, kernel: &dyn Kernel) {
        if self.watches.iter().all(|(_, watch)| watch.is_first()) {
            self.tell_names(kernel);
        }
        let due = self.watches.iter_mut().fold(false, |due, (_, watch)| watch.is_due() | due);
        if due {
            self.look(kernel);
        }
        Places::tick(kernel, &mut self.claimed);
    }

    fn woken(&mut self, kernel: &dyn Kernel) {
        let mut pids = Vec::new();
        kernel.drain(&ASKS, &mut |bytes| pids.extend(record::<filter_ask>(bytes).map(|ask| ask.process)));
        for pid in pids {
            self.admit(kernel, pid, Process::read(pid));
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: &mut dyn FnMut(&'static str, u64)) {
        let stats = kernel.rows(STATS);
        each("processes that are not counted since too many are", stats.sum(offset_of!(filter_stat, full)));
        each(
            "processes whose command line is looked at late since too many began at once",
            stats.sum(offset_of!(filter_stat, unasked)),
        );
    }
}

/// The numbers of rows that processes have for themselves, for modules with details: handed out by the kernel, the same for
/// all modules, and given back once the process is gone and every module has emptied its rows.
pub struct Places;

impl Places {
    /// How many there are.
    pub const COUNT: usize = 128;
    const ENDED: u64 = 1;
    const EMPTYING: u64 = 2;

    /// The places that living processes have, each with its process.
    pub fn living(kernel: &dyn Kernel) -> impl Iterator<Item = (usize, u32)> + '_ {
        let places = kernel.rows(PLACES).iter().enumerate();
        let process = |(place, row): (usize, super::Row<'_>)| {
            let process = row.word(offset_of!(filter_place, process)) as u32;
            let living = process != 0 && row.word(offset_of!(filter_place, ended)) == 0;
            (living && super::exists(process)).then_some((place, process))
        };
        places.filter_map(process)
    }

    /// To be called at each tick: zeroes the rows of processes that are gone. A place has so many rows side by side.
    pub fn empty<T>(kernel: &dyn Kernel, rows: Rows<T>, per_place: usize) {
        for (place, row) in kernel.rows(PLACES).iter().enumerate() {
            if row.word(offset_of!(filter_place, ended)) == Self::EMPTYING {
                for row in kernel.rows(rows).iter().skip(place * per_place).take(per_place) {
                    (0..size_of::<T>()).step_by(8).for_each(|offset| row.set(offset, 0));
                }
            }
        }
    }

    fn tick(kernel: &dyn Kernel, claimed: &mut Vec<usize>) {
        let mut nobody = Vec::new();
        for (place, row) in kernel.rows(PLACES).iter().enumerate() {
            let word = |offset| row.word(offset);
            let process = word(offset_of!(filter_place, process)) as u32;
            if word(offset_of!(filter_place, claims)) == 0 {
                continue;
            }
            let free = || {
                row.set(offset_of!(filter_place, process), 0);
                row.set(offset_of!(filter_place, ended), 0);
                row.set(offset_of!(filter_place, claims), 0); // last of all: it lets a program take the place
            };
            match word(offset_of!(filter_place, ended)) {
                Self::EMPTYING => free(),
                Self::ENDED => row.set(offset_of!(filter_place, ended), Self::EMPTYING),
                // Two that claimed it at the same time both left it, unless one is just filling it in.
                _ if process == 0 && claimed.contains(&place) => free(),
                _ if process == 0 => nobody.push(place),
                _ if !super::exists(process) => row.set(offset_of!(filter_place, ended), Self::ENDED),
                _ => {}
            }
        }
        *claimed = nobody;
    }

    /// A kernel in which these processes have the first places.
    pub fn fake(processes: &[u32]) -> Fake {
        let fake = Fake::new().with(PLACES, Self::COUNT);
        for (place, &process) in processes.iter().enumerate() {
            fake.set(PLACES, place, offset_of!(filter_place, claims), 1);
            fake.set(PLACES, place, offset_of!(filter_place, process), process.into());
        }
        fake
    }
}
