/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of XFS. */
#include "shared/fsdist.bpf.h"

FILE_SYSTEM(xfs);

ON_SPAN(xfs_file_open, 2, void *first, int ret, FS_ENTER(xfs, FS_OPEN), FS_LEAVE(xfs, FS_OPEN))
ON_SPAN(xfs_file_read_iter, 2, void *first, long ret, FS_ENTER(xfs, FS_READ), FS_LEAVE(xfs, FS_READ))
ON_SPAN(xfs_file_write_iter, 2, void *first, long ret, FS_ENTER(xfs, FS_WRITE), FS_LEAVE(xfs, FS_WRITE))
ON_SPAN(xfs_file_fsync, 4, void *first, int ret, FS_ENTER(xfs, FS_FSYNC), FS_LEAVE(xfs, FS_FSYNC))
