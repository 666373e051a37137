//! The `process` options of all modules: a filter of processes for each module. The kernel's part is bpf/filter.bpf.c,
//! which matches processes by command name when they start; this part matches command lines, processes that already
//! run, and rescans all processes periodically.

use super::Automaton;
use crate::bpf::record;
use crate::bpf::types::{filter_ask, filter_automaton, filter_member, filter_slot, filter_stat, rodata};
use crate::host::{Process, Watch};
use crate::kit::{
    Arrivals, EachLoss, Fake, Hook, Host, Kernel, Module, OptionType, OwnedTable, Plan, Rows, Running, Spec, Tier,
};
use crate::{maps, tracepoint};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

maps! {
    hash MEMBERS: filter_member = "filter_members", lost filter_stat.full in "filter_stats";
    rows AUTOMATA: filter_automaton = "filter_automata";
    hash NAMES: u64 = "filter_names";
    rows SLOTS: filter_slot = "filter_slots", taken claims;
    rows STATS: filter_stat = "filter_stats";
    ring ASKS: filter_ask = "filter_asks", lost filter_stat.unasked in "filter_stats";
}

const CALLS: &str = "a kernel that runs the programs of raw tracepoints when asked to (5.10)";

static FORK: Hook = tracepoint!("task_newtask");
static EXEC: Hook = tracepoint!("sched_process_exec");
static END: Hook = tracepoint!("sched_process_free");
static ADMIT: Hook =
    Hook { name: "admission", tiers: &[Tier { kind: "call", programs: &["call__admit"] }], needs: CALLS };
static NAME: Hook =
    Hook { name: "name of a filter", tiers: &[Tier { kind: "call", programs: &["call__name"] }], needs: CALLS };

/// Modules that `trace` processes in the words of the Python agent's log; the others `attach` to them.
const TRACERS: [&str; 2] = ["tracepoint_hits", "usdt_jvm_threads"];

/// Highest number of processes in filters.
const MOST: usize = 16 * 1024;
/// Size of the ring in bytes: 4096 execs whose command line is to be matched.
const RING: usize = 1 << 16;
/// Highest number of consecutive scans: a process that is admitted by its command line may have forked just before.
const LOOKS: usize = 8;

/// Filters of all modules that have one. To the loader and the collector it is one more module, without metrics.
pub struct Filters {
    filters: Vec<Filter>,
    /// Automaton of the expressions for command lines; `None` without expressions or if it would be too large for the
    /// kernel.
    automaton: Option<Automaton>,
    /// Claims of the slots.
    claims: OwnedTable<filter_slot>,
    /// True if the log already has the error that the kernel cannot be told.
    said: bool,
}

/// Filter of one module.
struct Filter {
    /// Bit of the filter in the kernel.
    bit: u64,
    watch: Watch,
    /// Queue that tells the module about its processes.
    arrivals: Option<Arrivals>,
}

impl Filters {
    /// Declaration. It has no section: options of other modules enable it.
    pub const SPEC: Spec = Spec {
        name: "filter",
        summary: "process matching for the option `process` of modules",
        tables: &[],
        hooks: &[&FORK, &EXEC, &END, &ADMIT, &NAME],
        maps: MAPS,
        make: |setup| Err(setup.section.reject("module", "expected a module with metrics")),
        ..Spec::NEW
    };

