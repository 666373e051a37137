//! Latency of the operations of OpenZFS. Kernel side: bpf/zfsdist.bpf.c.

crate::file_system! {
    module: "zfsdist",
    cluster: 7,
    name: "zfs",
    called: "OpenZFS",
    needs: "OpenZFS (modprobe zfs) and fentry or kprobes",
    open: "zpl_open",
    read: "zpl_iter_read",
    write: "zpl_iter_write",
    fsync: "zpl_fsync",
    constants: zfs_start_mask, zfs_filter,
}
