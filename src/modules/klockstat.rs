//! Kernel mutexes by caller: the times for which they are waited for and held. Kernel side: bpf/klockstat.bpf.c, with a row for each
//! chain of callers; here chains get names, and those with the same name are added up.

use crate::bpf::types::{self, kl_code, kl_row, kl_stat, kl_thread, span_times};
use crate::host::{forget_unused_symbols, kernel_functions, symbols, CodeOf, Symbol};
use crate::kit::*;
use crate::{maps, metrics, options};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::OnceLock;

metrics! {
    SPIN_AVERAGE: u64 = 0 "kernel.lock.mutex.spin.avg" INSTANT NSEC "average time from entering a lock function to owning the mutex";
    SPIN_COUNT: u64 = 1 "kernel.lock.mutex.spin.count" COUNTER COUNT "acquisitions of mutexes";
    SPIN_MAX: u64 = 2 "kernel.lock.mutex.spin.max" INSTANT NSEC "longest time from entering a lock function to owning the mutex";
    SPIN_TOTAL: u64 = 3 "kernel.lock.mutex.spin.total" COUNTER NSEC "time from entering lock functions to owning the mutex";
    HOLD_AVERAGE: u64 = 4 "kernel.lock.mutex.hold.avg" INSTANT NSEC "average time a mutex was held";
    HOLD_COUNT: u64 = 5 "kernel.lock.mutex.hold.count" COUNTER COUNT "mutexes held and given back";
    HOLD_MAX: u64 = 6 "kernel.lock.mutex.hold.max" INSTANT NSEC "longest time a mutex was held";
    HOLD_TOTAL: u64 = 7 "kernel.lock.mutex.hold.total" COUNTER NSEC "time mutexes were held";
}

maps! {
    rows ROWS: kl_row = "kl_rows", taken claims, lost kl_stat.homeless in "kl_stats";
    rows STATS: kl_stat = "kl_stats";
    private THREADS: kl_thread = "kl_threads";
}

options! {
    process;
    /// Only callers whose names begin with this text.
    caller_filter: String = String::new();
    /// Callers in a name, the innermost first. More than one costs another 2.1 us per lock.
    stack_depth: Depth = Depth(1);
    /// Different chains of callers to keep, rounded up to a power of two.
    stack_storage_size: Chains = Chains(16384);
    /// Append the offset in the function to names: +0x...
    use_caller_offset: bool = false;
}

/// Number of callers in a name.
#[derive(Clone, Copy, Debug)]
struct Depth(u32);