    /// Makes the filters of these modules' plans, each with the names of section and module; `None` if none has one.
    pub fn of<'a>(
        plans: impl Iterator<Item = (&'a str, &'a str, &'a Plan)>,
        refresh: Option<Duration>,
    ) -> Option<Filters> {
        let filter = |(section, module, plan): (&str, &str, &Plan)| {
            let mut watch = Watch::new(section, plan.filter.clone()?, refresh);
            if TRACERS.contains(&module) {
                watch.verb = "trace";
            }
            Some(Filter { bit: plan.filter_bit(), watch, arrivals: plan.arrivals.clone() })
        };
        let filters: Vec<_> = plans.filter_map(filter).collect();
        if let (Some(every), false) = (refresh, filters.is_empty()) {
            log::info!("Starting dynamic process filtering, interval {} s.", every.as_secs());
        }
        let lines = filters.iter().flat_map(|filter: &Filter| {
            filter.watch.filter().expressions().map(move |expression| Some((expression.regular()?, filter.bit)))
        });
        // None: one is beyond automata.
        let lines: Option<Vec<(&str, u64)>> = lines.collect();
        let automaton = lines.as_ref().filter(|lines| !lines.is_empty()).and_then(|lines| Automaton::new(lines));
        if automaton.is_none() && lines.is_none_or(|lines| !lines.is_empty()) {
            log::info!(
                "filter: the expressions for command lines are too complex to match in the kernel: new processes count from a \
                 few milliseconds after their exec"
            );
        }
        (!filters.is_empty()).then(|| Filters { filters, automaton, claims: ProcessSlots::claims(), said: false })
    }

    /// Tells the kernel the command names of all filters, before the first scan.
    fn tell_names(&mut self, kernel: &dyn Kernel) {
        for (name, bits) in self.names() {
            let word = |half: usize| u64::from_ne_bytes(std::array::from_fn(|i| name[half * 8 + i]));
            if !matches!(kernel.call(&NAME, &[word(0), word(1), bits]), Ok(1)) {
                log::error!(
                    "filter: `{}` is matched at rescans only (process_refresh)",
                    String::from_utf8_lossy(&name)
                );
            }
        }
    }

    /// Tells the kernel the automaton, which the programs use from then on.
    fn tell_lines(&self, kernel: &dyn Kernel) {
        let (Some(automaton), Some(row)) = (&self.automaton, kernel.rows(AUTOMATA).get(0)) else { return };
        let mut classes = automaton.classes;
        classes[0] = classes[usize::from(b' ')];
        row.set_bytes(filter_automaton::class, &classes);
        let next = automaton.states.iter().flat_map(|state| &state.next);
        row.set_bytes(filter_automaton::next, &next.flat_map(|state| state.to_ne_bytes()).collect::<Vec<u8>>());
        for (slot, state) in automaton.states.iter().enumerate() {
            row.set(filter_automaton::filters.nth(slot), state.filters);
        }
        row.set(filter_automaton::ready, 1);
    }

    /// Returns each command name in the kernel's form, with the filters it is in.
    fn names(&self) -> Vec<([u8; 16], u64)> {
        let mut names: BTreeMap<[u8; 16], u64> = BTreeMap::new();
        for Filter { bit, watch, .. } in &self.filters {
            for name in watch.filter().names() {
                let mut comm = [0; 16];
                comm[..name.len()].copy_from_slice(name);
                *names.entry(comm).or_default() |= bit;
            }
        }
        names.into_iter().collect()
    }

    /// Returns the filters that a process is in: by name, by command line, by id.
    fn judge(&self, process: &Process) -> [u64; 3] {
        let mut by = [0; 3];
        for Filter { bit, watch, .. } in &self.filters {
            let filter = watch.filter();
            // One whose command line is not to be had stays what it was.
            let has_line = filter.has_line(&process.line) || process.is_late && watch.has(process.pid);
            let reasons = [filter.has_name(&process.comm), has_line, filter.has_id(process.pid)];
            for (by, _) in by.iter_mut().zip(reasons).filter(|(_, is)| *is) {
                *by |= bit;
            }
        }
        by
    }

    /// Tells the kernel a process's filters, and again if the process has changed meanwhile. Returns the filters, and
    /// whether the kernel did not know them.
    fn admit(&mut self, kernel: &dyn Kernel, pid: u32, mut process: Option<Process>) -> (u64, bool) {
        let mut news = false;
        loop {
            let [name, line, id] = process.as_ref().map_or([0; 3], |process| self.judge(process));
            let filters = name | line | id;
            match kernel.call(&ADMIT, &[pid.into(), name, line, id]) {
                Ok(0) => return (filters, news),
                Ok(_) => news = true,
                Err(error) => {
                    if !std::mem::replace(&mut self.said, true) {
                        log::error!(
                            "filter: process {pid} and possibly others cannot be matched and do not count: {error}"
                        );
                    }
                    return (filters, news);
                }
            }
            let now = Process::read(pid);
            if now == process {
                return (filters, news);
            }
            process = now;
        }
    }

