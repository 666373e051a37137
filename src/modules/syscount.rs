//! System calls by name: their number, and their duration. Kernel side: bpf/syscount.bpf.c, with rows by CPU and, for `details`, by
//! process.

mod names;

pub use names::names as system_calls;
#[cfg(test)]
pub use names::of_all_architectures;

use crate::bpf::types::{self, set_numbers, syscall_row, syscall_stat};
use crate::kit::*;
use crate::process::ProcessSlots;
use crate::{maps, metrics, options, tracepoint};

metrics! {
    COUNT: u64 = 0 "proc.syscall.count" COUNTER COUNT "system calls";
    AVERAGE: u64 = 1 "proc.syscall.latency.avg" INSTANT NSEC "average time of a system call";
    TIME: u64 = 2 "proc.syscall.latency.cml" COUNTER NSEC "time of all system calls";
}

maps! {
    rows ROWS: syscall_row = "syscall_rows";
    rows DETAILS: syscall_row = "syscall_procs";
    rows STATS: syscall_stat = "syscall_stats";
    private STARTS: set_numbers = "syscall_starts";
}

options! {
    process;
    /// Only calls with this error.
    errno: Errno = Errno::default();
    /// Only calls that return an error.
    failed: bool = false;
    /// Add an instance per process, PID::NAME, for up to 128 processes; needs `process`.
    details: bool = false;
    /// Measure how long calls take. Every system call of every process then takes 260 ns more than without the module.
    latency: bool = false;
}

static ENTER: Hook = tracepoint!("sys_enter", "a kernel with BTF and CONFIG_FTRACE_SYSCALLS");
static EXIT: Hook = tracepoint!("sys_exit", "a kernel with BTF and CONFIG_FTRACE_SYSCALLS");

static TABLE: TableSpec = TableSpec { cluster: 15, shape: Shape::Numbered, metrics: METRICS, ..TableSpec::NEW };

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "syscount",
    summary: "system calls",
    overhead: Overhead::high("40 ns per system call of every process, and 70 ns for the kernel's slow path"),
    needs: "CONFIG_FTRACE_SYSCALLS",
    tables: &[&TABLE],
    options: OPTIONS,
    hooks: &[&ENTER, &EXIT],
    maps: MAPS,
    counts: &[ROWS.def, STATS.def],
    make: |setup| {
        let mut options = Options::read(setup.section)?;
        if options.details && options.process.is_all() {
            setup.section.warn("details has no effect without process");
            options.details = false;
        }
        Ok(Box::new(Syscount::new(options)))
    },
    ..Spec::NEW
};

/// Number of system calls with a counter; the kernel had 471 in 2026.
const CALLS: usize = 512;

/// Counts of a system call, in the order of the cells of `struct syscall_row`.
#[derive(Clone, Copy, Default)]
struct Cell {
    calls: u64,
    timed: u64,
    ns: u64,
}

struct Syscount {
    options: Options,
    /// Names by number, made up for numbers without one.
    names: Vec<String>,
    /// Number of system calls that are shown even if nobody called them: those that had a name when this was compiled.
    known: usize,
}

impl Syscount {
    fn new(options: Options) -> Syscount {
        let known = names::names();
        let name = |number: usize| match known.get(number) {
            Some(Some(name)) => (*name).to_string(),
            _ => format!("UNDEF{number}"),
        };
        let names = (0..CALLS).map(name).collect();
        Syscount { options, names, known: known.len() }
    }

    /// True if only calls that fail count.
    fn is_selecting(&self) -> bool {
        self.options.failed || self.options.errno != Errno::default()
    }

    /// Sets the values of a row, only if there were calls, so that a client sees which there were.
    fn fill(row: RowMut<'_>, cell: Cell) {
        if cell.calls == 0 {
            return;
        }
        let row = row.set(COUNT, cell.calls);
        if let Some(average) = cell.ns.checked_div(cell.timed) {
            row.set(TIME, cell.ns).set(AVERAGE, average);
        }
    }
}

