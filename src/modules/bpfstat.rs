//! BPF programs, maps and links of the machine, whoever loaded them. Kernel side: bpf/bpfstat.bpf.c.

use crate::bpf::types::{self, bpfstat_cpu, bpfstat_holder, bpfstat_link, bpfstat_map, bpfstat_prog, bpfstat_walk};
use crate::bpf::Field;
use crate::host::btf_encoding::{enumerators, KERNEL_TYPES};
use crate::host::{boot_time, online_cpus, page_size, until_nul};
use crate::kit::*;
use crate::{iterator, maps, metrics};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

mod programs {
    use super::*;

    metrics! {
        NAME: str = 0 "bpf.prog.name" DISCRETE NONE "name of the BPF program";
        TYPE: str = 1 "bpf.prog.type" DISCRETE NONE "kind of BPF program, as bpftool names it";
        TAG: str = 2 "bpf.prog.tag" DISCRETE NONE "hash of the program's instructions";
        OWNER: str = 3 "bpf.prog.owner" DISCRETE NONE "who holds the BPF program";
        ID: u32 = 4 "bpf.prog.id" DISCRETE NONE "number of the BPF program";
        OWN: u32 = 5 "bpf.prog.own" DISCRETE NONE "1 for programs of this agent, else 0";
        RUNS: u64 = 6 "bpf.prog.runs.count" COUNTER COUNT "runs of the program while the kernel counted them";
        RUN_TIME: u64 = 7 "bpf.prog.run.time" COUNTER NSEC "time of the runs that the kernel counted";
        MISSES: u64 = 8 "bpf.prog.misses.count" COUNTER COUNT "runs that the kernel left out because the program was running on that CPU";
        MEMORY: u64 = 9 "bpf.prog.memory" INSTANT BYTE "kernel memory of the program";
        LOADED: u64 = 10 "bpf.prog.loaded" DISCRETE MSEC "when the program was loaded, since 1970";
    }

    pub static TABLE: TableSpec = TableSpec::numbered("each BPF program", 478, METRICS);

    pub fn put(module: &Bpfstat, of: Row<'_, bpfstat_prog>, table: &mut Table) {
        let id = of.get(bpfstat_prog::id) as u32;
        let name: [u8; 64] = of.bytes(bpfstat_prog::name);
        let name = until_nul(&name);
        let tag = of.get(bpfstat_prog::tag).to_ne_bytes().map(|byte| format!("{byte:02x}")).concat();
        let row = table
            .numbered(id, &instance(id, name))
            .text(NAME, name)
            .text(TYPE, word(&module.words.programs, of.get(bpfstat_prog::kind)).as_bytes())
            .text(TAG, tag.as_bytes())
            .text(OWNER, module.owners.name(ObjectKind::Program, id).as_bytes())
            .set(ID, id)
            .set(OWN, u32::from(module.owners.is_own(ObjectKind::Program, id)))
            .set(RUNS, of.get(bpfstat_prog::runs))
            .set(RUN_TIME, of.get(bpfstat_prog::ns))
            .set(MEMORY, of.get(bpfstat_prog::pages) * module.page)
            .set(LOADED, module.boot_time + of.get(bpfstat_prog::loaded) / 1_000_000);
        let misses = of.get(bpfstat_prog::misses);
        if misses != UNKNOWN {
            row.set(MISSES, misses);
        }
    }
}

mod every_map {
    use super::*;

    metrics! {
        NAME: str = 0 "bpf.map.name" DISCRETE NONE "name of the BPF map";
        TYPE: str = 1 "bpf.map.type" DISCRETE NONE "kind of BPF map, as bpftool names it";
        CAPACITY: u64 = 2 "bpf.map.entries.capacity" DISCRETE COUNT "highest number of entries; of a ring buffer, its size in bytes";
        USED: u64 = 3 "bpf.map.entries.used" INSTANT COUNT "entries of a hash map";
        MEMORY: u64 = 4 "bpf.map.memory" INSTANT BYTE "kernel memory of the map";
        OWNER: str = 5 "bpf.map.owner" DISCRETE NONE "who holds the BPF map";
    }

    pub static TABLE: TableSpec = TableSpec::numbered("each BPF map", 479, METRICS);

