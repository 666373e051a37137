//! Processes that the kernel kills for want of memory: rows of the latest, and counts by cgroup. Kernel side: bpf/oomkill.bpf.c.

use super::shared::cgroups::{counters_by_cgroup, BY_PATH};
use super::shared::latest::{Columns, EventCounts, Latest};
use super::shared::places::{ByPlace, PlacedHistograms};
use crate::bpf::types::{self, mark, oom_domain, oom_event, oom_group, oom_row, place_owner};
use crate::host::{page_size, until_nul};
use crate::kit::*;
use crate::{beyond, function_entry, latest, metrics, options, tracepoint};

mod rows {
    use super::*;

    metrics! {
        FPID: u32 = 0 "mem.oom.fpid" | "bpf.oomkill.fpid" INSTANT NONE "process whose allocation found no memory";
        FCOMM: str = 1 "mem.oom.fcomm" | "bpf.oomkill.fcomm" INSTANT NONE "command name of the process whose allocation found no memory";
        TPID: u32 = 2 "mem.oom.tpid" | "bpf.oomkill.tpid" INSTANT NONE "process that was killed";
        TCOMM: str = 3 "mem.oom.tcomm" | "bpf.oomkill.tcomm" INSTANT NONE "command name of the process that was killed";
        UID: u32 = 4 "mem.oom.uid" INSTANT NONE "user of the process that was killed";
        PAGES: u64 = 5 "mem.oom.pages" | "bpf.oomkill.pages" INSTANT NONE "memory that was used up, in pages: the limit of the cgroup, or all memory and swap";
        LIMITED: u32 = 6 "mem.oom.limited" INSTANT NONE "1 if the limit of a cgroup was reached, 0 if the machine had no memory left";
        RSS: u64 = 7 "mem.oom.rss" INSTANT KBYTE "resident memory of the process that was killed";
        TIME: u64 = 8 "mem.oom.time" INSTANT MSEC "when the process was killed, since 1970";
        SEQ: u64 = 9 "mem.oom.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 10 "mem.oom.cgroup_path" INSTANT NONE "path of the cgroup of the process that was killed, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest processes that were killed", 407, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(mut row: RowMut<'_>, event: &oom_event) {
        row = row.set(FPID, event.fpid).text(FCOMM, until_nul(&event.fcomm)).set(TPID, event.tpid);
        if event.has_task != 0 {
            row =
                row.text(TCOMM, until_nul(&event.tcomm)).set(UID, event.uid).set(RSS, event.rss * (page_size() / 1024));
        }
        if event.known != 0 {
            row.set(PAGES, event.pages).set(LIMITED, event.limited);
        }
    }
}

mod counts {
    use super::*;

    metrics! {
        KILLS: u64 = 0 "mem.oom.kills.count" COUNTER COUNT "processes that were killed for want of memory";
        LOST: u64 = 1 "mem.oom.lost.count" | "bpf.oomkill.lost" COUNTER COUNT "processes that were killed and got no row";
    }

    pub static TABLE: TableSpec = TableSpec::single("all processes that were killed", 408, METRICS);

    pub static ALL_EVENTS: EventCounts<oom_row> =
        EventCounts { table: &TABLE, sums: Sums { rows: COUNTS, cells: &[(KILLS, &[oom_row::kills])] }, lost: LOST };
}

mod cgroups {
    use super::*;

    metrics! {
        KILLS: u64 = 0 "cgroup.oom.kills.count" COUNTER COUNT "processes that were killed for want of memory, by cgroup";
        NAME: str = 1 "cgroup.oom.name" DISCRETE NONE "path of the cgroup, for the variables of a dashboard";
    }

    pub static BY_CGROUP: ByPlace<oom_group> = ByPlace {
        owners: OWNERS,
        rows: GROUPS,
        marks: MARKS,
        histograms: &[],
        counters: &[(KILLS, oom_group::kills)],
        name: NAME,
        beyond: beyond!("table-full: processes of cgroups", counted, [oom_group::kills]),
    };

