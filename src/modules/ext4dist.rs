//! Latency of the operations of ext4. Kernel side: bpf/ext4dist.bpf.c.

crate::file_system! {
    module: "ext4dist",
    log2: LATENCY 5,
    by_operation: 334,
    by_bucket: 342,
    in_seconds: 438,
    name: "ext4",
    called: "ext4",
    needs: "the ext4 file system (CONFIG_EXT4_FS, or modprobe ext4) and fentry or kprobes",
    open: "ext4_file_open",
    read: "ext4_file_read_iter",
    write: "ext4_file_write_iter",
    fsync: "ext4_sync_file",
    constants: ext4_start_mask, ext4_filter,
}
