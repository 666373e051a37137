/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of OpenZFS. */
#include "fsdist.bpf.h"

FILE_SYSTEM(zfs);

ON_OPERATION(zfs, FS_OPEN, zpl_open, 2, int)
ON_OPERATION(zfs, FS_READ, zpl_iter_read, 2, long)
ON_OPERATION(zfs, FS_WRITE, zpl_iter_write, 2, long)
ON_OPERATION(zfs, FS_FSYNC, zpl_fsync, 4, int)
