//! Latency of the operations of XFS. Kernel side: bpf/xfsdist.bpf.c.

crate::file_system! {
    module: "xfsdist",
    log2: LATENCY 6,
    by_operation: 335,
    by_bucket: 343,
    in_seconds: 439,
    name: "xfs",
    called: "XFS",
    needs: "the XFS file system (CONFIG_XFS_FS, or modprobe xfs) and fentry or kprobes",
    open: "xfs_file_open",
    read: "xfs_file_read_iter",
    write: "xfs_file_write_iter",
    fsync: "xfs_file_fsync",
    constants: xfs_start_mask, xfs_filter,
}
