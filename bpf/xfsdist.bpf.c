/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of XFS. */
#include "fsdist.bpf.h"

FILE_SYSTEM(xfs);

ON_OPERATION(xfs, FS_OPEN, xfs_file_open, 2, int)
ON_OPERATION(xfs, FS_READ, xfs_file_read_iter, 2, long)
ON_OPERATION(xfs, FS_WRITE, xfs_file_write_iter, 2, long)
ON_OPERATION(xfs, FS_FSYNC, xfs_file_fsync, 4, int)
