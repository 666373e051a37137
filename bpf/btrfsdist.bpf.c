/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of Btrfs. */
#include "shared/fsdist.bpf.h"

FILE_SYSTEM(btrfs);

ON_SPAN(btrfs_file_open, 2, void *first, int ret, FS_ENTER(btrfs, FS_OPEN), FS_LEAVE(btrfs, FS_OPEN))
ON_SPAN(btrfs_file_read_iter, 2, void *first, long ret, FS_ENTER(btrfs, FS_READ), FS_LEAVE(btrfs, FS_READ))
ON_SPAN(btrfs_file_write_iter, 2, void *first, long ret, FS_ENTER(btrfs, FS_WRITE), FS_LEAVE(btrfs, FS_WRITE))
ON_SPAN(btrfs_sync_file, 4, void *first, int ret, FS_ENTER(btrfs, FS_FSYNC), FS_LEAVE(btrfs, FS_FSYNC))
