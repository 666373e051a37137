//! Latency of the operations of Btrfs. Kernel side: bpf/btrfsdist.bpf.c.

crate::file_system! {
    module: "btrfsdist",
    by_operation: 423,
    by_bucket: 424,
    in_seconds: 425,
    name: "btrfs",
    called: "Btrfs",
    needs: "the Btrfs file system (CONFIG_BTRFS_FS, or modprobe btrfs) and fentry or kprobes",
    open: "btrfs_file_open",
    read: "btrfs_file_read_iter",
    write: "btrfs_file_write_iter",
    fsync: "btrfs_sync_file",
    constants: btrfs_start_mask, btrfs_filter,
}
