//! Calls, failures and durations of kernel functions that the configuration names. Kernel side: bpf/kprobe_hits.bpf.c.

use super::shared::hits::{losses_of_calls, CallTimes, TargetList, TIMED as WITH_HISTOGRAMS};
use crate::bpf::types::{self, kp_row, kp_time, set_calls};
use crate::kit::*;
use crate::process::ProcessSlots;
use crate::{maps, metrics, options};

metrics! {
    COUNT: u64 = 0 "kprobe.hits.count" COUNTER COUNT "calls of each kernel function";
    FAIL: u64 = 1 "kprobe.hits.fail" COUNTER COUNT "calls of each kernel function that failed";
    AVERAGE: u64 = 2 "kprobe.hits.latency.avg" INSTANT NSEC "average time of the calls of each kernel function";
    TOTAL: u64 = 3 "kprobe.hits.latency.cml" COUNTER NSEC "time of all calls of each kernel function";
}

maps! {
    rows ROWS: kp_row = "kp_rows";
    rows DETAILS: kp_row = "kp_details";
    rows TIMES: kp_time = "kp_times";
    private STARTS: set_calls = "kp_starts";
}

options! {
    process;
    /// Required. Kernel functions, each kprobe:FUNCTION; in a file also FUNCTION alone.
    kprobes: ProbeList = ProbeList::default(), for example "kprobe:vfs_open";
    /// Only calls with this error. The sign does not matter.
    errno: Errno = Errno::default();
    /// A call has failed if its return value, signed and in the width of its type, compares so.
    ret_chk: ReturnCheck = ReturnCheck::default();
    /// Add an instance per process, PID::NAME, for up to 128 processes; needs `process`.
    details: bool = false;
    /// Measure how long calls take; where a function calls itself, the outermost.
    latency: bool = false;
    /// Fill bcc.kprobe.time, too, for up to 128 functions; includes `latency`.
    histograms: bool = false;
    histograms;
}

mod times {
    const NOTE: &str = "A call inside another one of the same function by the same thread is part of that one's time. By kretprobe, without fexit, calls that wait may be missed.";
    crate::histograms! {
        "kprobe";
        tables "each kernel function", "each bucket of each kernel function", 313 314 345, Shape::Named { max: WITH_HISTOGRAMS }, if "histograms";
        1 "time" "calls of the kernel function" "from call to return" NOTE;
        with NESTED: u64 = 0 "time.nested.count" COUNTER COUNT "calls inside another call of the kernel function";
    }
    use super::*;

    pub static OF_FUNCTIONS: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[SeriesRows::by_number(TIMES).part(kp_time::times)],
        counters: &[(NESTED, SeriesRows::by_number(ROWS).part(kp_row::nested))],
        ..SeriesDef::NEW
    };
}

/// Largest number of functions in a configuration; each costs a program or two.
const FUNCTIONS: usize = 1024;

const NEEDS: &str = "a kernel with fexit (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS) or kprobes (CONFIG_KPROBE_EVENTS)";

/// The hook for each function. kretprobes come last: they drop calls that block (`maxactive`), fexit does not.
static CALLS: Hook = Hook {
    name: "kernel function",
    tiers: &[
        Tier { kind: "fexit", programs: &["each_fexit__kprobe_hits"] },
        Tier { kind: "kretprobe", programs: &["each_kretprobe__kprobe_hits"] },
    ],
    needs: NEEDS,
};

static TIMED: Hook = Hook {
    name: "kernel function, timed",
    tiers: &[
        Tier { kind: "fexit", programs: &["each_fentry__kprobe_hits", "each_fexit__kprobe_hits"] },
        Tier { kind: "kretprobe", programs: &["each_kprobe__kprobe_hits", "each_kretprobe__kprobe_hits"] },
    ],
    needs: NEEDS,
};

static TABLE: TableSpec = TableSpec {
    cluster: 103,
    shape: Shape::Named { max: FUNCTIONS * (ProcessSlots::COUNT + 1) },
    metrics: METRICS,
    ..TableSpec::NEW
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "kprobe_hits",
    summary: "calls of kernel functions",
    overhead: Overhead::medium("32 ns per call"),
    needs: "fentry (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS) or kprobes (CONFIG_KPROBE_EVENTS)",
    tables: &[&TABLE, &times::TABLE, &times::BY_BUCKET, &times::IN_SECONDS],
    options: OPTIONS,
    hooks: &[&CALLS, &TIMED],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        let list = options.kprobes.required(setup.section, "kprobes")?;
        let names = list.entries().iter().map(|entry| entry.strip_prefix("kprobe:").unwrap_or(entry).trim());
        let functions = ProbeList::new(names).entries().to_vec();
        if functions.len() > FUNCTIONS {
            return Err(setup.section.reject("kprobes", format!("expected at most {FUNCTIONS} functions")));
        }
        if options.histograms && functions.len() > WITH_HISTOGRAMS {
            let expected = format!("expected at most {WITH_HISTOGRAMS} functions in kprobes");
            return Err(setup.section.reject("histograms", expected));
        }
        if options.details && options.process.is_all() {
            setup.section.warn("details have no effect without the option process");
        }
        Ok(Box::new(KprobeHits::new(functions, options)))
    },
    ..Spec::NEW
};