    pub fn put(module: &Bpfstat, of: Row<'_, bpfstat_map>, table: &mut Table) {
        let id = of.get(bpfstat_map::id) as u32;
        let name: [u8; 16] = of.bytes(bpfstat_map::name);
        let name = until_nul(&name);
        let row = table
            .numbered(id, &instance(id, name))
            .text(NAME, name)
            .text(TYPE, word(&module.words.maps, of.get(bpfstat_map::kind)).as_bytes())
            .text(OWNER, module.owners.name(ObjectKind::Map, id).as_bytes())
            .set(CAPACITY, of.get(bpfstat_map::capacity))
            .set(MEMORY, of.get(bpfstat_map::bytes));
        let used = of.get(bpfstat_map::used);
        if used != UNKNOWN {
            // CPUs are read one after the other, so that the sum of their parts may be below 0 for a moment.
            row.set(USED, (used as i64).max(0) as u64);
        }
    }
}

mod links {
    use super::*;

    metrics! {
        TYPE: str = 0 "bpf.link.type" DISCRETE NONE "kind of BPF link, as bpftool names it";
        TARGET: str = 1 "bpf.link.target" DISCRETE NONE "what the link attaches its program to";
        PROG: u32 = 2 "bpf.link.prog" DISCRETE NONE "number of the link's program";
        OWNER: str = 3 "bpf.link.owner" DISCRETE NONE "who holds the BPF link";
    }

    pub static TABLE: TableSpec = TableSpec::numbered("each BPF link", 480, METRICS);

    pub fn put(module: &Bpfstat, of: Row<'_, bpfstat_link>, table: &mut Table) {
        let id = of.get(bpfstat_link::id) as u32;
        let kind = word(&module.words.links, of.get(bpfstat_link::kind));
        let target: [u8; 96] = of.bytes(bpfstat_link::target);
        let mut target = until_nul(&target).to_vec();
        match of.get(bpfstat_link::offset) {
            // The root of the cgroups has no name.
            0 if target.is_empty() && kind == "cgroup" => target.push(b'/'),
            0 => {}
            offset => target.extend_from_slice(format!("+{offset:#x}").as_bytes()),
        }
        table
            .numbered(id, &instance(id, &target))
            .text(TYPE, kind.as_bytes())
            .text(TARGET, &target)
            .text(OWNER, module.owners.name(ObjectKind::Link, id).as_bytes())
            .set(PROG, of.get(bpfstat_link::prog) as u32);
    }
}

mod totals {
    use super::*;

    metrics! {
        PROGS: u64 = 0 "bpf.total.progs" INSTANT COUNT "BPF programs of the machine";
        MAPS: u64 = 1 "bpf.total.maps" INSTANT COUNT "BPF maps of the machine";
        MEMORY: u64 = 2 "bpf.total.memory" INSTANT BYTE "kernel memory of all BPF programs and maps";
        RUN_TIME: u64 = 3 "bpf.total.run.time" COUNTER NSEC "time of the runs of all BPF programs that the kernel counted";
    }

    pub static TABLE: TableSpec = TableSpec::single("all BPF programs and maps", 481, METRICS);

    pub fn put(row: RowMut<'_>, walk: Row<'_, bpfstat_walk>, page: u64, run_time: u64) {
        row.set(PROGS, walk.get(bpfstat_walk::progs))
            .set(MAPS, walk.get(bpfstat_walk::maps))
            .set(MEMORY, walk.get(bpfstat_walk::pages) * page + walk.get(bpfstat_walk::bytes))
            .set(RUN_TIME, run_time);
    }
}

maps! {
    rows PROGS: bpfstat_prog = "bpfstat_progs";
    rows ALL: bpfstat_map = "bpfstat_maps";
    rows LINKS: bpfstat_link = "bpfstat_links";
    rows HOLDERS: bpfstat_holder = "bpfstat_holders";
    rows WALKS: bpfstat_walk = "bpfstat_walks";
    rows CPUS: bpfstat_cpu = "bpfstat_cpus";
    by_cpu HERE: u64 = "bpfstat_here";
}

const NEEDS: &str = "the kernel's iterators over BPF objects (Linux 5.9, CONFIG_BPF_SYSCALL and BTF)";

