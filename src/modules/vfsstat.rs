//! Operations of the virtual file system: counts, times and sizes, and reads and writes by process. Kernel side: bpf/vfsstat.bpf.c.

use super::shared::by_process::{ByProcess, EXEC, EXIT};
use crate::bpf::types::{self, vfs_counts, vfs_row};
use crate::kit::*;
use crate::{by_process, function, function_entry, metrics, options};

mod operations {
    const CALLS: &str = "On any file system, and on pipes and devices: calls that return, those that fail included. Reads and writes by io_uring, readv, sendfile or a mapping are not among them.";
    const FILES: &str = "On any file system. A name that leads to no file is not opened.";
    crate::histograms! {
        "vfs";
        tables "all operations", "each bucket", 492 493 495, Shape::Single;
        1 "read" | "bpf.vfsstat.read" "reads" "from call to return" CALLS;
        2 "write" | "bpf.vfsstat.write" "writes" "from call to return" CALLS;
        3 "fsync" | "bpf.vfsstat.fsync" "synchronisations of files" "from call to return" "By fsync, fdatasync, msync and synchronous writes.";
        4 "open" | "bpf.vfsstat.open" "opens of files" "from the file that was found to the return" FILES;
        with CREATED: u64 = 0 "create.count" | "bpf.vfsstat.create" COUNTER COUNT "files that opens made";
        with UNLINKED: u64 = 1 "unlink.count" COUNTER COUNT "names of files that were to be removed";
        with MKDIRS: u64 = 2 "mkdir.count" COUNTER COUNT "directories that were to be made";
        with RMDIRS: u64 = 3 "rmdir.count" COUNTER COUNT "directories that were to be removed";
        with READ_BYTES: u64 = 4 "read.bytes" COUNTER BYTE "bytes that reads returned";
        with WRITE_BYTES: u64 = 5 "write.bytes" COUNTER BYTE "bytes that writes took";
    }
    use super::*;

    const ROW: SeriesRows<vfs_row> = SeriesRows::of_one(ROWS);

    pub static SERIES_OF_ONE: SeriesDef = SeriesDef {
        tables: TABLES,
        histograms: &[
            ROW.part(vfs_row::times.nth(0)),
            ROW.part(vfs_row::times.nth(1)),
            ROW.part(vfs_row::times.nth(2)),
            ROW.part(vfs_row::times.nth(3)),
        ],
        counters: &[
            (CREATED, ROW.part(vfs_row::created)),
            (UNLINKED, ROW.part(vfs_row::unlinked)),
            (MKDIRS, ROW.part(vfs_row::mkdirs)),
            (RMDIRS, ROW.part(vfs_row::rmdirs)),
            (READ_BYTES, ROW.part(vfs_row::bytes.nth(0))),
            (WRITE_BYTES, ROW.part(vfs_row::bytes.nth(1))),
        ],
        ..SeriesDef::NEW
    };
}

mod processes {
    use super::*;

    // In the order of `struct vfs_counts`.
    metrics! {
        _: u64 = 0 "proc.vfs.read.count" COUNTER COUNT "reads of the process";
        _: u64 = 1 "proc.vfs.read.bytes" COUNTER BYTE "bytes that the reads of the process returned";
        _: u64 = 2 "proc.vfs.read.time" COUNTER NSEC "time that the process spent in reads";
        _: u64 = 3 "proc.vfs.write.count" COUNTER COUNT "writes of the process";
        _: u64 = 4 "proc.vfs.write.bytes" COUNTER BYTE "bytes that the writes of the process took";
        _: u64 = 5 "proc.vfs.write.time" COUNTER NSEC "time that the process spent in writes";
    }

    pub static TABLE: TableSpec = TableSpec::by_process("each process that reads or writes", 494, METRICS);
}

mod sizes {
    use super::*;

    metrics! {
        READ: u64 = 0 "vfs.read.size" COUNTER BYTE "reads by the bytes they returned";
        WRITE: u64 = 1 "vfs.write.size" COUNTER BYTE "writes by the bytes they took";
    }