/// Returns the sums over rows, by number.
fn sum<'a>(rows: impl Iterator<Item = Row<'a, syscall_row>>) -> [Cell; CALLS] {
    let mut sums = [Cell::default(); CALLS];
    for row in rows {
        let mut words = row.words(syscall_row::cells);
        for sum in &mut sums {
            let mut next = || words.next().unwrap_or_default();
            sum.calls += next();
            sum.timed += next();
            sum.ns += next();
        }
    }
    sums
}

/// Returns the identifier of a detail, above those of all calls: process and number side by side. It is below 2^31, since the kernel
/// has no process identifier above 2^22 (PID_MAX_LIMIT).
fn detail_id(pid: u32, number: usize) -> u32 {
    pid << CALLS.ilog2() | number as u32
}

impl Module for Syscount {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let Options { errno, details, latency, .. } = self.options;
        constants.syscall_filter = plan.only(&self.options.process);
        constants.syscall_details = details;
        if details {
            constants.filter_detailed |= constants.syscall_filter;
        }
        constants.syscall_timed = latency;
        constants.syscall_failed = self.is_selecting();
        constants.syscall_errno = errno.0;
        constants.syscall_start_mask = plan_set_table(plan, STARTS.name, if latency { by_thread(host) } else { 1 });
        if latency || !self.is_selecting() {
            plan.attach(&ENTER);
        }
        if latency || self.is_selecting() {
            plan.attach(&EXIT);
        }
        plan.entries(ROWS.def.name, host.cpus);
        plan.entries(STATS.def.name, host.cpus);
        plan.entries(DETAILS.def.name, if details { ProcessSlots::COUNT } else { 1 });
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Running::of(*self)
            .quick(&TABLE, Self::refresh)
            .tick(|_, kernel| ProcessSlots::empty(kernel, DETAILS, 1))
            .losses(Self::losses)
            .started()
    }
}