static WALK_PROGS: Hook = iterator!("bpf_prog", NEEDS);
static WALK_MAPS: Hook = iterator!("bpf_map", NEEDS);
static WALK_LINKS: Hook = iterator!("bpf_link", "the kernel's iterator over BPF links (Linux 5.19)");
static WALK_FILES: Hook = iterator!("task_file", NEEDS);
static MEASURE_CPU: Hook = Hook {
    name: "bpf_cpu",
    tiers: &[Tier { kind: "raw_tp", programs: &["call__bpf_cpu"] }],
    needs: "runs of BPF programs on request (BPF_PROG_TEST_RUN of raw tracepoints, Linux 5.10)",
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "bpfstat",
    summary: "BPF programs, maps and links of the machine, with owner, run time and memory",
    overhead: Overhead::low("0 ns per event, since nothing is attached; a read takes 2 us per program"),
    needs: NEEDS,
    tables: &[&programs::TABLE, &every_map::TABLE, &links::TABLE, &totals::TABLE],
    hooks: &[&WALK_PROGS, &WALK_MAPS, &WALK_LINKS, &WALK_FILES, &MEASURE_CPU],
    maps: MAPS,
    make: |_| Ok(Box::new(Bpfstat::new(Words::of_kernel))),
    ..Spec::NEW
};

/// Number of objects of each kind with a row of their own, and of descriptors of them.
const MOST: usize = 4096;
const MOST_HOLDERS: usize = 8192;
/// Age at which holders are looked up again, which looks at each open file of the machine.
const HOLDERS_LAST: Duration = Duration::from_secs(1);
/// Age at which paths are looked up again, which opens each of them.
const PATHS_LAST: Duration = Duration::from_secs(10);
/// Number of the kernel side for what the kernel does not count.
const UNKNOWN: u64 = 1 << 63;
/// Number of processes that the name of an owner has.
const NAMED_OWNERS: usize = 3;

/// Words of the running kernel for its kinds of objects, by number.
struct Words {
    programs: HashMap<u32, String>,
    maps: HashMap<u32, String>,
    links: HashMap<u32, String>,
}

impl Words {
    fn of_kernel() -> Words {
        let types = fs::read(KERNEL_TYPES).unwrap_or_default();
        let of = |enumeration, prefix| words(enumerators(&types, enumeration), prefix);
        Words {
            programs: of("bpf_prog_type", "BPF_PROG_TYPE_"),
            maps: of("bpf_map_type", "BPF_MAP_TYPE_"),
            links: of("bpf_link_type", "BPF_LINK_TYPE_"),
        }
    }
}

/// Returns the words of enumerators, as bpftool has them: `BPF_MAP_TYPE_LRU_HASH` is `lru_hash`.
fn words(enumerators: Vec<(u32, String)>, prefix: &str) -> HashMap<u32, String> {
    let word = |name: &str| {
        let word = name.strip_prefix(prefix)?.to_lowercase();
        Some(word.strip_suffix("_deprecated").map_or(word.clone(), str::to_owned))
    };
    enumerators.iter().filter_map(|(number, name)| Some((*number, word(name)?))).collect()
}

fn word(words: &HashMap<u32, String>, number: u64) -> Cow<'_, str> {
    let known = u32::try_from(number).ok().and_then(|number| words.get(&number));
    known.map_or_else(|| number.to_string().into(), Cow::from)
}

type Object = (ObjectKind, u32);

/// Who keeps objects: processes with a descriptor, and paths.
#[derive(Default)]
struct Owners {
    holders: HashMap<Object, Holders>,
    /// When holders and paths were looked up.
    holders_at: Option<Instant>,
    paths: HashMap<Object, String>,
    paths_at: Option<Instant>,
}

/// The processes that hold an object, with their command names.
#[derive(Default)]
struct Holders {
    is_own: bool,
    processes: BTreeMap<u32, Vec<u8>>,
    /// Processes that hold a link of the program: named if none holds the program itself.
    by_link: BTreeMap<u32, Vec<u8>>,
}

impl Holders {
    /// Returns the first processes, `NAME(PID)`, and the number of others.
    fn name(&self) -> String {
        let holders = if self.processes.is_empty() { &self.by_link } else { &self.processes };
        let name = |(pid, comm): (&u32, &Vec<u8>)| format!("{}({pid})", String::from_utf8_lossy(comm));
        let mut names: Vec<String> = holders.iter().take(NAMED_OWNERS).map(name).collect();
        if let Some(others) = holders.len().checked_sub(NAMED_OWNERS).filter(|others| *others > 0) {
            names.push(format!("{others} more"));
        }
        names.join(", ")
    }
}