    /// Scans all processes.
    fn look(&mut self, kernel: &dyn Kernel) {
        let mut found = Vec::new();
        for _ in 0..LOOKS {
            let all = match Process::all() {
                Ok(all) => all,
                Err(error) => return log::error!("filter: /proc: {error}"),
            };
            let mut any_news = false;
            found = vec![BTreeSet::new(); self.filters.len()];
            for process in all {
                let pid = process.pid;
                let (filters, news) = self.admit(kernel, pid, Some(process));
                any_news |= news;
                let those = self.filters.iter().zip(&mut found).filter(|(filter, _)| filter.bit & filters != 0);
                those.for_each(|(_, found)| found.extend([pid]));
            }
            if !any_news {
                break;
            }
        }
        for (Filter { watch, arrivals, .. }, found) in self.filters.iter_mut().zip(found) {
            watch.found(found, &mut |pid, is| arrivals.iter().for_each(|arrivals| arrivals.tell(pid, is)));
        }
    }
}

impl Module for Filters {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut rodata) {
        let those = |is: fn(&Filter) -> bool| {
            self.filters.iter().filter(|&filter| is(filter)).fold(0, |bits, filter| bits | filter.bit)
        };
        plan.require_host_pid_namespace(host);
        constants.filter_lines = those(|filter| filter.watch.filter().expressions().next().is_some());
        constants.filter_followed = those(|filter| filter.arrivals.is_some());
        [&FORK, &EXEC, &END].into_iter().for_each(|hook| plan.attach(hook));
        [&ADMIT, &NAME].into_iter().for_each(|hook| plan.load_on_demand(hook));
        plan.entries(MEMBERS.name, MOST);
        plan.entries(NAMES.name, self.names().len().max(1));
        plan.entries(AUTOMATA.def.name, 1);
        plan.entries(SLOTS.def.name, ProcessSlots::COUNT);
        plan.entries(STATS.def.name, host.cpus);
        plan.entries(ASKS.name, RING);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self).tick(Self::tick).woken(Self::woken).waits_for(Self::waits_for).losses(Self::losses).started()
    }
}

impl Filters {
    /// Runs after the ticks of the modules.
    fn tick(&mut self, kernel: &dyn Kernel) {
        if self.filters.iter().all(|filter| filter.watch.is_first()) {
            self.tell_names(kernel);
            self.tell_lines(kernel);
        }
        let due = self.filters.iter_mut().map(|filter| filter.watch.is_due()).fold(false, |due, one| due | one);
        if due {
            self.look(kernel);
        }
        ProcessSlots::tick(kernel, &mut self.claims);
    }

    fn woken(&mut self, kernel: &dyn Kernel) {
        let mut pids = Vec::new();
        kernel.drain(&ASKS, &mut |bytes| pids.extend(record::<filter_ask>(bytes).map(|ask| ask.process)));
        for pid in pids {
            let (filters, _) = self.admit(kernel, pid, Process::read(pid));
            for Filter { bit, arrivals, .. } in &self.filters {
                arrivals.iter().for_each(|arrivals| arrivals.tell(pid, filters & bit != 0));
            }
        }
    }

    fn waits_for(&self, section: &str) -> Option<String> {
        let Filter { watch, .. } = self.filters.iter().find(|filter| filter.watch.name() == section)?;
        let is_empty = !watch.is_first() && watch.is_empty();
        is_empty.then(|| format!("no running process is what `process = {}` means", watch.filter().show()))
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let stats = kernel.rows(STATS);
        each("table-full: processes that are not counted since too many are", stats.sum(filter_stat::full));
        each(
            "late: processes whose command line was looked at late since too many began at once",
            stats.sum(filter_stat::unasked),
        );
    }
}

