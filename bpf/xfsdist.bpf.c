/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of XFS. */
#include "fsdist.bpf.h"

ROWS(xfs_rows, struct fs_row);
SLOTS(xfs_starts, struct fs_start);

const volatile __u32 xfs_start_mask;
const volatile __u64 xfs_filter;

static __always_inline void xfs_enter(enum fs_op op)
{
	fs_enter(&xfs_starts, xfs_start_mask, xfs_filter, op);
}

static __always_inline void xfs_leave(enum fs_op op)
{
	fs_leave(&xfs_rows, &xfs_starts, xfs_start_mask, xfs_filter, op);
}

ON_ENTRY(xfs_file_open)
{
	xfs_enter(FS_OPEN);
}

ON_RETURN(xfs_file_open, 2, int ret)
{
	xfs_leave(FS_OPEN);
}

ON_ENTRY(xfs_file_read_iter)
{
	xfs_enter(FS_READ);
}

ON_RETURN(xfs_file_read_iter, 2, long ret)
{
	xfs_leave(FS_READ);
}

ON_ENTRY(xfs_file_write_iter)
{
	xfs_enter(FS_WRITE);
}

ON_RETURN(xfs_file_write_iter, 2, long ret)
{
	xfs_leave(FS_WRITE);
}

ON_ENTRY(xfs_file_fsync)
{
	xfs_enter(FS_FSYNC);
}

ON_RETURN(xfs_file_fsync, 4, int ret)
{
	xfs_leave(FS_FSYNC);
}