/// True if what was looked up then is older than that.
fn is_old(at: Option<Instant>, most: Duration) -> bool {
    at.is_none_or(|at| at.elapsed() >= most)
}

impl Owners {
    /// Looks up owners, as far as what is known of them is too old.
    fn refresh(&mut self, kernel: &dyn Kernel) -> Result<(), KernelError> {
        if is_old(self.holders_at, HOLDERS_LAST) {
            kernel.walk(&WALK_FILES)?;
            self.holders.clear();
            latest(kernel, HOLDERS, bpfstat_walk::holders).for_each(|row| self.add(row));
            self.holders_at = Some(Instant::now());
        }
        if is_old(self.paths_at, PATHS_LAST) {
            self.paths.clear();
            kernel.pinned(&mut |object| {
                let path = self.paths.entry((object.kind, object.id));
                path.or_insert_with(|| object.path.display().to_string());
            });
            self.paths_at = Some(Instant::now());
        }
        Ok(())
    }

    fn add(&mut self, row: Row<'_, bpfstat_holder>) {
        /// `HELD_MAP`, `HELD_LINK` and `HELD_BY_LINK` of the kernel side.
        const MAP: u64 = 1;
        const LINK: u64 = 2;
        const BY_LINK: u64 = 3;
        let object = row.get(bpfstat_holder::object);
        let kind = match object >> 32 {
            MAP => ObjectKind::Map,
            LINK => ObjectKind::Link,
            _ => ObjectKind::Program,
        };
        let of = self.holders.entry((kind, object as u32)).or_default();
        of.is_own |= row.get(bpfstat_holder::own) != 0;
        let processes = if object >> 32 == BY_LINK { &mut of.by_link } else { &mut of.processes };
        processes.entry(row.get(bpfstat_holder::process) as u32).or_insert_with(|| {
            let comm: [u8; 16] = row.bytes(bpfstat_holder::comm);
            until_nul(&comm).to_vec()
        });
    }

    /// Returns the processes that hold an object, or else its path; empty if only the kernel keeps it.
    fn name(&self, kind: ObjectKind, id: u32) -> String {
        let holders = self.holders.get(&(kind, id)).map(Holders::name);
        holders.or_else(|| self.paths.get(&(kind, id)).cloned()).unwrap_or_default()
    }

    fn is_own(&self, kind: ObjectKind, id: u32) -> bool {
        self.holders.get(&(kind, id)).is_some_and(|holders| holders.is_own)
    }
}

/// Iterates over the rows that the latest walk wrote.
fn latest<'a, T: 'a>(
    kernel: &'a dyn Kernel,
    rows: Rows<T>,
    count: Field<bpfstat_walk, u64>,
) -> impl Iterator<Item = Row<'a, T>> {
    let found = kernel.rows(WALKS).get(0).map_or(0, |walk| walk.get(count));
    kernel.rows(rows).iter().take(usize::try_from(found).unwrap_or(usize::MAX))
}

struct Bpfstat {
    words: LazyLock<Words, fn() -> Words>,
    page: u64,
    /// When the machine was started, in milliseconds since 1970. Read once: a clock that is set does not move all programs.
    boot_time: u64,
    owners: Owners,
    measured: BTreeSet<usize>,
    /// Run time of each program at the last look, and of those that are gone.
    run_times: BTreeMap<u64, u64>,
    gone: u64,
    log: EveryMinute,
}

impl Bpfstat {
    fn new(words: fn() -> Words) -> Bpfstat {
        Bpfstat {
            words: LazyLock::new(words),
            page: page_size(),
            boot_time: boot_time(),
            owners: Owners::default(),
            measured: BTreeSet::new(),
            run_times: BTreeMap::new(),
            gone: 0,
            log: EveryMinute::default(),
        }
    }

