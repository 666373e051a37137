//! Opens of files: rows of the latest, and counts by process. Kernel side: bpf/opensnoop.bpf.c.

use super::shared::by_process::{ByProcess, EXEC, EXIT};
use super::shared::latest::{Columns, EventCounts, Latest};
use crate::bpf::types::{self, open_counts, open_event, open_row};
use crate::host::until_nul;
use crate::kit::*;
use crate::{by_process, metrics, options};

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "file.open.pid" | "bpf.opensnoop.pid" INSTANT NONE "process that opened the file";
        UID: u32 = 1 "file.open.uid" | "bpf.opensnoop.uid" INSTANT NONE "user that the process runs as";
        FD: i32 = 2 "file.open.fd" | "bpf.opensnoop.fd" INSTANT NONE "descriptor of the file, -1 if the open failed";
        ERR: i32 = 3 "file.open.err" | "bpf.opensnoop.err" INSTANT NONE "error number, 0 if the open succeeded";
        FLAGS: i32 = 4 "file.open.flags" | "bpf.opensnoop.flags" INSTANT NONE "flags of the call";
        COMM: str = 5 "file.open.comm" | "bpf.opensnoop.comm" INSTANT NONE "command name of the process";
        FNAME: str = 6 "file.open.fname" | "bpf.opensnoop.fname" INSTANT NONE "name of the file as the process gave it";
        TIME: u64 = 7 "file.open.time" INSTANT MSEC "when the call returned, since 1970";
        SEQ: u64 = 8 "file.open.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 9 "file.open.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest opens of files", 410, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, event: &open_event) {
        row.set(PID, event.pid)
            .set(UID, event.uid)
            .set(FD, event.ret.max(-1))
            .set(ERR, event.ret.saturating_neg().max(0))
            .set(FLAGS, event.flags as i32)
            .text(COMM, until_nul(&event.comm))
            .text(FNAME, until_nul(&event.name));
    }
}

mod counts {
    use super::*;

    metrics! {
        ALL: u64 = 0 "file.opens.all.count" COUNTER COUNT "opens of files";
        FAILED: u64 = 1 "file.opens.failed.count" COUNTER COUNT "opens of files that failed";
        LOST: u64 = 2 "file.opens.lost.count" | "bpf.opensnoop.lost" COUNTER COUNT "opens of files that got no row, of those that are to have one";
    }

    pub static TABLE: TableSpec = TableSpec::single("all opens of files", 411, METRICS);

    pub static ALL_EVENTS: EventCounts<open_row> = EventCounts {
        table: &TABLE,
        sums: Sums { rows: ROWS, cells: &[(ALL, &[open_row::all]), (FAILED, &[open_row::failed])] },
        lost: LOST,
    };
}

mod processes {
    use super::*;

    // In the order of `struct open_counts`.
    metrics! {
        _: u64 = 0 "proc.opens.all.count" COUNTER COUNT "opens of files, by process";
        _: u64 = 1 "proc.opens.failed.count" COUNTER COUNT "opens of files that failed, by process";
    }

    pub static TABLE: TableSpec = TableSpec::by_process("each process that opens files", 412, METRICS);
}

by_process! {
    "open", open_counts;
    latest "open", open_event, rows::COLUMNS;
    rows ROWS: open_row = "open_rows";
}

options! {
    process;
    /// Only this user counts; -1: all users.
    uid: User = User(None);
    /// Rows only of opens that failed.
    failed: bool = false;
    /// Rows of opens, which record names of files. False: opens are only counted.
    rows: bool = true;
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
    bpf_names;
}

/// The end of an open: in the function behind open, openat, openat2 and creat, or else of each system call.
static OPEN: Hook = Hook {
    name: "do_sys_openat2",
    tiers: &[
        Tier { kind: "fexit", programs: &["fexit__do_sys_openat2"] },
        Tier { kind: "tp_btf of every system call", programs: &["tp__sys_exit___opens"] },
        Tier { kind: "raw_tp of every system call", programs: &["raw__sys_exit___opens"] },
    ],
    needs: "fexit, or CONFIG_FTRACE_SYSCALLS, on a kernel with BTF",
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "opensnoop",
    summary: "opens of files: name, flags, descriptor or error",
    overhead: Overhead::medium("0.9 us per open; without fexit 90 ns per system call, too"),
    needs: "fexit or CONFIG_FTRACE_SYSCALLS",
    tables: &[&rows::TABLE, &counts::TABLE, &processes::TABLE],
    options: OPTIONS,
    hooks: &[&OPEN, &EXIT, &EXEC],
    maps: MAPS,
    needs_to_load: &[Need::FilesOfProcesses],
    needs_to_run: &[Need::Processes],
    make: |setup| Ok(Box::new(Opensnoop::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Opensnoop {
    options: Options,
    latest: Latest<open_event>,
    processes: ByProcess<open_counts, 2>,
}

impl Opensnoop {
    fn new(options: Options) -> Opensnoop {
        let latest = Latest::of_records(&LATEST, options.process_count, options.buffer_page_count);
        let processes = ByProcess::new(&PROCESSES, false);
        Opensnoop { options, latest, processes }
    }
}

impl Module for Opensnoop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let Options { uid, failed, rows, .. } = self.options;
        constants.open_filter = plan.only(&self.options.process);
        (constants.open_by_uid, constants.open_uid) = (uid.0.is_some(), uid.0.unwrap_or_default());
        (constants.open_shown, constants.open_failed) = (rows, failed);
        constants.open_ring = self.latest.plan(host, plan);
        plan.entries(ROWS.def.name, host.cpus);
        self.processes.plan(&SPEC, host, plan, constants);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let running = Latest::add_tables(
            Running::of(*self),
            &rows::TABLE,
            &counts::ALL_EVENTS,
            |module| &mut module.latest,
            rows::put,
        );
        ByProcess::add_table(running, &processes::TABLE, |module| &mut module.processes).started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    #[test]
    fn an_open_has_a_descriptor_or_an_error() {
        let fake = Fake::new().with(ROWS, 2).with(LOST, 2);
        for (pid, ret) in [(1, 3), (2, -2), (3, 0)] {
            let mut event = open_event { pid, ret, uid: 5, flags: 0o101, ..open_event::default() };
            event.comm[..2].copy_from_slice(b"sh");
            event.name[..7].copy_from_slice(b"/etc/\x01x");
            fake.record(&record_bytes(&event));
        }
        let running = Box::new(Opensnoop::new(Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        let row = |row: usize| [0, 2, 3].map(|column| table.value(row, column).unwrap());
        let is = |pid, fd, err| [Atom::U32(pid), Atom::I32(fd), Atom::I32(err)];
        assert_eq!([row(2), row(1), row(0)], [is(1, 3, 0), is(2, -1, 2), is(3, 0, 0)]);
        assert_eq!((table.value(0, 1), table.value(0, 4)), (Some(Atom::U32(5)), Some(Atom::I32(0o101))));
        assert_eq!(running.events(), Some(3));
    }

    #[test]
    fn counts_are_summed_over_cpus() {
        let fake = Fake::new().with(ROWS, 2).with(LOST, 2);
        for cpu in 0..2 {
            fake.set(ROWS, cpu, open_row::all, 10);
            fake.set(ROWS, cpu, open_row::failed, 3);
            fake.set(LOST, cpu, latest_stat::crowded, 4);
        }
        let running = Box::new(Opensnoop::new(Options::default())).start(&fake);
        let table = fake.filled(&counts::TABLE, &running);
        assert_eq!([0, 1, 2].map(|column| table.number(0, column)), [20, 6, 8].map(Some));
    }
}
