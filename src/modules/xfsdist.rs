//! Latency of the operations of XFS. Kernel side: bpf/xfsdist.bpf.c.

use crate::bpf::types::{fs_row, fs_start};
use crate::kit::*;
use crate::{function, maps, metrics, options};

metrics! {
    OPEN: u64 = 0 "fs.xfs.latency.open" COUNTER USEC "opens of files on XFS by the time they took";
    READ: u64 = 1 "fs.xfs.latency.read" COUNTER USEC "reads of files on XFS by the time they took";
    WRITE: u64 = 2 "fs.xfs.latency.write" COUNTER USEC "writes of files on XFS by the time they took";
    FSYNC: u64 = 3 "fs.xfs.latency.fsync" COUNTER USEC "synchronisations of files on XFS by the time they took";
}

maps! {
    rows ROWS: fs_row = "xfs_rows";
    slots STARTS: fs_start = "xfs_starts";
}

options! {
    /// Only operations by these processes (ids, command names, or regular expressions for whole command lines).
    process: ProcessFilter = ProcessFilter::default();
}

static FILE_OPEN: Hook =
    function!("xfs_file_open", "the XFS file system (CONFIG_XFS_FS, or modprobe xfs) and fentry or kprobes");
static FILE_READ: Hook =
    function!("xfs_file_read_iter", "the XFS file system (CONFIG_XFS_FS, or modprobe xfs) and fentry or kprobes");
static FILE_WRITE: Hook =
    function!("xfs_file_write_iter", "the XFS file system (CONFIG_XFS_FS, or modprobe xfs) and fentry or kprobes");
static FILE_FSYNC: Hook =
    function!("xfs_file_fsync", "the XFS file system (CONFIG_XFS_FS, or modprobe xfs) and fentry or kprobes");

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "xfsdist",
    path: "fs.xfsdist",
    summary: "latency of file operations on XFS",
    cluster: 6,
    shape: Shape::Log2(Log2 { slots: OPERATION_SLOTS as u32 }),
    metrics: METRICS,
    options: OPTIONS,
    hooks: &[&FILE_OPEN, &FILE_READ, &FILE_WRITE, &FILE_FSYNC],
    maps: MAPS,
    make: |setup| {
        let options = Options::read(setup.section)?;
        Ok(Box::new(Operations {
            metrics: [OPEN, READ, WRITE, FSYNC],
            hooks: [&FILE_OPEN, &FILE_READ, &FILE_WRITE, &FILE_FSYNC],
            rows: ROWS,
            starts: STARTS,
            constants: |constants, mask, filter| {
                constants.xfs_start_mask = mask;
                constants.xfs_filter = filter;
            },
            process: options.process,
        }))
    },
};
