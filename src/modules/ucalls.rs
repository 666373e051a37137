//! Calls of methods by class and method in the processes of a language runtime. Kernel side: bpf/ucalls.bpf.c.

use super::shared::runtimes::{numbered, runtime, Calls, Language, BEYOND};
use crate::bpf::types::{self, uc_argument, uc_row, uc_site, uc_stack, uc_stat};
use crate::bpf::Field;
use crate::host::{until_nul, ArgLocation, Argument, ArgumentError, Probe};
use crate::kit::*;
use crate::process::{NoProbes, ProcessProbes};
use crate::{maps, metrics, options, user_code};
use std::collections::BTreeMap;
use thiserror::Error;

metrics! {
    COUNT: u64 = 0 "proc.ucall.count" COUNTER COUNT "calls of each method";
    AVERAGE: u64 = 1 "proc.ucall.latency.avg" INSTANT USEC "average time of the calls of each method";
    TOTAL: u64 = 2 "proc.ucall.latency.cml" COUNTER USEC "time of all calls of each method";
}

maps! {
    rows ROWS: uc_row = "uc_rows", taken claims, lost uc_stat.crowded in "uc_stats";
    rows SITES: uc_site = "uc_sites";
    rows STATS: uc_stat = "uc_stats";
    private STACKS: uc_stack = "uc_stacks";
}

options! {
    /// Only these processes count. With USDT probes: if only PIDs are listed, probes are attached to those processes alone; otherwise to
    /// the executables they run.
    process: ProcessFilter = ProcessFilter::named("java");
    /// Language runtime. Default: detected from the process's executable and libraries. The runtime node is not supported.
    language: Language = Language::default();
    /// Measure how long calls take. A call then counts when it returns.
    latency: bool = false;
}

/// Largest number of names; the Python agent's table held 10240.
const NAMES: usize = 16384;
/// Largest number of sites with different arguments; a build of a runtime has a dozen.
const SITES_MOST: usize = 512;

static SITE: Hook = user_code!("USDT probe of calls", "ucalls");

static TABLE: TableSpec =
    TableSpec { cluster: 16, shape: Shape::Named { max: NAMES }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "ucalls",
    summary: "calls of methods in language runtimes",
    overhead: Overhead::high("560 ns per call, and 880 ns for the breakpoint, in the traced process"),
    needs: "CONFIG_UPROBE_EVENTS and a runtime with USDT probes of calls",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&SITE],
    maps: MAPS,
    needs_to_run: &[Need::FilesOfProcesses, Need::UserProbes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        if options.language.0.is_some_and(|runtime| runtime.calls.is_none()) {
            return Err(setup.section.reject("language", "expected a language with probes of calls: not node"));
        }
        Ok(Box::new(Ucalls {
            language: options.language,
            timed: options.latency,
            probes: ProcessProbes::new(setup.section.name(), options.process),
            sites: Vec::new(),
            claims: OwnedTable::new(uc_row::key, uc_row::claims),
        }))
    },
    ..Spec::NEW
};

struct Ucalls {
    language: Language,
    timed: bool,
    probes: ProcessProbes,
    /// Rows of the sites so far. Sites that read the same arguments share a row, and a program.
    sites: Vec<SiteWords>,
    claims: OwnedTable<uc_row>,
}

/// Words of a `uc_site` without its padding.
type SiteWords = [u64; uc_site::pad.offset() / 8];

/// Encodes an argument as the programs read it (`uc_argument`).
fn encoded(argument: Argument) -> uc_argument {
    let (kind, value, [base, index, factor]) = match argument.place {
        ArgLocation::Constant(value) => (1, value, [0; 3]),
        ArgLocation::Register(register) => (2, 0, [register, 0, 0]),
        ArgLocation::Memory { base, displacement, index } => {
            let (index, factor) = index.unwrap_or((0, 0));
            (3, displacement, [base, index, factor])
        }
    };
    let unused = 64 - 8 * argument.size;
    let bytes = [kind, base, index, factor, unused, argument.signed.into(), 0, 0];
    uc_argument { value: value as u64, place: u64::from_le_bytes(bytes) }
}

