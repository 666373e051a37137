/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of NFS clients. */
#include "shared/fsdist.bpf.h"

FILE_SYSTEM(nfs);

ON_SPAN(nfs_file_open, 2, void *first, int ret, FS_ENTER(nfs, FS_OPEN), FS_LEAVE(nfs, FS_OPEN))
ON_SPAN(nfs4_file_open, 2, void *first, int ret, FS_ENTER(nfs, FS_OPEN), FS_LEAVE(nfs, FS_OPEN))
ON_SPAN(nfs_atomic_open, 5, void *first, int ret, FS_ENTER(nfs, FS_OPEN), FS_LEAVE(nfs, FS_OPEN))
ON_SPAN(nfs_file_read, 2, void *first, long ret, FS_ENTER(nfs, FS_READ), FS_LEAVE(nfs, FS_READ))
ON_SPAN(nfs_file_write, 2, void *first, long ret, FS_ENTER(nfs, FS_WRITE), FS_LEAVE(nfs, FS_WRITE))
ON_SPAN(nfs_file_fsync, 4, void *first, int ret, FS_ENTER(nfs, FS_FSYNC), FS_LEAVE(nfs, FS_FSYNC))