    pub static TABLE: TableSpec =
        TableSpec { summary: "each cgroup", cluster: 409, shape: BY_PATH, metrics: METRICS, ..TableSpec::NEW };
}

latest! {
    "oom", oom_event, rows::COLUMNS;
    rows COUNTS: oom_row = "oom_rows";
    rows OWNERS: place_owner = "oom_owners", taken id;
    rows GROUPS: oom_group = "oom_groups", taken used, marked in "oom_marks";
    rows MARKS: mark = "oom_marks";
    private DOMAIN: oom_domain = "oom_domain";
}

options! {
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    bpf_names;
}

static VICTIM: Hook = tracepoint!("mark_victim");
static KILL: Hook = function_entry!("oom_kill_process", "fentry or kprobes, on a kernel with BTF");

/// Size of the ring buffer: 30 processes of one cgroup a second.
const RING: Pages = Pages(4);
/// Number of cgroups with counters of their own; all CPUs share them, since kills are rare.
const PLACES: usize = 1024;

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "oomkill",
    summary: "processes killed for want of memory",
    overhead: Overhead::low("5 us per process that is killed"),
    tables: &[&rows::TABLE, &counts::TABLE, &cgroups::TABLE],
    options: OPTIONS,
    hooks: &[&VICTIM, &KILL],
    maps: MAPS,
    make: |setup| Ok(Box::new(Oomkill::new(&Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Oomkill {
    latest: Latest<oom_event>,
    cgroups: PlacedHistograms<oom_group>,
}

impl Oomkill {
    fn new(options: &Options) -> Oomkill {
        Oomkill {
            latest: Latest::of_records(&LATEST, options.process_count, RING),
            cgroups: counters_by_cgroup(&cgroups::BY_CGROUP),
        }
    }
}

impl Module for Oomkill {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        let size = cgroups::BY_CGROUP.plan(PLACES, &Host { cpus: 1, ..*host }, plan);
        constants.oom_mask = size.mask;
        constants.oom_ring = self.latest.plan(host, plan);
        plan.attach(&VICTIM);
        plan.attach_optional(&KILL);
        plan.entries(COUNTS.def.name, host.cpus);
        plan.entries(DOMAIN.name, 1);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let running = Latest::add_tables(
            Running::of(*self),
            &rows::TABLE,
            &counts::ALL_EVENTS,
            |module| &mut module.latest,
            rows::put,
        );
        PlacedHistograms::add_table(running, &cgroups::TABLE, |module| Some(&mut module.cgroups)).started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::record_bytes;
    use crate::pcp::Atom;

    #[test]
    fn what_a_kernel_does_not_tell_has_no_value() {
        let fake = Fake::new().with(COUNTS, 1).with(LOST, 1).with(OWNERS, 1024).with(GROUPS, 1025).with(MARKS, 1025);
        let all = oom_event { tpid: 2, rss: 10, pages: 20, limited: 1, known: 1, has_task: 1, ..oom_event::default() };
        for event in [all, oom_event { known: 0, ..all }, oom_event { has_task: 0, ..all }] {
            fake.record(&record_bytes(&event));
        }
        fake.set(COUNTS, 0, oom_row::kills, 3);
        let running = Box::new(Oomkill::new(&Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        let row = |row: usize| [2, 4, 5, 6, 7].map(|column| table.value(row, column));
        let rss = Some(Atom::U64(10 * page_size() / 1024));
        let (tpid, uid) = (Some(Atom::U32(2)), Some(Atom::U32(0)));
        let (pages, limited) = (Some(Atom::U64(20)), Some(Atom::U32(1)));
        assert_eq!(row(2), [tpid, uid, pages, limited, rss]);
        assert_eq!(row(1), [tpid, uid, None, None, rss]);
        assert_eq!(row(0), [tpid, None, pages, limited, None]);
        assert_eq!(fake.filled(&counts::TABLE, &running).number(0, 0), Some(3));
    }
}