    /// Says in the log that objects or descriptors found no row.
    fn tell_of_those_beyond(&mut self, kernel: &dyn Kernel) {
        let Some(walk) = kernel.rows(WALKS).get(0) else { return };
        let kinds = [
            ("BPF programs", bpfstat_walk::progs, MOST),
            ("BPF maps", bpfstat_walk::maps, MOST),
            ("BPF links", bpfstat_walk::links, MOST),
            ("descriptors of BPF objects", bpfstat_walk::holders, MOST_HOLDERS),
        ];
        for (what, count, most) in kinds {
            let found = walk.get(count);
            if found > most as u64 {
                if let Some(more) = self.log.due() {
                    crate::module_log!(warn, "the machine has {found} {what}, of which {most} are shown{more}");
                }
            }
        }
    }

    /// Measures CPUs that were not yet: those of the start, and what comes online later.
    fn measure(&mut self, kernel: &dyn Kernel) {
        for cpu in online_cpus() {
            if self.measured.contains(&cpu) {
                continue;
            }
            match kernel.call_on(&MEASURE_CPU, cpu as u32) {
                Ok(_) => drop(self.measured.insert(cpu)),
                Err(error) => {
                    if let Some(more) = self.log.due() {
                        crate::module_log!(warn, "run counts of CPU {cpu} are left out: {error}{more}");
                    }
                }
            }
        }
    }

    fn walk_programs(&mut self, kernel: &dyn Kernel) -> Result<(), KernelError> {
        kernel.walk(&WALK_PROGS)?;
        let times = latest(kernel, PROGS, bpfstat_walk::progs);
        let times: BTreeMap<u64, u64> =
            times.map(|row| (row.get(bpfstat_prog::id), row.get(bpfstat_prog::ns))).collect();
        let before = std::mem::replace(&mut self.run_times, times);
        self.gone +=
            before.iter().filter(|(id, _)| !self.run_times.contains_key(id)).map(|(_, time)| time).sum::<u64>();
        Ok(())
    }

    fn programs(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), KernelError> {
        self.walk_programs(kernel)?;
        self.owners.refresh(kernel)?;
        latest(kernel, PROGS, bpfstat_walk::progs).for_each(|row| programs::put(self, row, table));
        Ok(())
    }

    fn maps(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), KernelError> {
        kernel.walk(&WALK_MAPS)?;
        self.owners.refresh(kernel)?;
        latest(kernel, ALL, bpfstat_walk::maps).for_each(|row| every_map::put(self, row, table));
        Ok(())
    }

    fn links(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), KernelError> {
        kernel.walk(&WALK_LINKS)?;
        self.owners.refresh(kernel)?;
        latest(kernel, LINKS, bpfstat_walk::links).for_each(|row| links::put(self, row, table));
        Ok(())
    }

    fn totals(&mut self, kernel: &dyn Kernel, table: &mut Table) -> Result<(), KernelError> {
        self.walk_programs(kernel)?;
        kernel.walk(&WALK_MAPS)?;
        let run_time = self.gone + self.run_times.values().sum::<u64>();
        if let Some(walk) = kernel.rows(WALKS).get(0) {
            totals::put(table.single(), walk, self.page, run_time);
        }
        Ok(())
    }
}

/// Returns the name of an object's instance: its number, and behind a blank its own name.
fn instance(id: u32, name: &[u8]) -> Vec<u8> {
    let mut instance = id.to_string().into_bytes();
    if !name.is_empty() {
        instance.push(b' ');
        instance.extend_from_slice(name);
    }
    instance
}

/// Makes the reason why there are no values.
fn refused(error: KernelError) -> RefreshError {
    RefreshError(format!("the kernel's iterator: {error}"))
}