struct KprobeHits {
    functions: Vec<String>,
    targets: TargetList,
    options: Options,
    /// True if there is an instance per process.
    detailed: bool,
    timed: bool,
    times: Option<CallTimes>,
}

impl KprobeHits {
    fn new(functions: Vec<String>, options: Options) -> KprobeHits {
        let timed = options.latency || options.histograms;
        let detailed = options.details && !options.process.is_all();
        let targets = TargetList::new(if timed { &TIMED } else { &CALLS });
        KprobeHits { functions, targets, options, detailed, timed, times: None }
    }

    fn find(&mut self, plan: &mut Plan) {
        let found =
            |function: &String| (function.clone(), Ok(vec![(function.clone(), Target::Function(function.clone()))]));
        self.targets.find(plan, self.functions.iter().map(found));
    }

    /// Sets the metrics to the sums over rows.
    fn set(&self, cells: RowMut<'_>, rows: &[Row<'_, kp_row>], with_failures: bool) {
        let sum = |field| rows.iter().map(|row| row.get(field)).sum::<u64>();
        let mut cells = cells.set(COUNT, sum(kp_row::calls));
        if with_failures {
            cells = cells.set(FAIL, sum(kp_row::fails));
        }
        if self.timed {
            let (ns, calls) = (sum(kp_row::ns), sum(kp_row::timed));
            cells.set(AVERAGE, ns.checked_div(calls).unwrap_or(0)).set(TOTAL, ns);
        }
    }
}

impl Module for KprobeHits {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let count = self.functions.len();
        self.find(plan);
        constants.kp_targets = count as u32;
        constants.kp_start_mask = plan_set_table(plan, STARTS.name, if self.timed { by_thread(host) } else { 1 });
        constants.kp_errno = self.options.errno.0 as i32;
        constants.kp_compare = self.options.ret_chk.code();
        constants.kp_value = self.options.ret_chk.value;
        constants.kp_filter = plan.only(&self.options.process);
        constants.kp_detailed = self.detailed;
        if self.detailed {
            constants.filter_detailed |= constants.kp_filter;
        }
        constants.kp_timed = self.timed;
        constants.kp_histograms = self.options.histograms;
        plan.entries(TIMES.def.name, if self.options.histograms { host.cpus * count } else { 1 });
        plan.entries(ROWS.def.name, host.cpus * count);
        plan.entries(DETAILS.def.name, if self.detailed { ProcessSlots::COUNT * count } else { 1 });
    }

    fn start(mut self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let Options { histograms, ref window, buckets, prometheus, .. } = self.options;
        self.times =
            histograms.then(|| CallTimes::new(&[&times::OF_FUNCTIONS], window.window(), buckets, self.targets.clone()));
        Running::of(*self)
            .table(&TABLE, Self::refresh)
            .when(histograms, |running| {
                CallTimes::add_tables(running, &[&times::OF_FUNCTIONS], prometheus, |module| module.times.as_mut())
            })
            .tick(|module, kernel| ProcessSlots::empty(kernel, DETAILS, module.functions.len()))
            .losses(Self::losses)
            .started()
    }
}

