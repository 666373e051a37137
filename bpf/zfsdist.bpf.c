/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Latency of the operations of OpenZFS. */
#include "shared/fsdist.bpf.h"

FILE_SYSTEM(zfs);

ON_SPAN(zpl_open, 2, void *first, int ret, FS_ENTER(zfs, FS_OPEN), FS_LEAVE(zfs, FS_OPEN))
ON_SPAN(zpl_iter_read, 2, void *first, long ret, FS_ENTER(zfs, FS_READ), FS_LEAVE(zfs, FS_READ))
ON_SPAN(zpl_iter_write, 2, void *first, long ret, FS_ENTER(zfs, FS_WRITE), FS_LEAVE(zfs, FS_WRITE))
ON_SPAN(zpl_fsync, 4, void *first, int ret, FS_ENTER(zfs, FS_FSYNC), FS_LEAVE(zfs, FS_FSYNC))
