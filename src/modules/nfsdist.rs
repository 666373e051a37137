//! Latency of the operations of NFS clients. Kernel side: bpf/nfsdist.bpf.c.
//!
//! Version 4 has a function of its own that opens, in a module of its own. Where the client does not know the file yet, which it may have to
//! create, its look-up opens it at the same time (`nfs_atomic_open`), and no file operation does.

crate::file_system! {
    module: "nfsdist",
    by_operation: 426,
    by_bucket: 427,
    in_seconds: 428,
    name: "nfs",
    called: "NFS",
    needs: "the NFS client (CONFIG_NFS_FS, or modprobe nfs; for version 4 modprobe nfsv4 as well) and fentry or kprobes",
    open: "nfs_file_open" or OPEN_4 "nfs4_file_open" or ATOMIC_OPEN "nfs_atomic_open",
    read: "nfs_file_read",
    write: "nfs_file_write",
    fsync: "nfs_file_fsync",
    constants: nfs_start_mask, nfs_filter,
}
