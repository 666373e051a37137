/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of ext4. */
#include "shared/fsdist.bpf.h"

FILE_SYSTEM(ext4);

ON_SPAN(ext4_file_open, 2, void *first, int ret, FS_ENTER(ext4, FS_OPEN), FS_LEAVE(ext4, FS_OPEN))
ON_SPAN(ext4_file_read_iter, 2, void *first, long ret, FS_ENTER(ext4, FS_READ), FS_LEAVE(ext4, FS_READ))
ON_SPAN(ext4_file_write_iter, 2, void *first, long ret, FS_ENTER(ext4, FS_WRITE), FS_LEAVE(ext4, FS_WRITE))
ON_SPAN(ext4_sync_file, 4, void *first, int ret, FS_ENTER(ext4, FS_FSYNC), FS_LEAVE(ext4, FS_FSYNC))
