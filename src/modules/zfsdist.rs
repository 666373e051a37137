//! Latency of the operations of OpenZFS. Kernel side: bpf/zfsdist.bpf.c.

use crate::bpf::types::{fs_row, fs_start};
use crate::kit::*;
use crate::{function, maps, metrics, options};

metrics! {
    OPEN: u64 = 0 "fs.zfs.latency.open" COUNTER USEC "opens of files on OpenZFS by the time they took";
    READ: u64 = 1 "fs.zfs.latency.read" COUNTER USEC "reads of files on OpenZFS by the time they took";
    WRITE: u64 = 2 "fs.zfs.latency.write" COUNTER USEC "writes of files on OpenZFS by the time they took";
    FSYNC: u64 = 3 "fs.zfs.latency.fsync" COUNTER USEC "synchronisations of files on OpenZFS by the time they took";
}

maps! {
    rows ROWS: fs_row = "zfs_rows";
    slots STARTS: fs_start = "zfs_starts";
}

options! {
    /// Only operations by these processes (ids, command names, or regular expressions for whole command lines).
    process: ProcessFilter = ProcessFilter::default();
}

static FILE_OPEN: Hook = function!("zpl_open", "OpenZFS (modprobe zfs) and fentry or kprobes");
static FILE_READ: Hook = function!("zpl_iter_read", "OpenZFS (modprobe zfs) and fentry or kprobes");
static FILE_WRITE: Hook = function!("zpl_iter_write", "OpenZFS (modprobe zfs) and fentry or kprobes");
static FILE_FSYNC: Hook = function!("zpl_fsync", "OpenZFS (modprobe zfs) and fentry or kprobes");

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "zfsdist",
    path: "fs.zfsdist",
    summary: "latency of file operations on OpenZFS",
    cluster: 7,
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
                constants.zfs_start_mask = mask;
                constants.zfs_filter = filter;
            },
            process: options.process,
        }))
    },
};