impl Syscount {
    fn refresh(&mut self, kernel: &dyn Kernel, table: &mut Table) {
        let cells = sum(kernel.rows(ROWS).iter());
        for (number, (name, cell)) in self.names.iter().zip(cells).enumerate() {
            if number < self.known || cell.calls > 0 {
                Self::fill(table.numbered(number as u32, name.as_bytes()), cell);
            }
        }
        for (slot, pid) in ProcessSlots::living(kernel) {
            let cells = sum(kernel.rows(DETAILS).get(slot).into_iter());
            for (number, (name, cell)) in
                self.names.iter().zip(cells).enumerate().filter(|(_, (_, cell))| cell.calls > 0)
            {
                Self::fill(table.numbered(detail_id(pid, number), format!("{pid}::{name}").as_bytes()), cell);
            }
        }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let stats = kernel.rows(STATS);
        each(
            "foreign: calls of 32-bit programs, or with numbers from 512 on, which are not shown: they have other names",
            stats.sum(syscall_stat::foreign),
        );
        each("untimed: calls whose time is not known because too many threads run", stats.sum(syscall_stat::displaced));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn module(options: &str) -> Syscount {
        let config = Config::parse("t.conf", format!("[syscount]\n{options}\n").as_bytes()).unwrap();
        Syscount::new(Options::read(&config.section("syscount").unwrap()).unwrap())
    }

    fn set(fake: &Fake, map: Rows<syscall_row>, row: usize, number: usize, cell: [u64; 3]) {
        fake.row(map, row).part(syscall_row::cells.nth(number)).write(&cell);
    }

    /// Returns the name and the values of the row with this identifier.
    fn row(table: &Table, id: u32) -> (String, [Option<u64>; 3]) {
        let slot = table.keys().iter().position(|key| matches!(key, Key::Numbered(number, _) if *number == id));
        let slot = slot.unwrap_or_else(|| panic!("no row {id}"));
        (table.name(slot), [0, 1, 2].map(|column| table.number(slot, column)))
    }

    fn refreshed(fake: &Fake, module: &mut Syscount) -> Table {
        fake.filled_by(&TABLE, |kernel, table| module.refresh(kernel, table))
    }

    #[test]
    fn cpus_add_up_and_the_average_is_total_by_count() {
        let fake = Fake::new().with(ROWS, 2);
        set(&fake, ROWS, 0, 3, [4, 3, 300]);
        set(&fake, ROWS, 1, 3, [1, 1, 100]);
        let mut module = module("latency = True");
        for _ in 0..2 {
            let table = refreshed(&fake, &mut module);
            assert_eq!(row(&table, 3).1, [Some(5), Some(100), Some(400)]);
        }
    }

    #[test]
    fn named_calls_are_instances_and_only_made_ones_have_values() {
        let fake = Fake::new().with(ROWS, 1);
        set(&fake, ROWS, 0, 0, [1, 0, 0]);
        let table = refreshed(&fake, &mut module(""));
        assert_eq!(table.len(), names::names().len());
        assert_eq!(row(&table, 0).1, [Some(1), None, None]);
        assert_eq!(row(&table, 470), ("listns".into(), [None; 3]));
    }

    #[test]
    fn calls_from_424_on_count_and_nameless_ones_are_undefined() {
        let fake = Fake::new().with(ROWS, 1);
        for number in [400, 424, 437, 511] {
            set(&fake, ROWS, 0, number, [7, 0, 0]);
        }
        let table = refreshed(&fake, &mut module(""));
        let count = [Some(7), None, None];
        assert_eq!(row(&table, 400), ("UNDEF400".into(), count));
        assert_eq!(row(&table, 424), ("pidfd_send_signal".into(), count));
        assert_eq!(row(&table, 437), ("openat2".into(), count));
        assert_eq!(row(&table, 511), ("UNDEF511".into(), count));
    }

    #[test]
    fn details_are_a_row_for_each_call_of_each_living_process() {
        let me = std::process::id();
        let fake = ProcessSlots::fake(&[PID_OF_NOBODY, me]).with(ROWS, 1).with(DETAILS, ProcessSlots::COUNT);
        let mut module = module(&format!("process = {me}\ndetails = True"));
        set(&fake, DETAILS, 0, 3, [1, 0, 0]);
        set(&fake, DETAILS, 1, 3, [9, 0, 0]);
        let table = refreshed(&fake, &mut module);
        let name = module.names[3].clone();
        assert_eq!(row(&table, me << 9 | 3), (format!("{me}::{name}"), [Some(9), None, None]));
        assert_eq!(table.len(), module.known + 1);
    }

    /// A process identifier above all that the kernel assigns.
    const PID_OF_NOBODY: u32 = 1 << 22;

    #[test]
    fn identifiers_of_details_are_above_those_of_calls_and_fit() {
        assert_eq!(detail_id(1, 0), 512);
        assert_eq!(detail_id((1 << 22) - 1, 511), (1 << 31) - 1);
    }

    #[test]
    fn only_the_tracepoints_that_are_needed_are_attached() {
        let host = Host { cpus: 2, ..Host::SMALL };
        for (options, hooks) in [
            ("", &["sys_enter"][..]),
            ("failed = True", &["sys_exit"]),
            ("errno = ENOENT", &["sys_exit"]),
            ("latency = True", &["sys_enter", "sys_exit"]),
            ("latency = True\nfailed = True", &["sys_enter", "sys_exit"]),
        ] {
            let mut plan = Plan::default();
            let mut constants = crate::bpf::constants();
            module(options).plan(&host, &mut plan, &mut constants);
            assert_eq!(plan.hooks.iter().map(|(hook, _)| hook.name).collect::<Vec<_>>(), hooks, "{options}");
            assert_eq!(constants.syscall_errno, if options.contains("ENOENT") { 2 } else { 0 });
        }
    }
}
