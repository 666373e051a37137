//! Processes that end: rows of the latest, and counts by outcome, signal and cgroup. Kernel side: bpf/exitsnoop.bpf.c.

use super::shared::by_process::EXIT;
use super::shared::cgroups::{counters_by_cgroup, BY_PATH};
use super::shared::latest::{Columns, EventCounts, Latest};
use super::shared::places::{ByPlace, PlacedHistograms};
use crate::bpf::types::{self, exit_counted, exit_event, exit_group, exit_row, exit_signal, mark, place_owner};
use crate::host::until_nul;
use crate::kit::*;
use crate::{beyond, latest, metrics, options, tracepoint};
use nix::sys::signal::Signal;

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "proc.exit.pid" | "bpf.exitsnoop.pid" INSTANT NONE "process that ended";
        TID: u32 = 1 "proc.exit.tid" | "bpf.exitsnoop.tid" INSTANT NONE "its last thread";
        PPID: u32 = 2 "proc.exit.ppid" | "bpf.exitsnoop.ppid" INSTANT NONE "its parent process";
        UID: u32 = 3 "proc.exit.uid" INSTANT NONE "user that it ran as";
        COMM: str = 4 "proc.exit.comm" | "bpf.exitsnoop.comm" INSTANT NONE "its command name";
        CODE: i32 = 5 "proc.exit.exit_code" | "bpf.exitsnoop.exit_code" INSTANT NONE "exit code; 0 for a process that a signal ended";
        SIGNAL: i32 = 6 "proc.exit.sig" | "bpf.exitsnoop.sig" INSTANT NONE "signal that ended the process, 0 if none";
        COREDUMP: u32 = 7 "proc.exit.coredump" | "bpf.exitsnoop.coredump" INSTANT NONE "1 if the process left a core dump, 0 if not";
        KILLER_PID: u32 = 8 "proc.exit.killer_pid" INSTANT NONE "process that sent the signal which ended the process; 0 for the kernel";
        KILLER_COMM: str = 9 "proc.exit.killer_comm" INSTANT NONE "command name of the process that sent the signal";
        AGE: u64 = 10 "proc.exit.age" | "bpf.exitsnoop.age" INSTANT NSEC "time from the start of the process to its end";
        CPU: u64 = 11 "proc.exit.cpu" INSTANT NSEC "processor time of the process, user and system";
        TIME: u64 = 12 "proc.exit.time" INSTANT MSEC "when the process ended, since 1970";
        SEQ: u64 = 13 "proc.exit.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 14 "proc.exit.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest processes that ended", 403, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, event: &exit_event) {
        let status = Status(event.status);
        let row = row
            .set(PID, event.pid)
            .set(TID, event.tid)
            .set(PPID, event.ppid)
            .set(UID, event.uid)
            .text(COMM, until_nul(&event.comm))
            .set(CODE, status.code())
            .set(SIGNAL, status.signal())
            .set(COREDUMP, u32::from(status.left_core()))
            .set(AGE, event.age)
            .set(CPU, event.cpu);
        if status.signal() != 0 {
            row.set(KILLER_PID, event.killer).text(KILLER_COMM, until_nul(&event.killer_comm));
        }
    }
}

mod counts {
    use super::*;

    metrics! {
        ALL: u64 = 0 "proc.exits.all.count" COUNTER COUNT "processes that ended";
        FAILED: u64 = 1 "proc.exits.failed.count" COUNTER COUNT "processes that ended with an exit code other than 0";
        SIGNALLED: u64 = 2 "proc.exits.signalled.count" COUNTER COUNT "processes that a signal ended";
        COREDUMPED: u64 = 3 "proc.exits.coredumped.count" COUNTER COUNT "processes that left a core dump";
        THREADS: u64 = 4 "proc.exits.threads.count" COUNTER COUNT "threads that ended, one of each process among them";
        LOST: u64 = 5 "proc.exits.lost.count" | "bpf.exitsnoop.lost" COUNTER COUNT "processes that ended and got no row, of those that are to have one";
    }

    pub static TABLE: TableSpec = TableSpec::single("all processes that ended", 404, METRICS);

    pub static ALL_EVENTS: EventCounts<exit_row> = EventCounts {
        table: &TABLE,
        sums: Sums {
            rows: COUNTS,
            cells: &[
                (ALL, &[exit_row::all]),
                (FAILED, &[exit_row::failed]),
                (SIGNALLED, &[exit_row::signalled]),
                (COREDUMPED, &[exit_row::coredumped]),
                (THREADS, &[exit_row::threads]),
            ],
        },
        lost: LOST,
    };
}

