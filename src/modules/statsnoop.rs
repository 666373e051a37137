//! Questions about files by name, such as stat: rows of the latest, and counts. Kernel side: bpf/statsnoop.bpf.c.

use super::shared::latest::{Columns, EventCounts, Latest};
use crate::bpf::types::{self, set_numbers, stat_event, stat_row};
use crate::host::until_nul;
use crate::kit::*;
use crate::{function_return, latest, metrics, options};

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "file.stat.pid" | "bpf.statsnoop.pid" INSTANT NONE "process that asked";
        UID: u32 = 1 "file.stat.uid" INSTANT NONE "user that the process runs as";
        COMM: str = 2 "file.stat.comm" | "bpf.statsnoop.comm" INSTANT NONE "command name of the process that asked";
        PATH: str = 3 "file.stat.path" | "bpf.statsnoop.path" INSTANT NONE "name of the file as the process gave it";
        RET: i32 = 4 "file.stat.ret" | "bpf.statsnoop.ret" INSTANT NONE "0, or -1 if the call failed";
        ERR: i32 = 5 "file.stat.err" | "bpf.statsnoop.err" INSTANT NONE "error number, 0 if the call succeeded";
        TIME: u64 = 6 "file.stat.time" INSTANT MSEC "when the call returned, since 1970";
        SEQ: u64 = 7 "file.stat.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 8 "file.stat.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest calls of stat and its like", 496, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, event: &stat_event) {
        row.set(PID, event.pid)
            .set(UID, event.uid)
            .text(COMM, until_nul(&event.comm))
            .text(PATH, until_nul(&event.name))
            .set(RET, event.ret.clamp(-1, 0))
            .set(ERR, event.ret.saturating_neg().max(0));
    }
}

mod counts {
    use super::*;

    metrics! {
        ALL: u64 = 0 "file.stats.all.count" COUNTER COUNT "calls of stat and its like";
        FAILED: u64 = 1 "file.stats.failed.count" COUNTER COUNT "calls of stat and its like that failed";
        LOST: u64 = 2 "file.stats.lost.count" | "bpf.statsnoop.lost" COUNTER COUNT "calls of stat and its like that got no row, of those that are to have one";
    }

    pub static TABLE: TableSpec = TableSpec::single("all calls of stat and its like", 2012, METRICS);

    pub static ALL_EVENTS: EventCounts<stat_row> = EventCounts {
        table: &TABLE,
        sums: Sums { rows: ROWS, cells: &[(ALL, &[stat_row::all]), (FAILED, &[stat_row::failed])] },
        lost: LOST,
    };
}

latest! {
    "stat", stat_event, rows::COLUMNS;
    rows ROWS: stat_row = "stat_rows";
    private CALLS: set_numbers = "stat_calls";
}

options! {
    process;
    /// Rows only of calls that failed.
    failed: bool = false;
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
    bpf_names;
}

const NEEDS: &str = "fexit or kprobes, on a kernel with BTF";

static FILE: Hook = function_return!("vfs_statx", NEEDS);
static FILE_SYSTEM: Hook = function_return!("user_statfs", NEEDS);

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "statsnoop",
    summary: "calls of stat, statx and statfs: name and error",
    overhead: Overhead::medium("0.9 us per call"),
    needs: NEEDS,
    tables: &[&rows::TABLE, &counts::TABLE],
    options: OPTIONS,
    hooks: &[&FILE, &FILE_SYSTEM],
    maps: MAPS,
    make: |setup| Ok(Box::new(Statsnoop::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Statsnoop {
    options: Options,
    latest: Latest<stat_event>,
}

impl Statsnoop {
    fn new(options: Options) -> Statsnoop {
        let latest = Latest::of_records(&LATEST, options.process_count, options.buffer_page_count);
        Statsnoop { options, latest }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        each("start-unseen: calls whose name was not seen", kernel.rows(ROWS).sum(stat_row::unseen));
    }
}

impl Module for Statsnoop {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.stat_filter = plan.only(&self.options.process);
        constants.stat_failed = self.options.failed;
        constants.stat_ring = self.latest.plan(host, plan);
        constants.stat_calls_mask = plan_set_table(plan, CALLS.name, by_thread(host));
        plan.entries(ROWS.def.name, host.cpus);
        plan.attach(&FILE);
        plan.attach(&FILE_SYSTEM);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        Latest::add_tables(
            Running::of(*self),
            &rows::TABLE,
            &counts::ALL_EVENTS,
            |module| &mut module.latest,
            rows::put,
        )
        .losses(Self::losses)
        .started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    #[test]
    fn a_call_has_a_name_and_an_error() {
        let fake = Fake::new().with(ROWS, 2).with(LOST, 2);
        for (pid, ret) in [(1, 0), (2, -2)] {
            let mut event = stat_event { pid, ret, uid: 5, ..stat_event::default() };
            event.comm[..2].copy_from_slice(b"sh");
            event.name[..4].copy_from_slice(b"/etc");
            fake.record(&record_bytes(&event));
        }
        fake.set(ROWS, 0, stat_row::all, 2);
        fake.set(ROWS, 1, stat_row::failed, 1);
        fake.set(LOST, 1, latest_stat::full, 3);
        fake.set(ROWS, 1, stat_row::unseen, 4);
        let running = Box::new(Statsnoop::new(Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        let row = |row: usize| [0, 3, 4, 5].map(|column| table.value(row, column).unwrap());
        let is = |pid, ret, err| [Atom::U32(pid), Atom::Str(b"/etc"), Atom::I32(ret), Atom::I32(err)];
        assert_eq!([row(1), row(0)], [is(1, 0, 0), is(2, -1, 2)]);
        let table = fake.filled(&counts::TABLE, &running);
        assert_eq!([0, 1, 2].map(|column| table.number(0, column)), [2, 1, 3].map(Some));
        let mut lost = Vec::new();
        running.losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost.iter().sum::<u64>(), 7);
    }
}
