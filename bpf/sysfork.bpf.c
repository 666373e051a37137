/* SPDX-License-Identifier: GPL-2.0-or-later */
/* New tasks: processes, vforks and threads, kernel threads included. */
#include "shared/probe.bpf.h"

#define CLONE_VFORK 0x4000

struct fork_row {
	__u64 processes;
	__u64 vforks;
	__u64 threads;
	__u64 pad[5];
};

ROWS(fork_rows, struct fork_row);

ON(task_newtask, struct task_struct *task, unsigned long clone_flags)
{
	struct fork_row *r = cpu_row(&fork_rows);

	if (!r)
		return;
	if (clone_flags & CLONE_THREAD)
		COUNT(r->threads);
	else if (clone_flags & CLONE_VFORK)
		COUNT(r->vforks);
	else
		COUNT(r->processes);
}