mod signals {
    use super::*;

    metrics! {
        COUNT: u64 = 0 "proc.exits.signal.count" COUNTER COUNT "processes that ended by a signal, by its name";
    }

    pub static TABLE: TableSpec = TableSpec::numbered("each signal that ended a process", 405, METRICS);

    pub fn fill(kernel: &dyn Kernel, table: &mut Table) {
        let rows = kernel.rows(COUNTS);
        for number in 1..=SIGNALS as i32 {
            let count = rows.sum(exit_row::signals.nth(number as usize - 1));
            if count > 0 {
                table.numbered(number as u32, name(number).as_bytes()).set(COUNT, count);
            }
        }
    }

    /// Returns the name of a signal, as kill(1) has it.
    fn name(number: i32) -> String {
        const FIRST_OF_REAL_TIME: i32 = 34;
        match Signal::try_from(number) {
            Ok(signal) => signal.as_str().to_owned(),
            Err(_) if number >= FIRST_OF_REAL_TIME => format!("SIGRTMIN+{}", number - FIRST_OF_REAL_TIME),
            Err(_) => format!("SIG{number}"),
        }
    }
}

mod cgroups {
    use super::*;

    metrics! {
        ALL: u64 = 0 "cgroup.exits.all.count" COUNTER COUNT "processes that ended, by cgroup";
        FAILED: u64 = 1 "cgroup.exits.failed.count" COUNTER COUNT "processes that ended with an exit code other than 0, by cgroup";
        SIGNALLED: u64 = 2 "cgroup.exits.signalled.count" COUNTER COUNT "processes that a signal ended, by cgroup";
        CPU: u64 = 3 "cgroup.exits.cpu.time" COUNTER NSEC "processor time of processes that ended, by cgroup";
        NAME: str = 4 "cgroup.exits.name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
    }

    pub static BY_CGROUP: ByPlace<exit_group> = ByPlace {
        owners: OWNERS,
        rows: GROUPS,
        marks: MARKS,
        histograms: &[],
        counters: &[
            (ALL, exit_group::all),
            (FAILED, exit_group::failed),
            (SIGNALLED, exit_group::signalled),
            (CPU, exit_group::cpu),
        ],
        name: NAME,
        beyond: beyond!("table-full: processes of cgroups", counted, [exit_group::all]),
    };

    pub static TABLE: TableSpec = TableSpec {
        summary: "each cgroup",
        cluster: 406,
        shape: BY_PATH,
        metrics: METRICS,
        options: &["by_cgroup"],
        ..TableSpec::NEW
    };
}

latest! {
    "exit", exit_event, rows::COLUMNS;
    rows COUNTS: exit_row = "exit_rows";
    rows OWNERS: place_owner = "exit_owners", taken id;
    rows GROUPS: exit_group = "exit_groups", taken used, marked in "exit_marks";
    rows MARKS: mark = "exit_marks";
    private SENT: exit_signal = "exit_signals";
    private COUNTED: exit_counted = "exit_counted";
}

options! {
    process;
    /// Rows only of processes that a signal ended, or that ended with an exit code other than 0.
    failed: bool = false;
    /// Count by cgroup of v2, too.
    by_cgroup: bool = false;
    /// Cgroups with counters of their own; the number is rounded up to a power of two. Other cgroups are the series `other`.
    max_cgroups: CgroupCount = CgroupCount(1024);
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
    bpf_names;
}

static SIGNAL: Hook = tracepoint!("signal_generate");

