//! Calls of functions of programs and libraries that the configuration names, and their times. Kernel side: bpf/uprobe_hits.bpf.c.

use super::shared::hits::{losses_of_calls, CallTimes, Finder, Found, Hits, NoTargets, TargetList, TIMED};
use crate::bpf::types::{self, hit, set_calls, up_time};
use crate::host::{library, Elf, HostError};
use crate::kit::*;
use crate::{maps, metrics, module_log, options, user_code};
use std::collections::HashMap;
use std::path::PathBuf;

metrics! {
    HITS: u64 = 0 "uprobe.hits" COUNTER COUNT "calls of each user function";
}

maps! {
    rows ROWS: hit = "up_hits";
    rows TIMES: up_time = "up_times";
    private STARTS: set_calls = "up_starts";
}

options! {
    process;
    /// Required. Functions, each LIBRARY:SYMBOL: LIBRARY is a short name (`c` for libc.so.6) or the path of a library or program. Every
    /// caller pays for the breakpoint, whatever `process` says: 880 ns a call, or 24,000 ns where the kernel has to single-step the first
    /// instruction. Choose functions that are called some thousand times a second at most.
    uprobes: ProbeList = ProbeList::default(), for example "c:getaddrinfo,c:fork";
    /// Fill bcc.uprobe.time, too, for up to 128 functions. Callers pay for a breakpoint at the return as well. It would crash Go, whose
    /// functions are left out. A program ends where a C++ exception passes such a function: leave these out.
    histograms: bool = false;
    histograms;
}

mod times {
    const NOTE: &str = "A call inside another one of the same function by the same thread is part of that one's time. A call that an exception or longjmp leaves has none.";
    crate::histograms! {
        "uprobe";
        tables "each user function", "each bucket of each user function", 315 316 346, Shape::Named { max: TIMED }, if "histograms";
        1 "time" "calls of the user function" "from call to return" NOTE;
        with NESTED: u64 = 0 "time.nested.count" COUNTER COUNT "calls inside another call of the user function";
    }
    use super::*;

    const ROW: SeriesRows<up_time> = SeriesRows::by_number(TIMES);

    pub static OF_FUNCTIONS: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[ROW.part(up_time::times)],
        counters: &[(NESTED, ROW.part(up_time::nested))],
        ..SeriesDef::NEW
    };
}

/// Largest number of functions in a configuration; each costs a program.
const MOST: usize = 4096;

static FUNCTION: Hook = user_code!("user function", "uprobe_hits");

static TIMED_FUNCTION: Hook = Hook {
    name: "user function, timed",
    tiers: &[Tier { kind: "uretprobe", programs: &["each_uprobe__uprobe_hits", "each_uretprobe__uprobe_hits"] }],
    needs: FUNCTION.needs,
};

static TABLE: TableSpec =
    TableSpec { cluster: 102, shape: Shape::Named { max: MOST }, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "uprobe_hits",
    summary: "calls of user functions",
    overhead: Overhead::high(
        "5 ns per call, and 880 or 24,000 ns for the breakpoint, in every process that calls the function",
    ),
    needs: "CONFIG_UPROBE_EVENTS",
    tables: &[&TABLE, &times::TABLE, &times::BY_BUCKET, &times::IN_SECONDS],
    options: OPTIONS,
    hooks: &[&FUNCTION, &TIMED_FUNCTION],
    maps: MAPS,
    needs_to_load: &[Need::UserProbes],
    make: |setup| {
        let options = Options::read(setup.section)?;
        let list = options.uprobes.required(setup.section, "uprobes")?;
        let split = |entry: &String| {
            // The symbol is behind the last colon: a path may have others, a mangled name has none.
            let parts = entry.rsplit_once(':').filter(|(library, symbol)| !library.is_empty() && !symbol.is_empty());
            let parts = parts.map(|(library, symbol)| (library.to_string(), symbol.to_string()));
            parts.ok_or_else(|| setup.section.reject("uprobes", format!("expected LIBRARY:SYMBOL, got `{entry}`")))
        };
        let entries: Result<Vec<_>, SetupError> = list.entries().iter().map(split).collect();
        let entries = entries?;
        if options.histograms && entries.len() > TIMED {
            return Err(setup.section.reject("histograms", format!("expected at most {TIMED} functions in uprobes")));
        }
        Ok(Box::new(module(entries, options)))
    },
    ..Spec::NEW
};

struct FunctionFinder {
    /// Library and symbol of each entry.
    entries: Vec<(String, String)>,
    options: Options,
    times: Option<CallTimes>,
}

fn module(entries: Vec<(String, String)>, options: Options) -> Hits<FunctionFinder> {
    let targets = TargetList::new(if options.histograms { &TIMED_FUNCTION } else { &FUNCTION });
    Hits { finder: FunctionFinder { entries, options, times: None }, targets, rows: ROWS, table: &TABLE, count: HITS }
}

/// Files that were read, or the errors of reading.
type Files = HashMap<PathBuf, Result<Elf, HostError>>;

/// Returns the function that an entry names; `timed`: with its return.
fn look(files: &mut Files, name: &str, symbol: &str, timed: bool) -> Found {
    let path = library(name).ok_or_else(|| NoTargets::new(format_args!("no library or file `{name}`")))?;
    let elf = files.entry(path.clone()).or_insert_with(|| Elf::read(&path)).as_ref().map_err(NoTargets::new)?;
    if timed && elf.is_go() {
        let path = path.display();
        return Err(NoTargets::new(format_args!(
            "{path}: a Go program, which a probe at a return would crash; without `histograms` its calls count"
        )));
    }
    let code = elf.function(symbol);
    let code = code.ok_or_else(|| NoTargets::new(format_args!("{}: no function `{symbol}`", path.display())))?;
    if code.is_ifunc {
        module_log!(
            warn,
            "{name}:{symbol} is an IFUNC, which selects an implementation when a program starts: only these selections count, \
             not the calls"
        );
    }
    let instance = format!("{name}::{symbol}");
    let name = instance.clone();
    Ok(vec![(instance, Target::Code { path, offset: code.offset, semaphore: 0, process: None, name })])
}