/// Reason why the calls at a site are not counted.
#[derive(Debug, Error, PartialEq, Eq)]
enum SiteError {
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    #[error("no argument {0}")]
    NoArgument(usize),
    #[error("more than {} sites whose arguments differ", SITES_MOST)]
    TooMany,
}

/// Returns the row of a site of calls. Fails if an argument that is needed cannot be read.
fn site(calls: &Calls, probe: &Probe) -> Result<SiteWords, SiteError> {
    let arguments = probe.arguments();
    let mut words = SiteWords::default();
    let mut set = |field: Field<uc_site, uc_argument>, number: Option<usize>| -> Result<(), SiteError> {
        let Some(number) = number else { return Ok(()) };
        let argument = arguments.get(number - 1).cloned().ok_or(SiteError::NoArgument(number))??;
        let encoded = encoded(argument);
        let at = field.offset() / 8;
        (words[at], words[at + 1]) = (encoded.value, encoded.place);
        Ok(())
    };
    set(uc_site::class, calls.class.map(|(at, _)| at))?;
    set(uc_site::class_length, calls.class.and_then(|(_, length)| length))?;
    set(uc_site::method, Some(calls.method.0))?;
    set(uc_site::method_length, calls.method.1)?;
    words[uc_site::returns.offset() / 8] = calls.returns.contains(&probe.name.as_str()).into();
    Ok(words)
}

/// Returns the number of a site's row, which is written into the map at its first use.
fn numbered_site(sites: &mut Vec<SiteWords>, kernel: &dyn Kernel, words: SiteWords) -> Result<u32, SiteError> {
    if let Some(known) = sites.iter().position(|known| *known == words) {
        return Ok(known as u32);
    }
    if sites.len() == SITES_MOST {
        return Err(SiteError::TooMany);
    }
    if let Some(row) = kernel.rows(SITES).get(sites.len()) {
        row.write(&words);
    }
    sites.push(words);
    Ok(sites.len() as u32 - 1)
}

/// Makes the name of an instance, `CLASS.METHOD`, as the Python agent did. That agent cut names at the first character outside a set;
/// here the rest stays, so that different names differ. Blanks are replaced, since they end the names of PCP's instances.
fn instance(class: &[u8], method: &[u8]) -> Vec<u8> {
    let name = [class, b".", method].concat();
    let start = name.iter().position(u8::is_ascii_alphanumeric).unwrap_or(name.len());
    let character = |&byte: &u8| match byte {
        b'/' => b'.',
        b'[' => b'{',
        b']' => b'}',
        0..=b' ' | 0x7f => b'_',
        other => other,
    };
    let mut name: Vec<u8> = name[start..].iter().map(character).collect();
    if name.is_empty() {
        name.extend(b"_");
    }
    name
}

impl Module for Ucalls {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.uc_filter = self.probes.plan(plan, &SITE);
        let stacks = if self.timed { table_size(host.threads * 2, 1024, 1 << 13) } else { 1 };
        constants.uc_mask = NAMES as u32 - 1;
        constants.uc_stack_mask = stacks as u32 - 1;
        constants.uc_timed = self.timed;
        constants.hash_key = secret().of_programs();
        plan.entries(ROWS.def.name, NAMES);
        plan.entries(SITES.def.name, SITES_MOST);
        plan.entries(STATS.def.name, host.cpus);
        plan.entries(STACKS.name, stacks);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .table(&TABLE, Self::refresh)
            .tick(Self::tick)
            .due(|module| module.probes.due())
            .waits_for(|module, _| module.probes.waits_for("calls"))
            .losses(Self::losses)
            .started()
    }
}