    pub static TABLE: TableSpec = TableSpec {
        summary: "sizes in powers of two of bytes",
        cluster: 2000,
        shape: Shape::Log2(Log2::BYTES),
        metrics: METRICS,
        ..TableSpec::NEW
    };

    pub fn read(kernel: &dyn Kernel, table: &mut Table) {
        let rows = kernel.rows(ROWS);
        for (metric, sizes) in [(READ, vfs_row::sizes.nth(0)), (WRITE, vfs_row::sizes.nth(1))] {
            let counts: Vec<u64> =
                (0..Log2::BYTES.buckets as usize).map(|bucket| rows.sum(sizes.nth(bucket))).collect();
            table.log2(metric, &counts);
        }
    }
}

by_process! {
    "vfs", vfs_counts;
    rows ROWS: vfs_row = "vfs_rows";
}

options! {
    process;
    histograms;
    bpf_names;
}

const NEEDS: &str = "fentry or kprobes";
const NEEDS_SECURITY: &str = "CONFIG_SECURITY, and fentry or kprobes";

/// The function of a system call, whose name begins with the architecture's.
macro_rules! system_call {
    ($name:literal) => {
        Hook {
            name: $name,
            tiers: &[
                Tier {
                    kind: "fexit",
                    programs: &[concat!("fentry____x64_sys_", $name), concat!("fexit____x64_sys_", $name)],
                },
                Tier {
                    kind: "fexit of arm64",
                    programs: &[concat!("fentry____arm64_sys_", $name), concat!("fexit____arm64_sys_", $name)],
                },
                Tier {
                    kind: "kretprobe",
                    programs: &[concat!("kprobe____x64_sys_", $name), concat!("kretprobe____x64_sys_", $name)],
                },
                Tier {
                    kind: "kretprobe of arm64",
                    programs: &[concat!("kprobe____arm64_sys_", $name), concat!("kretprobe____arm64_sys_", $name)],
                },
            ],
            needs: NEEDS,
        }
    };
}

static READ: Hook = function!("vfs_read", NEEDS);
static WRITE: Hook = function!("vfs_write", NEEDS);
static FSYNC: Hook = function!("vfs_fsync_range", NEEDS);
static FSYNC_CALL: Hook = system_call!("fsync");
static FDATASYNC_CALL: Hook = system_call!("fdatasync");
static OPEN: Hook = function!("vfs_open", NEEDS);
static UNLINK: Hook = function_entry!("security_inode_unlink", NEEDS_SECURITY);
static MKDIR: Hook = function_entry!("security_inode_mkdir", NEEDS_SECURITY);
static RMDIR: Hook = function_entry!("security_inode_rmdir", NEEDS_SECURITY);

/// The declaration of the module.
pub const SPEC: Spec = Spec {
    name: "vfsstat",
    summary: "reads, writes, opens and other operations on files: counts, times, sizes",
    overhead: Overhead::medium("200 ns per read, write, open or fsync"),
    needs: NEEDS_SECURITY,
    tables: &[&operations::TABLE, &operations::BY_BUCKET, &processes::TABLE, &operations::IN_SECONDS, &sizes::TABLE],
    options: OPTIONS,
    hooks: &[&READ, &WRITE, &FSYNC, &FSYNC_CALL, &FDATASYNC_CALL, &OPEN, &UNLINK, &MKDIR, &RMDIR, &EXIT, &EXEC],
    maps: MAPS,
    needs_to_run: &[Need::Processes],
    make: |setup| Ok(Box::new(Vfsstat::new(Options::read(setup.section)?))),
    ..Spec::NEW
};

struct Vfsstat {
    options: Options,
    times: NamedHistograms,
    processes: ByProcess<vfs_counts, 6>,
}

impl Vfsstat {
    fn new(options: Options) -> Vfsstat {
        let times = NamedHistograms::of_one(&operations::SERIES_OF_ONE, options.window.window(), options.buckets);
        Vfsstat { options, times, processes: ByProcess::new(&PROCESSES, false) }
    }