impl OptionType for Depth {
    const EXPECTED: &'static str = "a number from 1 to 16";
    fn read(value: &OptionValue<'_>) -> Result<Self, SetupError> {
        value.clamped(1..=MOST_FRAMES).map(Depth)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Number of chains of callers; each has a row in the kernel's memory.
#[derive(Clone, Copy, Debug)]
struct Chains(u32);

impl OptionType for Chains {
    const EXPECTED: &'static str = "a number from 64 to 262144";
    fn read(value: &OptionValue<'_>) -> Result<Self, SetupError> {
        value.clamped(64..=1 << 18).map(Chains)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

const NEEDS: &str = "a kernel with fexit (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS) or kprobes (CONFIG_KPROBE_EVENTS)";

/// Both ends of a lock function. The return comes first, as the unlock does in the plan: a call whose entry is seen must be seen to
/// return. Besides, a probe of the return replaces the caller's address by one of its own, and before 5.15 the stack shows that
/// address to every probe of the entry that was there before it.
macro_rules! ends {
    (fexit, $name:literal) => {
        &[concat!("fexit__", $name), concat!("fentry__", $name)]
    };
    (kretprobe, $name:literal) => {
        &[concat!("kretprobe__", $name), concat!("kprobe__", $name)]
    };
}

/// A lock function, and its names with lock debugging if these differ.
macro_rules! lock_function {
    ($name:literal $(, $debug:literal)*) => {
        Hook {
            name: $name,
            tiers: &[
                Tier { kind: "fexit", programs: ends!(fexit, $name) },
                Tier { kind: "kretprobe", programs: ends!(kretprobe, $name) },
                $(Tier { kind: "fexit of lock debugging", programs: ends!(fexit, $debug) },
                Tier { kind: "kretprobe of lock debugging", programs: ends!(kretprobe, $debug) },)*
            ],
            needs: NEEDS,
        }
    };
}

static LOCK: Hook = lock_function!("mutex_lock", "mutex_lock_nested");
static INTERRUPTIBLE: Hook = lock_function!("mutex_lock_interruptible", "mutex_lock_interruptible_nested");
static KILLABLE: Hook = lock_function!("mutex_lock_killable", "mutex_lock_killable_nested", "_mutex_lock_killable");
static IO: Hook = lock_function!("mutex_lock_io", "mutex_lock_io_nested");
static TRYLOCK: Hook = lock_function!("mutex_trylock", "_mutex_trylock_nest_lock");
static UNLOCK: Hook = Hook {
    name: "mutex_unlock",
    tiers: &[
        Tier { kind: "fentry", programs: &["fentry__mutex_unlock"] },
        Tier { kind: "kprobe", programs: &["kprobe__mutex_unlock"] },
    ],
    needs: NEEDS,
};

static TABLE: TableSpec =
    TableSpec { cluster: 31, shape: Shape::Named { max: NAMES }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "klockstat",
    summary: "kernel mutexes by caller",
    overhead: Overhead::high("440 ns per lock and unlock of a mutex"),
    needs: "fentry (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS) or kprobes (CONFIG_KPROBE_EVENTS)",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&LOCK, &INTERRUPTIBLE, &KILLABLE, &IO, &TRYLOCK, &UNLOCK],
    maps: MAPS,
    counts: &[ROWS.def, STATS.def],
    needs_to_run: &[Need::KernelSymbols],
    make: |setup| Ok(Box::new(Klockstat::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

/// Largest number of names: for one set of chains, and those of an earlier run.
const NAMES: usize = 32 * 1024;
/// Largest number of callers in a chain (`KL_FRAMES`).
const MOST_FRAMES: u32 = ((kl_row::spin.offset() - kl_row::callers.offset()) / 8) as u32;

struct Klockstat {
    options: Options,
    /// Names of chains by the number of their row; `None` for a chain that the options exclude.
    names: HashMap<usize, Option<String>>,
    claims: OwnedTable<kl_row>,
}

impl Klockstat {
    fn new(options: Options) -> Klockstat {
        Klockstat { options, names: HashMap::new(), claims: OwnedTable::new(kl_row::key, kl_row::claims) }
    }
}

/// Counts and times of one name, for waiting or holding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    count: u64,
    ns: u64,
    max: u64,
}

impl Times {
    /// Adds the times of a row.
    fn add(&mut self, times: Row<'_, span_times>) {
        self.count += times.get(span_times::count);
        self.ns += times.get(span_times::ns);
        self.max = times.words(span_times::max).fold(self.max, u64::max);
    }

    fn average(self) -> u64 {
        self.ns.checked_div(self.count).unwrap_or(0)
    }
}

impl Options {
    /// Returns the name of a chain of callers; `None` if the options exclude it.
    fn name(&self, callers: &[u64]) -> Option<String> {
        if callers.is_empty() {
            return self.caller_filter.is_empty().then(|| "<Missed Kernel Stack>".into());
        }
        let frame = |symbol: Option<Symbol>| match symbol {
            Some(Symbol { name, offset }) if self.use_caller_offset => format!("{name}+{offset:#x}"),
            Some(Symbol { name, .. }) => name,
            None => "[unknown]".into(),
        };
        let name = symbols(callers, CodeOf::Kernel).into_iter().map(frame).collect::<Vec<_>>().join("+");
        name.starts_with(&self.caller_filter).then_some(name)
    }
}

/// Tells the programs the addresses of the lock functions. /proc/kallsyms is read once, since that takes 40 ms or more and these
/// addresses do not change.
fn tell_code(constants: &mut types::rodata) {
    static CODE: OnceLock<[Range<u64>; 5]> = OnceLock::new();
    let ranges = CODE.get_or_init(|| code_of([&LOCK, &INTERRUPTIBLE, &KILLABLE, &IO, &TRYLOCK]));
    let types::rodata { kl_lock, kl_interruptible, kl_killable, kl_io, kl_trylock, .. } = constants;
    for (code, range) in [kl_lock, kl_interruptible, kl_killable, kl_io, kl_trylock].into_iter().zip(ranges) {
        *code = kl_code { start: range.start, size: range.end - range.start };
    }
}

/// Returns the address ranges of the functions of these hooks; an empty one for a function that the kernel does not list.
fn code_of(hooks: [&'static Hook; 5]) -> [Range<u64>; 5] {
    // With lock debugging the functions have other names, and none has both.
    let name = |program: &&'static str| Some(program.split_once("__")?.1);
    let names = |hook: &'static Hook| hook.tiers.iter().flat_map(|tier| tier.programs).filter_map(name);
    let usual: Vec<&str> = hooks.iter().filter_map(|hook| names(hook).next()).collect();
    let mut known = kernel_functions(&usual);
    if known.len() < usual.len() {
        known = kernel_functions(&hooks.iter().flat_map(|hook| names(hook)).collect::<Vec<_>>());
    }
    hooks.map(|hook| names(hook).find_map(|name| known.get(name)).cloned().unwrap_or_default())
}

impl Module for Klockstat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let rows = self.options.stack_storage_size.0.next_power_of_two() as usize;
        let threads = table_size(host.threads * 4, 4096, 1 << 15);
        constants.kl_depth = self.options.stack_depth.0;
        constants.kl_row_mask = rows as u32 - 1;
        constants.kl_thread_mask = threads as u32 - 1;
        constants.kl_filter = plan.only(&self.options.process);
        plan.late = Some(tell_code);
        plan.attach(&UNLOCK);
        plan.attach(&LOCK);
        for hook in [&INTERRUPTIBLE, &KILLABLE, &IO, &TRYLOCK] {
            plan.attach_optional(hook);
        }
        plan.entries(ROWS.def.name, rows);
        plan.entries(STATS.def.name, host.cpus);
        plan.entries(THREADS.name, threads);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self).table(&TABLE, Self::refresh).tick(Self::tick).losses(Self::losses).started()
    }
}

impl Klockstat {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        let Klockstat { options, names, .. } = self;
        let mut sums: BTreeMap<&str, [Times; 2]> = BTreeMap::new();
        let rows = || kernel.rows(ROWS).iter().enumerate().filter(|(_, row)| row.get(kl_row::key) != 0);
        for (place, row) in rows() {
            names.entry(place).or_insert_with(|| {
                let callers = row.words(kl_row::callers).take(MOST_FRAMES as usize);
                options.name(&callers.take_while(|&caller| caller != 0).collect::<Vec<_>>())
            });
        }
        for (place, row) in rows() {
            let Some(Some(name)) = names.get(&place) else { continue };
            let [spin, hold] = sums.entry(name).or_default();
            spin.add(row.part(kl_row::spin));
            hold.add(row.part(kl_row::hold));
        }
        for (name, [spin, hold]) in sums.into_iter().filter(|(_, [spin, _])| spin.count > 0) {
            let row = table.named(name.as_bytes());
            let row = row.set(SPIN_AVERAGE, spin.average()).set(SPIN_COUNT, spin.count);
            let row = row.set(SPIN_MAX, spin.max).set(SPIN_TOTAL, spin.ns);
            let row = row.set(HOLD_AVERAGE, hold.average()).set(HOLD_COUNT, hold.count);
            row.set(HOLD_MAX, hold.max).set(HOLD_TOTAL, hold.ns);
        }
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        self.claims.release_contested(kernel.rows(ROWS).iter().enumerate());
        forget_unused_symbols();
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let stats = kernel.rows(STATS);
        each(
            "table-full: acquisitions by callers without a row in the table; stack_storage_size should be increased",
            stats.sum(kl_stat::homeless),
        );
        each(
            "hold-untimed: locks whose hold time is not known: a thread held more than 8, or too many threads run",
            stats.sum(kl_stat::dropped),
        );
        each("end-unseen: calls of lock functions whose return was not seen", stats.sum(kl_stat::unseen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn module(lines: &str) -> Result<Klockstat, String> {
        let config = Config::parse("t.conf", format!("[klockstat]\n{lines}\n").as_bytes()).unwrap();
        let options = Options::read(&config.section("klockstat").unwrap()).map_err(|error| error.to_string())?;
        Ok(Klockstat::new(options))
    }

    fn fake() -> Fake {
        Fake::new().with(ROWS, 8).with(STATS, 1)
    }

    /// Makes a row with these spin and hold times, each of one CPU, for a module that knows its name.
    fn row(fake: &Fake, module: &mut Klockstat, place: usize, name: &str, [spin, hold]: [Times; 2]) {
        fake.set(ROWS, place, kl_row::key, 1);
        for (at, times) in [(kl_row::spin, spin), (kl_row::hold, hold)] {
            let part = fake.row(ROWS, place).part(at);
            part.set(span_times::count, times.count);
            part.set(span_times::ns, times.ns);
            part.set(span_times::max.nth(place % 4), times.max);
        }
        module.names.insert(place, Some(name.into()));
    }

    fn values(module: &mut Klockstat, fake: &Fake) -> Vec<(String, Vec<u64>)> {
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        let numbers = |row| (0..METRICS.len()).map(|column| table.number(row, column).unwrap()).collect();
        (0..table.len()).map(|row| (table.name(row), numbers(row))).collect()
    }

    #[test]
    fn code_is_looked_for_when_the_module_is_about_to_load() {
        let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
        module("").unwrap().plan(&Host::SMALL, &mut plan, &mut constants);
        assert_eq!((constants.kl_lock.start, constants.kl_trylock.start), (0, 0), "its plan reads no symbols");
        let known = kernel_functions(&["mutex_lock", "mutex_trylock"]);
        let [Some(lock), Some(trylock)] = ["mutex_lock", "mutex_trylock"].map(|name| known.get(name)) else {
            println!(
                "skipped: code_is_looked_for_when_the_module_is_about_to_load: /proc/kallsyms with addresses and mutex_lock"
            );
            return;
        };
        plan.late.unwrap()(&mut constants);
        let told = [constants.kl_lock, constants.kl_trylock].map(|code| code.start..code.start + code.size);
        assert_eq!(told, [lock.clone(), trylock.clone()]);
    }

    #[test]
    fn callers_of_one_name_add_up_and_share_the_longest_time() {
        let (fake, mut module) = (fake(), module("").unwrap());
        let long = 5_000_000_000; // beyond 32 bits
        row(&fake, &mut module, 1, "f", [Times { count: 3, ns: 30, max: 20 }, Times { count: 2, ns: 10, max: 9 }]);
        row(
            &fake,
            &mut module,
            6,
            "f",
            [Times { count: 1, ns: long, max: long }, Times { count: 2, ns: long, max: long - 7 }],
        );
        row(&fake, &mut module, 7, "g", [Times { count: 1, ns: 5, max: 5 }, Times::default()]);
        for _ in 0..2 {
            assert_eq!(
                values(&mut module, &fake),
                [
                    ("f".into(), vec![(long + 30) / 4, 4, long, long + 30, (long + 10) / 4, 4, long - 7, long + 10]),
                    ("g".into(), vec![5, 1, 5, 5, 0, 0, 0, 0]),
                ]
            );
        }
    }

    #[test]
    fn the_first_row_and_a_chain_of_one_caller_are_as_good_as_any() {
        let Some(function) = kernel_functions(&["schedule"]).remove("schedule") else {
            println!(
                "skipped: the_first_row_and_a_chain_of_one_caller_are_as_good_as_any: /proc/kallsyms with addresses"
            );
            return;
        };
        let (fake, mut module) = (fake(), module("stack_depth = 3").unwrap());
        row(&fake, &mut module, 0, "", [Times { count: 2, ns: 9, max: 6 }, Times::default()]);
        fake.set(ROWS, 0, kl_row::callers.nth(0), function.start + 4);
        module.names.clear();
        assert_eq!(values(&mut module, &fake), [("schedule".into(), vec![4, 2, 6, 9, 0, 0, 0, 0])]);
    }

    #[test]
    fn who_only_waits_so_far_has_no_instance() {
        let (fake, mut module) = (fake(), module("").unwrap());
        row(&fake, &mut module, 1, "f", [Times::default(); 2]);
        assert!(values(&mut module, &fake).is_empty());
    }

    #[test]
    fn an_unknown_stack_has_a_name_and_matches_no_filter() {
        assert_eq!(module("").unwrap().options.name(&[]), Some("<Missed Kernel Stack>".into()));
        assert_eq!(module("caller_filter = tty_").unwrap().options.name(&[]), None);
    }

    #[test]
    fn names_are_the_kernels_with_offsets_where_asked_for() {
        let Some(function) = kernel_functions(&["schedule"]).remove("schedule") else {
            println!("skipped: names_are_the_kernels_with_offsets_where_asked_for: /proc/kallsyms with addresses");
            return;
        };
        let chain = [function.start + 4, function.start + 0x1a];
        let name = |lines: &str| module(lines).unwrap().options.name(&chain);
        assert_eq!(name(""), Some("schedule+schedule".into()));
        assert_eq!(name("use_caller_offset = True"), Some("schedule+0x4+schedule+0x1a".into()));
        assert_eq!(name("caller_filter = sched"), Some("schedule+schedule".into()));
        assert_eq!(name("caller_filter = chedule"), None);
    }

    #[test]
    fn depths_and_sizes_are_the_nearest_possible() {
        let host = Host { cpus: 2, ..Host::SMALL };
        let planned = |lines: &str| {
            let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
            module(lines).unwrap().plan(&host, &mut plan, &mut constants);
            let rows = plan.entries.iter().find(|(map, _)| *map == ROWS.def.name).unwrap().1;
            assert_eq!(constants.kl_row_mask, rows - 1);
            (constants.kl_depth, rows)
        };
        assert_eq!(planned(""), (1, 16384));
        assert_eq!(planned("stack_depth = 200\nstack_storage_size = 1000"), (16, 1024));
        assert_eq!(planned("stack_depth = 0\nstack_storage_size = 1000000000"), (1, 1 << 18));
        assert_eq!(planned("stack_storage_size = 0").1, 64);
        assert!(module("stack_depth = deep").err().unwrap().contains("[klockstat] stack_depth: expected"));
    }

    #[test]
    fn a_row_both_claimants_left_is_freed_at_the_second_look() {
        let (fake, mut module) = (fake(), module("").unwrap());
        fake.set(ROWS, 2, kl_row::claims, 2);
        let kernel: &dyn Kernel = &fake;
        let mut claims = || {
            module.tick(kernel);
            kernel.rows(ROWS).sum(kl_row::claims)
        };
        assert_eq!([claims(), claims()], [2, 0]);
    }

    #[test]
    fn what_is_lost_is_told_by_reason() {
        let fake = fake();
        let fields = [kl_stat::homeless, kl_stat::dropped, kl_stat::unseen];
        fields.iter().zip(1..).for_each(|(&field, count)| fake.set(STATS, 0, field, count));
        let mut lost = Vec::new();
        module("").unwrap().losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [1, 2, 3]);
    }
}
