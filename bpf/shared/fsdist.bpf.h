/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Latency of a file system's operations. A start time is kept by thread and operation: a synchronous write has an fsync
 * inside.
 */
#pragma once

#include "filter.bpf.h"
#include "fine.bpf.h"
#include "set_table.bpf.h"

enum fs_op {
	FS_OPEN,
	FS_READ,
	FS_WRITE,
	FS_FSYNC,
	FS_OPS,
};

struct fs_row {
	__u64 unmatched; /* returns without a start time */
	__u64 displaced; /* start times that gave way to another's */
	struct fine_hist hists[FS_OPS];
	__u64 pad[2];
};

static __always_inline void fs_enter(void *rows, void *starts, __u32 mask, __u64 filter, enum fs_op op)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct fs_row *r;

	if (!filter_wants(filter, id >> 32) || !set_begins(starts, mask, id << 32 | (op + 1)))
		return;
	r = cpu_row(rows);
	if (r)
		ADD(r->displaced, 1);
}

static __always_inline void fs_leave(void *rows, void *starts, __u32 mask, __u64 filter, enum fs_op op)
{
	__u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid(), since;
	struct fs_row *r = cpu_row(rows);

	if (!r)
		return;
	if (set_take(starts, mask, id << 32 | (op + 1), &since))
		FINE_COUNT(r->hists[op], now - since);
	else if (!filter)
		ADD(r->unmatched, 1);
}

/* What belongs to one file system: its maps and constants. */
#define FILE_SYSTEM(fs)                                                                                               \
	ROWS(fs##_rows, struct fs_row);                                                                               \
	PRIVATE(fs##_starts, struct set_numbers);                                                                          \
	const volatile __u32 fs##_start_mask;                                                                         \
	const volatile __u64 fs##_filter

/* What an operation does when it begins and when it ends. */
#define FS_ENTER(fs, op) fs_enter(&fs##_rows, &fs##_starts, fs##_start_mask, fs##_filter, op)
#define FS_LEAVE(fs, op) fs_leave(&fs##_rows, &fs##_starts, fs##_start_mask, fs##_filter, op)
