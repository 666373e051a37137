//! Opens, reads, writes and fsyncs of files that take long: rows of the latest. Kernel side: bpf/fsslower.bpf.c.

use super::shared::fsdist::Functions;
use super::shared::latest::{Columns, EventCounts, Latest};
use super::{btrfsdist, ext4dist, nfsdist, xfsdist, zfsdist};
use crate::bpf::types::{self, slow_file_event, slow_file_row, slow_starts};
use crate::host::{file_systems, until_nul};
use crate::kit::*;
use crate::{function, latest, metrics, options};

mod rows {
    use super::*;

    metrics! {
        PID: u32 = 0 "file.slow.pid" | "bpf.fsslower.pid" INSTANT NONE "process that made the call";
        COMM: str = 1 "file.slow.comm" | "bpf.fsslower.comm" INSTANT NONE "command name of the process";
        OP: str = 2 "file.slow.file_op" | "bpf.fsslower.file_op" INSTANT NONE "operation: R read, W write, O open, F fsync";
        FS: str = 3 "file.slow.fs" INSTANT NONE "type of the file system, such as ext4";
        NAME: str = 4 "file.slow.filename" | "bpf.fsslower.filename" INSTANT NONE "name of the file in its directory";
        BYTES: u64 = 5 "file.slow.bytes" | "bpf.fsslower.bytes" INSTANT BYTE "bytes that were read or written";
        OFFSET: i64 = 6 "file.slow.offset" | "bpf.fsslower.offset" INSTANT BYTE "position in the file of a read or write";
        ERR: i32 = 7 "file.slow.err" INSTANT NONE "error number, 0 if the call succeeded";
        LAT: u64 = 8 "file.slow.lat" | "bpf.fsslower.lat" INSTANT NSEC "time of the call in the file system";
        TIME: u64 = 9 "file.slow.time" INSTANT MSEC "when the call returned, since 1970";
        SEQ: u64 = 10 "file.slow.seq" INSTANT NONE "number of the row, which tells a new row from one that moved";
        CGROUP_PATH: str = 11 "file.slow.cgroup_path" INSTANT NONE "path of the cgroup of the process, in cgroup v2";
    }

    pub static TABLE: TableSpec = TableSpec::latest("the latest operations on files that took long", 422, METRICS);

    pub const COLUMNS: Columns = Columns { time: TIME, seq: SEQ, cgroup_path: CGROUP_PATH };

    pub fn put(row: RowMut<'_>, event: &slow_file_event) {
        row.set(PID, event.pid)
            .text(COMM, until_nul(&event.comm))
            .text(OP, until_nul(&event.op))
            .text(FS, until_nul(&event.fs))
            .text(NAME, until_nul(&event.name))
            .set(BYTES, event.bytes)
            .set(OFFSET, event.offset)
            .set(ERR, event.err)
            .set(LAT, event.lat);
    }
}

mod counts {
    use super::*;

    metrics! {
        ALL: u64 = 0 "file.slow.all.count" COUNTER COUNT "operations on files that took long";
        LOST: u64 = 1 "file.slow.lost.count" | "bpf.fsslower.lost" COUNTER COUNT "operations on files that took long and got no row";
    }

    pub static TABLE: TableSpec = TableSpec::single("all operations on files that took long", 2005, METRICS);

    pub static ALL_EVENTS: EventCounts<slow_file_row> =
        EventCounts { table: &TABLE, sums: Sums { rows: ROWS, cells: &[(ALL, &[slow_file_row::all])] }, lost: LOST };
}

latest! {
    "fsslow", slow_file_event, rows::COLUMNS;
    rows ROWS: slow_file_row = "fsslow_rows";
    private STARTS: slow_starts = "fsslow_starts";
}

options! {
    process;
    /// Calls that took at least so many milliseconds have rows.
    min_ms: Count = Count(10);
    /// Rows to show.
    process_count: RowCount = RowCount(20);
    /// Size of the ring buffer in pages.
    buffer_page_count: Pages = Pages(64);
    bpf_names;
}

/// Declares functions of a file system that has no module of its own.
macro_rules! functions {
    ($name:literal, $needs:literal: $($function:literal),*) => {
        Functions { name: $name, hooks: &[$(&function!($function, $needs)),*] }
    };
}

const F2FS: Functions = functions! {
    "f2fs", "the F2FS file system (CONFIG_F2FS_FS, or modprobe f2fs) and fentry or kprobes":
    "f2fs_file_open", "f2fs_file_read_iter", "f2fs_file_write_iter", "f2fs_sync_file"
};

