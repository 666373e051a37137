//! Latency of the operations of ext4. Kernel side: bpf/ext4dist.bpf.c.

use crate::bpf::types::{fs_row, fs_start};
use crate::kit::*;
use crate::{function, maps, metrics, options};

metrics! {
    OPEN: u64 = 0 "fs.ext4.latency.open" COUNTER USEC "opens of files on ext4 by the time they took";
    READ: u64 = 1 "fs.ext4.latency.read" COUNTER USEC "reads of files on ext4 by the time they took";
    WRITE: u64 = 2 "fs.ext4.latency.write" COUNTER USEC "writes of files on ext4 by the time they took";
    FSYNC: u64 = 3 "fs.ext4.latency.fsync" COUNTER USEC "synchronisations of files on ext4 by the time they took";
}

maps! {
    rows ROWS: fs_row = "ext4_rows";
    slots STARTS: fs_start = "ext4_starts";
}

options! {
    /// Only operations by these processes (ids, command names, or regular expressions for whole command lines).
    process: ProcessFilter = ProcessFilter::default();
}

static FILE_OPEN: Hook =
    function!("ext4_file_open", "the ext4 file system (CONFIG_EXT4_FS, or modprobe ext4) and fentry or kprobes");
static FILE_READ: Hook =
    function!("ext4_file_read_iter", "the ext4 file system (CONFIG_EXT4_FS, or modprobe ext4) and fentry or kprobes");
static FILE_WRITE: Hook =
    function!("ext4_file_write_iter", "the ext4 file system (CONFIG_EXT4_FS, or modprobe ext4) and fentry or kprobes");
static FILE_FSYNC: Hook =
    function!("ext4_sync_file", "the ext4 file system (CONFIG_EXT4_FS, or modprobe ext4) and fentry or kprobes");

/// The declaration.
pub const SPEC: Spec = Spec {
    name: "ext4dist",
    path: "fs.ext4dist",
    summary: "latency of file operations on ext4",
    cluster: 5,
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
                constants.ext4_start_mask = mask;
                constants.ext4_filter = filter;
            },
            process: options.process,
        }))
    },
};