impl Module for Bpfstat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        plan.attach(&WALK_PROGS);
        plan.attach(&WALK_MAPS);
        plan.attach_optional(&WALK_LINKS);
        plan.attach(&WALK_FILES);
        plan.load_on_demand(&MEASURE_CPU);
        for map in [&PROGS.def, &ALL.def, &LINKS.def] {
            plan.entries(map.name, MOST);
        }
        plan.entries(HOLDERS.def.name, MOST_HOLDERS);
        plan.entries(CPUS.def.name, host.cpus);
        plan.entries(HERE.name, 1);
        constants.bpfstat_cpu_ids = host.cpus as u32;
        constants.bpfstat_page = self.page as u32;
    }

    fn start(mut self: Box<Self>, kernel: &dyn Kernel) -> Running {
        LazyLock::force(&self.words);
        self.measure(kernel);
        Running::of(*self)
            .table(&programs::TABLE, |module, kernel, table| module.programs(kernel, table).map_err(refused))
            .table(&every_map::TABLE, |module, kernel, table| module.maps(kernel, table).map_err(refused))
            .table(&links::TABLE, |module, kernel, table| module.links(kernel, table).map_err(refused))
            .table(&totals::TABLE, |module, kernel, table| module.totals(kernel, table).map_err(refused))
            .tick(|module, kernel| {
                module.measure(kernel);
                module.tell_of_those_beyond(kernel);
            })
            .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    fn words() -> Words {
        let of = |number, word: &str| HashMap::from([(number, word.to_owned())]);
        Words { programs: of(5, "tracepoint"), maps: of(2, "array"), links: of(3, "cgroup") }
    }

    fn text(table: &Table, row: usize, column: usize) -> String {
        match table.value(row, column) {
            Some(Atom::Str(text)) => String::from_utf8_lossy(text).into_owned(),
            other => panic!("row {row}, column {column}: {other:?}"),
        }
    }

    fn kernel() -> Fake {
        Fake::new().with(PROGS, 4).with(ALL, 4).with(LINKS, 4).with(HOLDERS, 8).with(WALKS, 1).with(CPUS, 1)
    }

    /// Adds a holder of an object: kind and identifier, process, and whether that is the agent.
    fn hold(fake: &Fake, object: (u64, u64), process: u64, own: bool) {
        let at = fake.row(WALKS, 0).get(bpfstat_walk::holders);
        let row = fake.row(HOLDERS, at as usize);
        row.write(&[object.0 << 32 | object.1, process, own.into()]);
        row.set_bytes(bpfstat_holder::comm, format!("held-{process}").as_bytes());
        fake.set(WALKS, 0, bpfstat_walk::holders, at + 1);
    }

    #[test]
    fn words_of_the_kernel_are_those_of_bpftool() {
        let of = |name: &str| words_of(name).remove(&7);
        fn words_of(name: &str) -> HashMap<u32, String> {
            super::words(vec![(7, name.into())], "BPF_MAP_TYPE_")
        }
        assert_eq!(of("BPF_MAP_TYPE_LRU_HASH").as_deref(), Some("lru_hash"));
        assert_eq!(of("BPF_MAP_TYPE_CGROUP_STORAGE_DEPRECATED").as_deref(), Some("cgroup_storage"));
        assert_eq!(of("__MAX_BPF_MAP_TYPE"), None);
        assert_eq!(word(&words_of("BPF_MAP_TYPE_HASH"), 1 << 40), (1u64 << 40).to_string());
    }

    #[test]
    fn a_program_has_its_counts_and_the_processes_that_hold_it() {
        let fake = kernel();
        let row = fake.row(PROGS, 0);
        row.write(&[41, 5, 0x0807_0605_0403_0201, 2_000_000, 3, 7, 900, UNKNOWN]);
        row.set_bytes(bpfstat_prog::name, b"count_things");
        fake.set(WALKS, 0, bpfstat_walk::progs, 1);
        hold(&fake, (0, 41), 12, false);
        hold(&fake, (0, 41), 12, false);
        hold(&fake, (0, 41), 9, true);
        hold(&fake, (3, 41), 77, false);
        let module = Box::new(Bpfstat { page: 4096, boot_time: 1_000_000, ..Bpfstat::new(words) });
        let running = module.start(&fake);
        let table = fake.filled(&programs::TABLE, &running);
        assert_eq!(table.names(), ["41 count_things"]);
        let column = |name: &str| programs::TABLE.column(name);
        assert_eq!(text(&table, 0, column("bpf.prog.type")), "tracepoint");
        assert_eq!(text(&table, 0, column("bpf.prog.tag")), "0102030405060708");
        assert_eq!(text(&table, 0, column("bpf.prog.owner")), "held-9(9), held-12(12)");
        let numbers = ["id", "own", "runs.count", "run.time", "misses.count", "memory", "loaded"];
        let numbers = numbers.map(|name| table.number(0, column(&format!("bpf.prog.{name}"))));
        assert_eq!(numbers, [Some(41), Some(1), Some(7), Some(900), None, Some(12288), Some(1_000_002)]);
    }

    #[test]
    fn an_object_that_nobody_holds_has_its_path_for_an_owner() {
        let of = (ObjectKind::Program, 7);
        let mut owners = Owners { paths: HashMap::from([(of, "/sys/fs/bpf/x".into())]), ..Owners::default() };
        assert_eq!([owners.name(of.0, of.1), owners.name(ObjectKind::Map, 7)], ["/sys/fs/bpf/x", ""]);
        let by_link = BTreeMap::from([(8, b"linker".to_vec())]);
        owners.holders.insert(of, Holders { by_link, ..Holders::default() });
        assert_eq!(owners.name(of.0, of.1), "linker(8)");
        let many: BTreeMap<u32, Vec<u8>> = (1..=5).map(|pid| (pid, b"a".to_vec())).collect();
        owners.holders.entry(of).or_default().processes = many;
        assert_eq!(owners.name(of.0, of.1), "a(1), a(2), a(3), 2 more");
    }

    #[test]
    fn the_run_time_of_all_programs_never_falls() {
        let fake = kernel();
        let running = Box::new(Bpfstat::new(words)).start(&fake);
        let total = |programs: &[(u64, u64)]| {
            fake.set(WALKS, 0, bpfstat_walk::progs, programs.len() as u64);
            for (at, (id, ns)) in programs.iter().enumerate() {
                fake.set(PROGS, at, bpfstat_prog::id, *id);
                fake.set(PROGS, at, bpfstat_prog::ns, *ns);
            }
            fake.filled(&totals::TABLE, &running).number(0, 3).unwrap()
        };
        assert_eq!(
            [total(&[(1, 10), (2, 5)]), total(&[(2, 6)]), total(&[(2, 6), (3, 1)]), total(&[])],
            [15, 16, 17, 17]
        );
    }

    #[test]
    fn maps_and_links_say_what_they_are() {
        let fake = kernel();
        fake.row(ALL, 0).write(&[5, 2, 100, UNKNOWN, 8192]);
        fake.row(ALL, 1).write(&[6, 99, 10, -1i64 as u64, 1, u64::from_ne_bytes(*b"name\0\0\0\0")]);
        fake.set(WALKS, 0, bpfstat_walk::maps, 2);
        fake.row(LINKS, 0).write(&[3, 3, 41]);
        let uprobe = fake.row(LINKS, 1);
        uprobe.write(&[4, 7, 42, 0x1040]);
        uprobe.set_bytes(bpfstat_link::target, b"/bin/bash");
        fake.set(WALKS, 0, bpfstat_walk::links, 2);
        let running = Box::new(Bpfstat::new(words)).start(&fake);
        let table = fake.filled(&every_map::TABLE, &running);
        assert_eq!(table.names(), ["5", "6 name"]);
        assert_eq!([0, 1].map(|row| table.number(row, 3)), [None, Some(0)], "entries in use");
        assert_eq!([0, 1].map(|row| text(&table, row, 1)), ["array", "99"]);
        let table = fake.filled(&links::TABLE, &running);
        assert_eq!(table.names(), ["3 /", "4 /bin/bash+0x1040"]);
        assert_eq!(text(&table, 0, 0), "cgroup");
    }

    #[test]
    fn a_missing_iterator_is_an_error_of_its_table_only() {
        let fake = kernel().without(&WALK_LINKS);
        let running = Box::new(Bpfstat::new(words)).start(&fake);
        let mut table = Table::new(links::TABLE.metrics.len());
        let error = running.read(&links::TABLE, &fake, &mut table).unwrap_err();
        assert_eq!(error.0, "the kernel's iterator: bpf_iter_bpf_link was not loaded");
        assert!(running.read(&every_map::TABLE, &fake, &mut Table::new(every_map::TABLE.metrics.len())).is_ok());
    }

    #[test]
    fn each_cpu_is_measured_once() {
        let fake = kernel();
        let running = Box::new(Bpfstat::new(words)).start(&fake);
        assert_eq!(fake.calls(&MEASURE_CPU).len(), online_cpus().len());
        running.tick(&fake);
        assert_eq!(fake.calls(&MEASURE_CPU).len(), 0);
    }
}