/// Functions of file systems in user space. A look-up that may have to create the file opens it at the same time, where the server can do so.
const FUSE: Functions = functions! {
    "fuse", "file systems in user space (CONFIG_FUSE_FS, or modprobe fuse) and fentry or kprobes":
    "fuse_open", "fuse_file_read_iter", "fuse_file_write_iter", "fuse_fsync", "fuse_atomic_open"
};

/// File systems that the module knows.
const FILE_SYSTEMS: [Functions; 7] =
    [ext4dist::FUNCTIONS, xfsdist::FUNCTIONS, btrfsdist::FUNCTIONS, nfsdist::FUNCTIONS, zfsdist::FUNCTIONS, F2FS, FUSE];

/// Hooks of all of them.
const HOOKS: &[&Hook] = &{
    let mut hooks = [FILE_SYSTEMS[0].hooks[0]; 31];
    let (mut of, mut at, mut next) = (0, 0, 0);
    while next < hooks.len() {
        if at == FILE_SYSTEMS[of].hooks.len() {
            (of, at) = (of + 1, 0);
        }
        hooks[next] = FILE_SYSTEMS[of].hooks[at];
        (at, next) = (at + 1, next + 1);
    }
    assert!(of + 1 == FILE_SYSTEMS.len() && at == FILE_SYSTEMS[of].hooks.len());
    hooks
};

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "fsslower",
    directory: "fs.",
    summary: "opens, reads, writes and fsyncs of files that take long",
    overhead: Overhead::medium("190 ns per open, read, write or fsync on these file systems"),
    needs: "ext4, XFS, Btrfs, NFS, OpenZFS, F2FS or FUSE when it is loaded, and fentry or kprobes",
    tables: &[&rows::TABLE, &counts::TABLE],
    options: OPTIONS,
    hooks: HOOKS,
    maps: MAPS,
    make: |setup| Ok(Box::new(Fsslower::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Fsslower {
    options: Options,
    latest: Latest<slow_file_event>,
}

impl Fsslower {
    fn new(options: Options) -> Fsslower {
        let latest = Latest::of_records(&LATEST, options.process_count, options.buffer_page_count);
        Fsslower { options, latest }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let displaced = kernel.rows(ROWS).sum(slow_file_row::displaced);
        each("untimed: operations whose time is not known because too many threads were in one", displaced);
    }
}

impl Module for Fsslower {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.fsslow_filter = plan.only(&self.options.process);
        constants.fsslow_min = self.options.min_ms.0.saturating_mul(1_000_000);
        constants.fsslow_mask = plan_set_table(plan, STARTS.name, by_thread(host));
        constants.fsslow_ring = self.latest.plan(host, plan);
        plan.entries(ROWS.def.name, host.cpus);
        let there = file_systems();
        let mut any = false;
        for functions in FILE_SYSTEMS.iter().filter(|of| there.iter().any(|name| name == of.name)) {
            any = true;
            functions.plan(plan);
        }
        if !any {
            let names = FILE_SYSTEMS.iter().map(|of| of.name).collect::<Vec<_>>().join(", ");
            plan.refuse(format!(
                "the kernel has none of {names} (/proc/filesystems): mount one or load its kernel module, then restart fsslower"
            ));
        }
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
    fn a_slow_write_has_its_file_its_place_and_its_time() {
        let fake = Fake::new().with(ROWS, 2).with(LOST, 2);
        let mut event =
            slow_file_event { pid: 7, lat: 20_000_000, offset: 4096, bytes: 512, ..slow_file_event::default() };
        event.op[0] = b'W';
        event.fs[..4].copy_from_slice(b"ext4");
        event.name[..4].copy_from_slice(b"data");
        fake.record(&record_bytes(&event));
        fake.record(&record_bytes(&slow_file_event { pid: 8, err: 28, ..event }));
        (0..2).for_each(|cpu| fake.set(ROWS, cpu, slow_file_row::all, 3));
        fake.set(LOST, 1, latest_stat::full, 4);
        let running = Box::new(Fsslower::new(Options::default())).start(&fake);
        let table = fake.filled(&rows::TABLE, &running);
        assert_eq!([0, 7].map(|column| table.value(0, column)), [Some(Atom::U32(8)), Some(Atom::I32(28))]);
        let texts = [Atom::Str(b"W"), Atom::Str(b"ext4"), Atom::Str(b"data")];
        assert_eq!([2, 3, 4].map(|column| table.value(1, column)), texts.map(Some));
        assert_eq!([5, 8].map(|column| table.number(1, column)), [Some(512), Some(20_000_000)]);
        assert_eq!(table.value(1, 6), Some(Atom::I64(4096)));
        let table = fake.filled(&counts::TABLE, &running);
        assert_eq!([0, 1].map(|column| table.number(0, column)), [Some(6), Some(4)]);
    }
}
