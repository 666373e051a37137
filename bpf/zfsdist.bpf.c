/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of OpenZFS. */
#include "fsdist.bpf.h"

ROWS(zfs_rows, struct fs_row);
SLOTS(zfs_starts, struct fs_start);

const volatile __u32 zfs_start_mask;
const volatile __u64 zfs_filter;

static __always_inline void zfs_enter(enum fs_op op)
{
	fs_enter(&zfs_starts, zfs_start_mask, zfs_filter, op);
}

static __always_inline void zfs_leave(enum fs_op op)
{
	fs_leave(&zfs_rows, &zfs_starts, zfs_start_mask, zfs_filter, op);
}

ON_ENTRY(zpl_open)
{
	zfs_enter(FS_OPEN);
}

ON_RETURN(zpl_open, 2, int ret)
{
	zfs_leave(FS_OPEN);
}

ON_ENTRY(zpl_iter_read)
{
	zfs_enter(FS_READ);
}

ON_RETURN(zpl_iter_read, 2, long ret)
{
	zfs_leave(FS_READ);
}

ON_ENTRY(zpl_iter_write)
{
	zfs_enter(FS_WRITE);
}

ON_RETURN(zpl_iter_write, 2, long ret)
{
	zfs_leave(FS_WRITE);
}

ON_ENTRY(zpl_fsync)
{
	zfs_enter(FS_FSYNC);
}

ON_RETURN(zpl_fsync, 4, int ret)
{
	zfs_leave(FS_FSYNC);
}