/// Number of signals (`EXIT_SIGNALS` and _NSIG of the kernel).
const SIGNALS: usize = 64;
/// Number of processes whose last signal is kept (`EXIT_PLACES`), and of those that were counted last.
const PLACES: usize = 1024;

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "exitsnoop",
    summary: "processes that end: exit code, signal and its sender",
    overhead: Overhead::low("0.7 us per process that ends"),
    tables: &[&rows::TABLE, &counts::TABLE, &signals::TABLE, &cgroups::TABLE],
    options: OPTIONS,
    hooks: &[&EXIT, &SIGNAL],
    maps: MAPS,
    make: |setup| Ok(Box::new(Exitsnoop::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

/// A status as wait(2) has it.
#[derive(Clone, Copy)]
struct Status(u32);

impl Status {
    fn signal(self) -> i32 {
        (self.0 & 0x7f) as i32
    }

    fn code(self) -> i32 {
        (self.0 >> 8 & 0xff) as i32
    }

    fn left_core(self) -> bool {
        self.0 & 0x80 != 0
    }
}

struct Exitsnoop {
    options: Options,
    latest: Latest<exit_event>,
    cgroups: Option<PlacedHistograms<exit_group>>,
}

impl Exitsnoop {
    fn new(options: Options) -> Exitsnoop {
        let latest = Latest::of_records(&LATEST, options.process_count, options.buffer_page_count);
        let cgroups = options.by_cgroup.then(|| counters_by_cgroup(&cgroups::BY_CGROUP));
        Exitsnoop { options, latest, cgroups }
    }
}

impl Module for Exitsnoop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        if let Some(cgroups) = &self.cgroups {
            let Some(size) = cgroups.plan(self.options.max_cgroups.places(), host, plan) else { return };
            constants.exit_by_cgroup = true;
            constants.exit_mask = size.mask;
            constants.exit_shift = size.shift;
            constants.exit_shared = size.shift > 0;
        }
        constants.exit_ring = self.latest.plan(host, plan);
        constants.exit_filter = plan.only(&self.options.process);
        constants.exit_failed = self.options.failed;
        plan.attach(&EXIT);
        plan.attach_optional(&SIGNAL);
        plan.entries(COUNTS.def.name, host.cpus);
        plan.entries(SENT.name, PLACES);
        plan.entries(COUNTED.name, PLACES);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let by_cgroup = self.cgroups.is_some();
        Latest::add_tables(
            Running::of(*self),
            &rows::TABLE,
            &counts::ALL_EVENTS,
            |module| &mut module.latest,
            rows::put,
        )
        .at_once(&signals::TABLE, signals::fill)
        .when(by_cgroup, |running| {
            PlacedHistograms::add_table(running, &cgroups::TABLE, |module| module.cgroups.as_mut())
        })
        .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    fn fake() -> Fake {
        Fake::new().with(COUNTS, 2).with(LOST, 2).with(OWNERS, 1024).with(GROUPS, 1025).with(MARKS, 1025)
    }

    #[test]
    fn a_status_is_a_code_or_a_signal_with_its_sender() {
        let fake = fake();
        for (pid, status) in [(1, 3 << 8), (2, 9), (3, 6 | 0x80), (4, 0)] {
            let mut event =
                exit_event { pid, tid: 77, ppid: 5, status, killer: 8, age: 3, cpu: 2, ..exit_event::default() };
            event.comm[..2].copy_from_slice(b"sh");
            event.killer_comm[..4].copy_from_slice(b"kill");
            fake.record(&record_bytes(&event));
        }
        let running = Box::new(Exitsnoop::new(Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        let row = |row: usize| [0, 5, 6, 7].map(|column| table.value(row, column));
        let is =
            |pid, code, signal, core| [Atom::U32(pid), Atom::I32(code), Atom::I32(signal), Atom::U32(core)].map(Some);
        assert_eq!([row(3), row(2), row(1), row(0)], [is(1, 3, 0, 0), is(2, 0, 9, 0), is(3, 0, 6, 1), is(4, 0, 0, 0)]);
        assert_eq!((table.value(2, 8), table.value(2, 9)), (Some(Atom::U32(8)), Some(Atom::Str(b"kill"))));
        assert_eq!((table.value(3, 8), table.value(3, 9)), (None, None), "no signal, no sender");
        assert_eq!(running.events(), Some(4));
    }

    #[test]
    fn counts_are_summed_over_cpus_and_signals_have_names() {
        let fake = fake();
        for cpu in 0..2 {
            fake.set(COUNTS, cpu, exit_row::all, 10);
            fake.set(COUNTS, cpu, exit_row::signals.nth(8), 1);
            fake.set(COUNTS, cpu, exit_row::signals.nth(33), 2);
            fake.set(COUNTS, cpu, exit_row::signals.nth(31), 3);
            fake.set(LOST, cpu, latest_stat::full, 1);
            fake.set(LOST, cpu, latest_stat::crowded, 3);
        }
        let running = Box::new(Exitsnoop::new(Options::default())).start(&fake);
        let table = fake.filled(&counts::TABLE, &running);
        assert_eq!((table.number(0, 0), table.number(0, 5)), (Some(20), Some(8)));
        let table = fake.filled(&signals::TABLE, &running);
        assert_eq!(table.names(), ["SIGKILL", "SIG32", "SIGRTMIN+0"]);
        assert_eq!([0, 1, 2].map(|row| table.number(row, 0)), [2, 6, 4].map(Some));
        let mut losses = Vec::new();
        running.losses(&fake, &mut |_, count| losses.push(count));
        assert_eq!(losses, [2, 6]);
    }
}