impl Finder for FunctionFinder {
    fn find(&mut self, targets: &mut TargetList, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let mut files = Files::new();
        let Options { histograms: timed, ref window, buckets, .. } = self.options;
        let entry =
            |(name, symbol): &(String, String)| (format!("{name}:{symbol}"), look(&mut files, name, symbol, timed));
        targets.find(plan, self.entries.iter().map(entry));
        constants.up_filter = plan.only(&self.options.process);
        constants.up_timed = timed;
        constants.up_targets = targets.len() as u32;
        constants.up_start_mask = plan_set_table(plan, STARTS.name, if timed { by_thread(host) } else { 1 });
        plan.entries(TIMES.def.name, if timed { host.cpus * targets.len() } else { 1 });
        self.times =
            timed.then(|| SeriesHistograms::new(&[&times::OF_FUNCTIONS], window.window(), buckets, targets.clone()));
    }

    fn times(&mut self) -> Option<&mut CallTimes> {
        self.times.as_mut()
    }

    fn tables_of_times(&self) -> Option<(&'static SeriesDef, bool)> {
        self.options.histograms.then_some((&times::OF_FUNCTIONS, self.options.prometheus))
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let rows = kernel.rows(TIMES);
        losses_of_calls(rows.sum(up_time::unmatched), rows.sum(up_time::displaced), each);
    }

    fn stride(constants: &mut types::rodata) -> &mut u32 {
        &mut constants.up_stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;
    use crate::config::Config;

    fn module(entries: &[(&str, &str)], options: Options) -> Hits<FunctionFinder> {
        let entries = entries.iter().map(|(library, symbol)| (library.to_string(), symbol.to_string())).collect();
        super::module(entries, options)
    }

    fn plan(module: &mut Hits<FunctionFinder>) -> Plan {
        let mut plan = Plan::default();
        module.plan(&Host::SMALL, &mut plan, &mut crate::bpf::constants());
        plan
    }

    #[test]
    fn functions_are_named_as_written_with_the_colon_doubled() {
        let path = library("c").unwrap().display().to_string();
        let mut module =
            module(&[("c", "malloc"), (&path, "free"), ("c", "no-such.symbol@V"), ("c", "malloc")], Options::default());
        let plan = plan(&mut module);
        assert_eq!((plan.targets.len(), plan.refusal.as_deref()), (2, None));
        let [(entry, reason)] = &plan.missing[..] else { panic!("{:?}", plan.missing) };
        assert_eq!(
            (entry.as_str(), reason),
            ("c:no-such.symbol@V", &format!("{path}: no function `no-such.symbol@V`"))
        );
        let fake = Fake::new().with(ROWS, 16);
        fake.set(ROWS, 1, hit::count, 3);
        fake.set(ROWS, 9, hit::count, 4);
        let table = fake.filled(&TABLE, &Box::new(module).start(&Fake::new()));
        assert_eq!(table.names(), ["c::malloc".into(), format!("{path}::free")]);
        assert_eq!((table.number(0, 0), table.number(1, 0)), (Some(0), Some(7)));
    }

    #[test]
    fn functions_have_histograms_and_nested_calls() {
        let mut module = module(&[("c", "malloc"), ("c", "free")], Options { histograms: true, ..Options::default() });
        let plan = plan(&mut module);
        assert!(plan.targets.iter().all(|(hook, _, _)| *hook == &TIMED_FUNCTION));
        let fake = Fake::new().with(ROWS, 16).with(TIMES, 4).out_of_reach(1);
        for cpu in 0..2 {
            let row = fake.row(TIMES, 2 * cpu);
            row.part(up_time::times).set(fine_hist::buckets.nth(Fine::bucket(3000)), 5);
            row.set(up_time::nested, 2);
            row.set(up_time::unmatched, 3);
            row.set(up_time::displaced, 1);
        }
        let running = Box::new(module).start(&fake);
        let table = fake.filled(&times::TABLE, &running);
        let nested = times::TABLE.column("uprobe.time.nested.count");
        assert_eq!(
            (table.names(), table.number(0, 0), table.number(0, nested)),
            (vec!["c::malloc".into()], Some(10), Some(4))
        );
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [4, 2]);
    }

    #[test]
    fn more_functions_than_have_histograms_are_refused() {
        let functions: Vec<String> = (0..=TIMED).map(|number| format!("c:f{number}")).collect();
        for (histograms, is_refused) in [("", false), ("histograms = True", true)] {
            let text = format!("[u]\nuprobes = {}\n{histograms}\n", functions.join(","));
            let config = Config::parse("test.conf", text.as_bytes()).unwrap();
            let section = config.section("u").unwrap();
            let error = (SPEC.make)(&Setup::new(&section)).err().map(|error| error.to_string());
            assert_eq!(error.is_some_and(|error| error.contains("at most 128 functions")), is_refused);
        }
    }

    #[test]
    fn a_module_that_finds_no_target_fails_and_names_each() {
        let plan = plan(&mut module(&[("no_such_library", "f"), ("c", "no_such_function")], Options::default()));
        let reason = plan.refusal.unwrap();
        assert!(reason.contains("no library or file `no_such_library`"), "{reason}");
        assert!(reason.contains("no function `no_such_function`"), "{reason}");
    }
}