    fn losses(&self, kernel: &dyn Kernel, each: EachLoss<'_>) {
        let rows = kernel.rows(ROWS);
        each("start-unseen: operations whose beginning was not seen", rows.sum(vfs_row::unseen));
        each("end-unseen: operations whose return was not seen", rows.sum(vfs_row::unreturned));
    }
}

impl Module for Vfsstat {
    fn plan(&mut self, host: &Host, plan: &mut Plan, constants: &mut types::rodata) {
        constants.vfs_filter = plan.only(&self.options.process);
        plan.entries(ROWS.def.name, host.cpus);
        self.processes.plan(&SPEC, host, plan, constants);
    }

    fn start(self: Box<Self>, _kernel: &dyn Kernel) -> Running {
        let prometheus = self.options.prometheus;
        let running =
            NamedHistograms::add_tables(Running::of(*self), &[&operations::SERIES_OF_ONE], prometheus, |module| {
                Some(&mut module.times)
            })
            .at_once(&sizes::TABLE, sizes::read);
        ByProcess::add_table(running, &processes::TABLE, |module| &mut module.processes).losses(Self::losses).started()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::fine_hist;

    fn started(fake: &Fake) -> Running {
        Box::new(Vfsstat::new(Options::default())).start(fake)
    }

    #[test]
    fn operations_are_summed_over_cpus() {
        let fake = Fake::new().with(ROWS, 2).with(LOSSES, 2);
        for cpu in 0..2 {
            let row = fake.row(ROWS, cpu);
            row.part(vfs_row::times.nth(0)).set(fine_hist::buckets.nth(Fine::bucket(3000)), 5);
            row.part(vfs_row::times.nth(3)).set(fine_hist::buckets.nth(Fine::bucket(9000)), 7);
            for (at, field) in
                [vfs_row::created, vfs_row::unlinked, vfs_row::mkdirs, vfs_row::rmdirs].into_iter().enumerate()
            {
                row.set(field, at as u64 + 1);
            }
            row.set(vfs_row::bytes.nth(1), 100);
        }
        let table = fake.filled(&operations::TABLE, &started(&fake));
        let value = |name: &str| table.number(0, operations::TABLE.column(name));
        let counts = ["read", "write", "fsync", "open", "create", "unlink", "mkdir", "rmdir"];
        let counts = counts.map(|operation| value(&format!("vfs.{operation}.count")).unwrap());
        assert_eq!((counts, value("vfs.write.bytes")), ([10, 0, 0, 14, 2, 4, 6, 8], Some(200)));
    }

    #[test]
    fn sizes_have_a_bucket_for_each_power_of_two() {
        let fake = Fake::new().with(ROWS, 2).with(LOSSES, 2);
        fake.set(ROWS, 0, vfs_row::sizes.nth(0).nth(12), 3);
        fake.set(ROWS, 1, vfs_row::sizes.nth(0).nth(12), 4);
        fake.set(ROWS, 1, vfs_row::sizes.nth(1).nth(0), 2);
        let table = fake.filled(&sizes::TABLE, &started(&fake));
        assert_eq!((table.len(), Log2::name(12)), (13, "4096-8191".into()));
        assert_eq!(
            [(12, 0), (0, 1), (12, 1)].map(|(row, column)| table.number(row, column)),
            [Some(7), Some(2), Some(0)]
        );
    }

    #[test]
    fn operations_without_an_end_or_a_beginning_are_losses() {
        let fake = Fake::new().with(ROWS, 1).with(LOSSES, 1);
        fake.set(ROWS, 0, vfs_row::unseen, 3);
        fake.set(ROWS, 0, vfs_row::unreturned, 2);
        let mut lost = Vec::new();
        started(&fake).losses(&fake, &mut |_, count| lost.push(count));
        assert_eq!(lost, [0, 3, 2]);
    }
}