/// Numbers of rows reserved for a process, for modules with details: assigned by the kernel, the same for all modules,
/// and freed once the process is gone and every module has emptied its rows.
pub struct ProcessSlots;

impl ProcessSlots {
    /// Number of slots.
    pub const COUNT: usize = 128;
    const ENDED: u64 = 1;
    const EMPTYING: u64 = 2;

    /// Iterates over the slots of living processes, each with its process id.
    pub fn living(kernel: &dyn Kernel) -> impl Iterator<Item = (usize, u32)> + '_ {
        let slots = kernel.rows(SLOTS).iter().enumerate();
        let process = |(slot, row): (usize, crate::kit::Row<'_, filter_slot>)| {
            let process = row.get(filter_slot::process) as u32;
            let living = process != 0 && row.get(filter_slot::ended) == 0;
            (living && crate::host::exists(process)).then_some((slot, process))
        };
        slots.filter_map(process)
    }

    /// Zeroes the rows of processes that are gone; to be called at each tick. `per_slot` is the number of adjacent rows
    /// of a slot.
    pub fn empty<T>(kernel: &dyn Kernel, rows: Rows<T>, per_slot: usize) {
        for (slot, row) in kernel.rows(SLOTS).iter().enumerate() {
            if row.get(filter_slot::ended) == Self::EMPTYING {
                for row in kernel.rows(rows).iter().skip(slot * per_slot).take(per_slot) {
                    row.clear();
                }
            }
        }
    }

    fn claims() -> OwnedTable<filter_slot> {
        OwnedTable::new(filter_slot::process, filter_slot::claims)
    }

    fn tick(kernel: &dyn Kernel, claims: &mut OwnedTable<filter_slot>) {
        for row in kernel.rows(SLOTS).iter() {
            let word = |field| row.get(field);
            let process @ 1.. = word(filter_slot::process) as u32 else { continue };
            match word(filter_slot::ended) {
                Self::EMPTYING => claims.release(row),
                Self::ENDED => row.set(filter_slot::ended, Self::EMPTYING),
                _ if !crate::host::exists(process) => row.set(filter_slot::ended, Self::ENDED),
                _ => {}
            }
        }
        claims.release_contested(kernel.rows(SLOTS).iter().enumerate());
    }

    /// Makes a kernel in which these processes have the first slots.
    pub fn fake(processes: &[u32]) -> Fake {
        let fake = Fake::new().with(SLOTS, Self::COUNT);
        for (slot, &process) in processes.iter().enumerate() {
            fake.set(SLOTS, slot, filter_slot::claims, 1);
            fake.set(SLOTS, slot, filter_slot::process, process.into());
        }
        fake
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::bpf::types::fs_row;
    use crate::kit::ProcessFilter;

    /// Makes the filters of modules 0, 1, ...
    fn filters(options: &[&str]) -> Filters {
        let plan = |(number, option): (usize, &&str)| {
            let text = format!("[a]\nprocess = {option}\n");
            let config = crate::config::Config::parse("test.conf", text.as_bytes()).unwrap();
            let filter = ProcessFilter::read(&config.section("a").unwrap().get("process").unwrap().unwrap()).unwrap();
            let mut plan = Plan { number, ..Plan::default() };
            assert_eq!(plan.only(&filter), 1 << number);
            plan
        };
        let plans: Vec<Plan> = options.iter().enumerate().map(plan).collect();
        Filters::of(plans.iter().map(|plan| ("test", "syscount", plan)), None).unwrap()
    }

    fn process(pid: u32, comm: &str, line: &str) -> Process {
        Process { pid, comm: comm.into(), line: line.into(), is_late: false }
    }

    #[test]
    fn without_a_filter_there_is_nothing_to_load() {
        let mut plan = Plan::default();
        assert_eq!(plan.only(&ProcessFilter::default()), 0);
        assert!(Filters::of([("test", "syscount", &plan)].into_iter(), None).is_none());
    }

    #[test]
    fn a_process_is_in_filters_of_its_name_pattern_or_id() {
        let filters = filters(&["java", "77,java", ".*-jar x.*,node_exporter", "sh"]);
        assert_eq!(filters.judge(&process(77, "java", "java -jar x")), [0b0011, 0b0100, 0b0010]);
        assert_eq!(filters.judge(&process(78, "javac", "javac")), [0, 0, 0]);
        assert_eq!(filters.judge(&process(78, "node_exporter", "/bin/node_exporter --web")), [0b0100, 0, 0]);
    }

    #[test]
    fn a_filter_without_a_process_says_so_once_it_has_looked() {
        let mut filters = filters(&["java", "sh"]);
        let [java, _] = &mut filters.filters[..] else { panic!("two") };
        java.watch = Watch::new("java", java.watch.filter().clone(), None);
        assert_eq!(filters.waits_for("java"), None);
        assert!(filters.filters[0].watch.is_due());
        assert_eq!(filters.waits_for("java").as_deref(), Some("no running process is what `process = java` means"));
        filters.filters[0].watch.found([77].into(), &mut |_, _| {});
        assert_eq!((filters.waits_for("java"), filters.waits_for("other")), (None, None));
    }

    #[test]
    fn a_process_that_cannot_be_read_stays_in_its_filters() {
        let mut filters = filters(&[".*-jar.*", ".*(java).*", "x"]);
        let late = Process { is_late: true, ..process(77, "java", "(java)") };
        assert_eq!(filters.judge(&late), [0, 0b010, 0]);
        filters.filters[0].watch.found([77].into(), &mut |_, _| {});
        assert_eq!(filters.judge(&late), [0, 0b011, 0]);
        assert_eq!(filters.judge(&process(77, "java", "java -x")), [0, 0b010, 0], "it is known to be another");
    }

    #[test]
    fn command_lines_are_looked_at_where_a_name_does_not_say_all() {
        for (options, lines) in [
            (&["java", "77"][..], 0),
            (&["java", "node_exporter,my-daemon,python3.11"], 0),
            (&["java", "a_name_that_the_kernel_cuts"], 2),
            (&["/usr/sbin/sshd", "java"], 1),
            (&["x", "y, .*java.*", "a|b"], 6),
        ] {
            let mut constants = crate::bpf::constants();
            let host = Host { cpus: 2, ..Host::SMALL };
            filters(options).plan(&host, &mut Plan::default(), &mut constants);
            assert_eq!(constants.filter_lines, lines, "{options:?}");
        }
    }

    #[test]
    fn the_kernel_gets_each_name_once_and_none_that_it_would_cut() {
        let filters = filters(&["java", "java,a_name_of_15_by", "a_name_of_16_byt"]);
        assert_eq!(filters.names(), [(*b"a_name_of_15_by\0", 2), (*b"java\0\0\0\0\0\0\0\0\0\0\0\0", 3)]);
    }

    #[test]
    fn the_kernel_gets_the_automaton_and_then_that_it_is_ready() {
        let mut filters = filters(&["java", ".*-jar x.*"]);
        let automaton = filters.automaton.clone().unwrap();
        let fake = Fake::new().with(AUTOMATA, 1);
        filters.tick(&fake);
        let kernel: &dyn Kernel = &fake;
        let row = kernel.rows(AUTOMATA).get(0).unwrap();
        let classes: [u8; 256] = row.bytes(filter_automaton::class);
        assert_eq!((classes[0], &classes[1..]), (automaton.classes[usize::from(b' ')], &automaton.classes[1..]));
        assert_eq!(row.get(filter_automaton::ready), 1);
        let nexts: Vec<u8> = row.words(filter_automaton::next).flat_map(u64::to_ne_bytes).collect();
        for (slot, state) in automaton.states.iter().enumerate() {
            let next = nexts[2 * Automaton::CLASSES * slot..].chunks(2).take(Automaton::CLASSES);
            assert!(next.map(|next| u16::from_ne_bytes([next[0], next[1]])).eq(state.next));
            assert_eq!(row.get(filter_automaton::filters.nth(slot)), state.filters);
        }
        assert!(automaton.states.iter().any(|state| state.filters == 2), "{automaton:?}");
    }

    #[test]
    fn an_expression_that_no_automaton_can_tell_is_judged_here() {
        let filters = filters(&["java", "^(?!.*debug).*-jar.*,(\\w+) \\1"]);
        assert!(filters.automaton.is_none());
        assert_eq!(filters.judge(&process(7, "x", "x -jar y")), [0, 2, 0]);
        assert_eq!(filters.judge(&process(7, "x", "x --debug -jar y")), [0, 0, 0]);
        assert_eq!(filters.judge(&process(7, "java", "sleep sleep")), [1, 2, 0]);
    }

    #[test]
    fn names_come_first_and_a_scan_tells_of_every_process() {
        let me = u64::from(std::process::id());
        let mut filters = filters(&[&format!("bash,{me}")]);
        let fake = Fake::new();
        filters.tick(&fake);
        let bash = vec![u64::from_ne_bytes(*b"bash\0\0\0\0"), 0, 1];
        assert!(fake.calls(&NAME).contains(&bash));
        let told = fake.calls(&ADMIT);
        assert!(told.contains(&vec![me, 0, 0, 1]), "{told:?}");
        filters.tick(&fake);
        assert!(fake.calls(&NAME).is_empty() && fake.calls(&ADMIT).is_empty(), "only one look was asked for");
    }

    #[test]
    fn an_exec_has_its_command_line_looked_at() {
        let me = std::process::id();
        let mut filters = filters(&["sh", ".*corebcc.*"]);
        let fake = Fake::new();
        for process in [me, 1 << 22] {
            fake.record(&record_bytes(&filter_ask { process, pad: 0 }));
        }
        filters.woken(&fake);
        assert_eq!(fake.calls(&ADMIT), [[u64::from(me), 0, 2, 0], [1 << 22, 0, 0, 0]], "the second is gone");
    }

    #[test]
    fn all_modules_empty_a_row_before_another_process_has_it() {
        const ROWS: Rows<fs_row> = Rows::new("test_rows");
        let me = std::process::id();
        let fake = ProcessSlots::fake(&[me, me]).with(ROWS, 2 * ProcessSlots::COUNT);
        let mut claims = ProcessSlots::claims();
        let mut tick = || {
            ProcessSlots::empty(&fake, ROWS, 2);
            ProcessSlots::tick(&fake, &mut claims);
        };
        let kernel: &dyn Kernel = &fake;
        let count = |row| kernel.rows(ROWS).get(row).unwrap().get(fs_row::displaced);
        (0..6).for_each(|row| fake.set(ROWS, row, fs_row::displaced, 5));
        let slots = || ProcessSlots::living(kernel).collect::<Vec<_>>();
        tick();
        assert_eq!(slots(), [(0, me), (1, me)]);
        fake.set(SLOTS, 1, filter_slot::ended, 1);
        assert_eq!(slots(), [(0, me)], "the kernel saw its end");
        let claims = || kernel.rows(SLOTS).get(1).unwrap().get(filter_slot::claims);
        tick();
        assert_eq!((claims(), count(2)), (1, 5), "modules that were at it before this tick have to see it");
        tick();
        assert_eq!((claims(), [1, 2, 3, 4].map(count)), (0, [5, 0, 0, 5]));
    }

    #[test]
    fn a_place_without_a_living_process_is_freed() {
        let gone = 1 << 22;
        let fake = ProcessSlots::fake(&[gone, 0]);
        fake.set(SLOTS, 1, filter_slot::claims, 2);
        let mut claims = ProcessSlots::claims();
        for _ in 0..3 {
            ProcessSlots::tick(&fake, &mut claims);
        }
        let kernel: &dyn Kernel = &fake;
        assert_eq!(kernel.rows(SLOTS).sum(filter_slot::claims), 0, "one gone, one that two claimed");
    }
}
