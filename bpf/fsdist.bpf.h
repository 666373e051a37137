/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Latency of a file system's operations. A start time is kept by thread and operation: a synchronous write has an fsync
 * inside.
 */
#pragma once

#include "filter.bpf.h"
#include "hist.bpf.h"

enum fs_op {
	FS_OPEN,
	FS_READ,
	FS_WRITE,
	FS_FSYNC,
	FS_OPS,
};

struct fs_row {
	__u64 unmatched; /* returns whose start was not seen */
	__u64 pad[7];
	__u64 slots[FS_OPS * HIST_SLOTS]; /* those of open, then those of read, ... */
};

struct fs_start {
	__u64 key; /* thread << 32 | operation + 1; 0: free */
	__u64 ns;
};

static __always_inline struct fs_start *fs_place(void *starts, __u32 mask, __u32 thread, enum fs_op op)
{
	return row(starts, ((thread << 3 ^ thread >> 12) + op) & mask);
}

static __always_inline void fs_enter(void *starts, __u32 mask, __u64 filter, enum fs_op op)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct fs_start *start;

	if (!filter_wants(filter, id >> 32))
		return;
	start = fs_place(starts, mask, id, op);
	if (!start)
		return;
	start->ns = bpf_ktime_get_ns();
	start->key = id << 32 | (op + 1);
}

static __always_inline void fs_leave(void *rows, void *starts, __u32 mask, __u64 filter, enum fs_op op)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct fs_start *start = fs_place(starts, mask, id, op);
	struct fs_row *r = cpu_row(rows);

	if (!start || !r)
		return;
	if (start->key != (id << 32 | (op + 1))) {
		if (!filter)
			ADD(r->unmatched, 1);
		return;
	}
	start->key = 0; /* never pairs with a later return */
	COUNT(r->slots[op * HIST_SLOTS + usec_slot(bpf_ktime_get_ns() - start->ns)]);
}

/* What belongs to one file system: its maps and constants. */
#define FILE_SYSTEM(fs)                                                                                               \
	ROWS(fs##_rows, struct fs_row);                                                                               \
	SLOTS(fs##_starts, struct fs_start);                                                                          \
	const volatile __u32 fs##_start_mask;                                                                         \
	const volatile __u64 fs##_filter

/* What an operation does when it begins and when it ends. */
#define FS_ENTER(fs, op) fs_enter(&fs##_starts, fs##_start_mask, fs##_filter, op)
#define FS_LEAVE(fs, op) fs_leave(&fs##_rows, &fs##_starts, fs##_start_mask, fs##_filter, op)
