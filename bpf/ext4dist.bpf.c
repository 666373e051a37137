/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of ext4. */
#include "fsdist.bpf.h"

ROWS(ext4_rows, struct fs_row);
SLOTS(ext4_starts, struct fs_start);

const volatile __u32 ext4_start_mask;
const volatile __u64 ext4_filter;

static __always_inline void ext4_enter(enum fs_op op)
{
	fs_enter(&ext4_starts, ext4_start_mask, ext4_filter, op);
}

static __always_inline void ext4_leave(enum fs_op op)
{
	fs_leave(&ext4_rows, &ext4_starts, ext4_start_mask, ext4_filter, op);
}

ON_ENTRY(ext4_file_open)
{
	ext4_enter(FS_OPEN);
}

ON_RETURN(ext4_file_open, 2, int ret)
{
	ext4_leave(FS_OPEN);
}

ON_ENTRY(ext4_file_read_iter)
{
	ext4_enter(FS_READ);
}

ON_RETURN(ext4_file_read_iter, 2, long ret)
{
	ext4_leave(FS_READ);
}

ON_ENTRY(ext4_file_write_iter)
{
	ext4_enter(FS_WRITE);
}

ON_RETURN(ext4_file_write_iter, 2, long ret)
{
	ext4_leave(FS_WRITE);
}

ON_ENTRY(ext4_sync_file)
{
	ext4_enter(FS_FSYNC);
}

ON_RETURN(ext4_sync_file, 4, int ret)
{
	ext4_leave(FS_FSYNC);
}