impl Ucalls {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        if self.sites.is_empty() {
            return; // nothing was ever attached
        }
        let mut sums: BTreeMap<Vec<u8>, [u64; 3]> = BTreeMap::new();
        for row in kernel.rows(ROWS).iter().filter(|row| row.get(uc_row::key) != 0) {
            let (class, method): ([u8; 256], [u8; 128]) = (row.bytes(uc_row::class), row.bytes(uc_row::method));
            let sum = sums.entry(into_one_word(instance(until_nul(&class), until_nul(&method)))).or_default();
            let fields = [uc_row::calls, uc_row::ns, uc_row::timed];
            for (sum, field) in sum.iter_mut().zip(fields) {
                *sum = sum.wrapping_add(row.get(field));
            }
        }
        for (name, [calls, ns, timed]) in &sums {
            let cells = table.named(name).set(COUNT, *calls);
            if let (true, Some(average)) = (self.timed, ns.checked_div(*timed)) {
                cells.set(AVERAGE, average / 1000).set(TOTAL, ns / 1000);
            }
        }
    }

    fn tick(&mut self, kernel: &dyn Kernel) {
        let Ucalls { language, timed, probes, sites, claims } = self;
        probes.tick(kernel, &SITE, &mut |files, pid| {
            let (runtime, its) = runtime(files, pid, *language)?;
            let calls = runtime.calls.as_ref();
            let calls = calls.ok_or_else(|| NoProbes(format!("{} has no probes of calls", runtime.language)))?;
            let mut fault = format!("no probes of calls in this build of {}", runtime.language);
            let mut found = numbered(&its, |probe| {
                let name = probe.name.as_str();
                let wanted = match timed {
                    true => calls.entries.contains(&name) || calls.returns.contains(&name),
                    false => calls.counted.contains(&name),
                };
                if !wanted {
                    return None;
                }
                let number = site(calls, probe).and_then(|words| numbered_site(sites, kernel, words));
                number.map_err(|reason| fault = format!("{name}: {reason}")).ok()
            });
            if found.is_empty() {
                return Err(NoProbes(fault));
            }
            // Returns are attached to first: calls that are seen to begin but not to end would stay in their threads' stacks.
            found.sort_by_key(|found| sites[found.number as usize][uc_site::returns.offset() / 8] == 0);
            Ok(found)
        });
        // Before anything was attached the rows are as they were made, and touching them would take memory.
        if !sites.is_empty() {
            claims.release_contested(kernel.rows(ROWS).iter().enumerate());
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let stats = kernel.rows(STATS);
        each(BEYOND, self.probes.beyond());
        each("table-full: calls of methods without a row in the table", stats.sum(uc_stat::crowded));
        each("name-unread: calls of methods whose names could not be read", stats.sum(uc_stat::unread));
        each("start-unseen: returns of calls whose start was not seen", stats.sum(uc_stat::unmatched));
        each(
            "too-deep: calls that were not timed, since 64 others were in progress in their thread",
            stats.sum(uc_stat::deep),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::Atom;

    fn module(timed: bool) -> Ucalls {
        Ucalls {
            language: Language::default(),
            timed,
            probes: ProcessProbes::new("u", ProcessFilter::default()),
            sites: vec![SiteWords::default()],
            claims: OwnedTable::new(uc_row::key, uc_row::claims),
        }
    }

    fn put(fake: &Fake, row: usize, class: &[u8], method: &[u8], [calls, ns, timed]: [u64; 3]) {
        fake.set(ROWS, row, uc_row::key, 1 + row as u64);
        fake.row(ROWS, row).set_bytes(uc_row::class, class);
        fake.row(ROWS, row).set_bytes(uc_row::method, method);
        fake.set(ROWS, row, uc_row::calls, calls);
        fake.set(ROWS, row, uc_row::ns, ns);
        fake.set(ROWS, row, uc_row::timed, timed);
    }

    #[test]
    fn names_are_the_python_agents_where_it_did_not_cut_them() {
        let name = |class: &[u8], method: &[u8]| String::from_utf8_lossy(&instance(class, method)).into_owned();
        assert_eq!(name(b"java/lang/String", b"<init>"), "java.lang.String.<init>");
        assert_eq!(name(b"[Ljava/lang/Object;", b"x"), "Ljava.lang.Object;.x");
        assert_eq!(name(b"a[]", b"get_it"), "a{}.get_it");
        assert_eq!(name(b"", b"fib"), "fib");
        assert_eq!(
            name(b"/usr/lib/python3/dist-packages/x.py", b"<module>"),
            "usr.lib.python3.dist-packages.x.py.<module>"
        );
        assert_ne!(name(b"A$1", b"f"), name(b"A$2", b"f"));
        assert_eq!(name(b"a b", b"f\n"), "a_b.f_");
        assert_eq!(name(b"", b""), "_");
    }

    #[test]
    fn equal_names_add_up_and_averages_are_totals_by_counts() {
        let fake = Fake::new().with(ROWS, 8);
        put(&fake, 1, b"a/B", b"f", [3, 10_000, 2]);
        put(&fake, 4, b"a.B", b"f", [1, 20_000, 1]);
        put(&fake, 5, b"a/B", b"g", [7, 0, 0]);
        let table = fake.filled_by(&TABLE, |kernel, table| module(true).refresh(kernel, table));
        let values = |row| [0, 1, 2].map(|column| table.value(row, column));
        assert_eq!(table.len(), 2);
        assert_eq!(values(0), [4, 10, 30].map(|value| Some(Atom::U64(value))));
        assert_eq!(values(1), [Some(Atom::U64(7)), None, None], "none was timed");
        let table = fake.filled_by(&TABLE, |kernel, table| module(false).refresh(kernel, table));
        assert_eq!((table.value(0, 0), table.value(0, 1)), (Some(Atom::U64(4)), None));
    }

    #[test]
    fn equal_sites_share_a_row_and_unreadable_ones_are_errors() {
        let fake = Fake::new().with(SITES, 4);
        let (mut sites, java) = (Vec::new(), super::super::shared::runtimes::JAVA.calls.as_ref().unwrap());
        let probe = |name: &str, arguments: &str| Probe {
            provider: "p".into(),
            name: name.into(),
            offset: 1,
            semaphore: 0,
            arguments: arguments.into(),
        };
        if cfg!(target_arch = "x86_64") {
            let arguments = "-8@%rax 8@8(%rdx,%rcx,4) -4@%ecx 8@%rsi -4@$5";
            let entry = site(java, &probe("method__entry", arguments)).unwrap();
            let exit = site(java, &probe("method__return", arguments)).unwrap();
            assert_eq!(entry[..2], [8, u64::from_le_bytes([3, 96, 88, 4, 0, 0, 0, 0])]);
            assert_eq!(entry[2..4], [0, u64::from_le_bytes([2, 88, 0, 0, 32, 1, 0, 0])]);
            assert_eq!(entry[6..], [5, u64::from_le_bytes([1, 0, 0, 0, 32, 1, 0, 0]), 0]);
            assert_eq!((&exit[..8], exit[8]), (&entry[..8], 1));
            assert_eq!(
                [entry, exit, entry].map(|words| numbered_site(&mut sites, &fake, words)),
                [Ok(0), Ok(1), Ok(0)]
            );
            let kernel: &dyn Kernel = &fake;
            assert_eq!(kernel.rows(SITES).get(1).unwrap().get(uc_site::returns), 1);
            let fault = site(java, &probe("method__entry", "8@%rax 8@x(%rip)")).unwrap_err().to_string();
            assert!(fault.contains("8@x(%rip)"), "{fault}");
        }
        assert_eq!(site(java, &probe("method__entry", "")).unwrap_err(), SiteError::NoArgument(2));
    }

    #[test]
    fn a_row_both_claimants_left_is_freed_at_the_second_look() {
        let fake = Fake::new().with(ROWS, 8);
        fake.set(ROWS, 2, uc_row::claims, 2);
        let (kernel, mut module): (&dyn Kernel, _) = (&fake, module(false));
        let claims = || kernel.rows(ROWS).get(2).unwrap().get(uc_row::claims);
        module.tick(kernel);
        assert_eq!(claims(), 2);
        module.tick(kernel);
        assert_eq!(claims(), 0);
    }
}
