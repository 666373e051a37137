/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of ext4. */
#include "fsdist.bpf.h"

FILE_SYSTEM(ext4);

ON_OPERATION(ext4, FS_OPEN, ext4_file_open, 2, int)
ON_OPERATION(ext4, FS_READ, ext4_file_read_iter, 2, long)
ON_OPERATION(ext4, FS_WRITE, ext4_file_write_iter, 2, long)
ON_OPERATION(ext4, FS_FSYNC, ext4_sync_file, 4, int)