impl KprobeHits {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        let count = self.functions.len();
        let attached: Vec<(usize, &str)> = self.targets.attached(kernel).collect();
        for &(number, name) in &attached {
            let rows: Vec<Row<'_, kp_row>> = kernel.rows(ROWS).iter().skip(number).step_by(count).collect();
            self.set(table.named(name.as_bytes()), &rows, true);
        }
        for (slot, pid) in ProcessSlots::living(kernel) {
            for &(number, name) in &attached {
                let row = kernel.rows(DETAILS).get(slot * count + number);
                self.set(table.named(format!("{pid}::{name}").as_bytes()), row.as_slice(), false);
            }
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let rows = kernel.rows(ROWS);
        losses_of_calls(rows.sum(kp_row::unmatched), rows.sum(kp_row::displaced), each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;
    use crate::config::Config;
    use crate::pcp::Atom;

    fn plan(lines: &str) -> Result<(Plan, types::rodata), String> {
        let text = format!("[k]\n{lines}\n");
        let config = Config::parse("test.conf", text.as_bytes()).unwrap();
        let section = config.section("k").unwrap();
        let setup = Setup::new(&section);
        let mut module = (SPEC.make)(&setup).map_err(|error| error.to_string())?;
        let (mut plan, mut constants) = (Plan::default(), crate::bpf::constants());
        let host = Host { cpus: 2, ..Host::SMALL };
        module.plan(&host, &mut plan, &mut constants);
        Ok((plan, constants))
    }

    fn module(functions: &[&str], timed: bool, detailed: bool) -> KprobeHits {
        let functions = functions.iter().map(|name| (*name).to_string()).collect();
        let mut module = KprobeHits::new(functions, Options { latency: timed, ..Options::default() });
        module.detailed = detailed;
        module.find(&mut Plan::default());
        module
    }

    #[test]
    fn options_become_checked_constants() {
        let (plan, constants) =
            plan("kprobes = kprobe:vfs_open, kprobe:tcp_v4_rcv.part.0, kprobe:vfs_open\nret_chk = < -1\nerrno = -2")
                .unwrap();
        let targets: Vec<String> = plan.targets.iter().map(|(_, target, _)| target.to_string()).collect();
        assert_eq!(targets, ["vfs_open", "tcp_v4_rcv.part.0"]);
        assert!(plan.targets.iter().all(|(hook, _, _)| *hook == &CALLS));
        assert_eq!((constants.kp_errno, constants.kp_compare, constants.kp_value), (2, 2, -1));
        assert_eq!((constants.kp_targets, constants.kp_timed, constants.kp_detailed), (2, false, false));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        for (lines, wanted) in [
            ("kprobes = kprobe:f\nret_chk = != 0; exit(1)", "[k] ret_chk: expected an operator"),
            ("kprobes = kprobe:f\nerrno = ENOSUCH", "[k] errno: expected an error number"),
            ("kprobes =", "[k] kprobes: there is no value; write `kprobes = kprobe:vfs_open`"),
            ("", "[k] has no option `kprobes`; add a line `kprobes = kprobe:vfs_open`"),
        ] {
            let error = plan(lines).err().unwrap();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn averages_are_totals_by_counts_and_processes_do_not_mix() {
        let fake = Fake::new().with(ROWS, 4).out_of_reach(1);
        for cpu in [0, 2] {
            fake.set(ROWS, cpu, kp_row::calls, 10);
            fake.set(ROWS, cpu, kp_row::fails, 1);
            fake.set(ROWS, cpu, kp_row::ns, 500);
            fake.set(ROWS, cpu, kp_row::timed, 5);
        }
        let mut module = module(&["f", "refused"], true, false);
        for _ in 0..2 {
            let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
            assert_eq!((table.len(), table.name(0)), (1, "f".into()));
            let values: Vec<_> = (0..4).map(|column| table.value(0, column)).collect();
            assert_eq!(values, [20, 2, 100, 1000].map(|value| Some(Atom::U64(value))));
        }
    }

    #[test]
    fn functions_have_histograms_and_nested_calls() {
        let (plan, constants) = plan("kprobes = kprobe:f, kprobe:refused\nhistograms = True").unwrap();
        assert!(plan.targets.iter().all(|(hook, _, _)| *hook == &TIMED));
        assert_eq!((constants.kp_timed, constants.kp_histograms), (true, true));
        let fake = Fake::new().with(ROWS, 4).with(TIMES, 4).with(DETAILS, 1).out_of_reach(1);
        for row in [0, 2] {
            fake.row(TIMES, row).part(kp_time::times).set(fine_hist::buckets.nth(Fine::bucket(3000)), 5);
            fake.set(ROWS, row, kp_row::nested, 2);
        }
        let options = Options { histograms: true, ..Options::default() };
        let mut module = KprobeHits::new(vec!["f".into(), "refused".into()], options);
        module.find(&mut Plan::default());
        let table = fake.filled(&times::TABLE, &Box::new(module).start(&fake));
        let nested = times::TABLE.column("kprobe.time.nested.count");
        assert_eq!((table.names(), table.number(0, 0), table.number(0, nested)), (vec!["f".into()], Some(10), Some(4)));
    }

    #[test]
    fn without_latency_its_metrics_have_no_values() {
        let fake = Fake::new().with(ROWS, 2);
        let table = fake.filled_by(&TABLE, |kernel, table| module(&["f"], false, false).refresh(kernel, table));
        assert_eq!((table.value(0, 0), table.value(0, 2)), (Some(Atom::U64(0)), None));
    }

    #[test]
    fn details_are_of_living_processes() {
        let me = std::process::id();
        let fake = ProcessSlots::fake(&[PID_OF_NOBODY, me]).with(ROWS, 2).with(DETAILS, ProcessSlots::COUNT);
        let mut module = module(&["f"], false, true);
        fake.set(DETAILS, 0, kp_row::calls, 7);
        fake.set(DETAILS, 1, kp_row::calls, 9);
        let table = fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table));
        assert_eq!((table.len(), table.name(1)), (2, format!("{me}::f")));
        assert_eq!((table.value(1, 0), table.value(1, 1)), (Some(Atom::U64(9)), None), "no failures in details");
    }

    /// A process identifier above all that the kernel assigns.
    const PID_OF_NOBODY: u32 = 1 << 22;
}
