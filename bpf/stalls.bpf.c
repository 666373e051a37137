/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Pauses that tasks take to make room in memory: reclaim, compaction, and waits of writers for the disk. In all and by cgroup of v2. */
#include "shared/fine.bpf.h"
#include "shared/places.bpf.h"
#include "shared/set_table.bpf.h"

#define PF_KTHREAD 0x00200000

enum stall_cause {
	STALL_DIRECT,
	STALL_MEMCG,
	STALL_COMPACT,
	STALL_DIRTY,
	STALL_CAUSES,
};

/* A CPU. */
struct stall_row {
	__u64 unseen;    /* ends without a beginning */
	__u64 displaced; /* beginnings that gave way to another's */
	__u64 pad[2];
	struct fine_hist times[STALL_CAUSES];
};

/* A cgroup. Counters only: the agent adds rows up word by word. */
struct stall_group {
	__u64 used; /* whether a program has counted in it */
	__u64 counts[STALL_CAUSES];
	__u64 ns[STALL_CAUSES];
	__u64 pad[7];
};

ROWS(stall_rows, struct stall_row);
PRIVATE(stall_starts, struct set_numbers); /* by thread and cause */
ROWS(stall_owners, struct place_owner);
ROWS(stall_groups, struct stall_group);
ROWS(stall_marks, struct mark);

const volatile __u32 stall_starts_mask; /* sets, less 1 */
const volatile bool stall_by_cgroup;
const volatile __u32 stall_mask; /* places of owners, less 1 */
const volatile __u32 stall_tick; /* nanoseconds of a jiffy */

static __always_inline __u64 stall_key(enum stall_cause cause)
{
	return (__u64)(cause + 1) << 32 | (__u32)bpf_get_current_pid_tgid();
}

static __always_inline void stall_begins(enum stall_cause cause)
{
	if (set_begins(&stall_starts, stall_starts_mask, stall_key(cause)))
		LOSE(stall_rows, displaced);
}

static __always_inline void stall_count(enum stall_cause cause, __u64 ns)
{
	struct stall_row *r = cpu_row(&stall_rows);
	struct stall_group *group;

	if (!r)
		return;
	FINE_COUNT(r->times[cause], ns);
	if (!stall_by_cgroup)
		return;
	group = place_row(&stall_groups, &stall_marks, stall_mask, ALL_CPUS,
			  place_index(&stall_owners, stall_mask, bpf_get_current_cgroup_id()));
	if (!group)
		return;
	ADD(group->counts[cause], 1);
	ADD(group->ns[cause], ns);
}

static __always_inline void stall_ends(enum stall_cause cause)
{
	__u64 now = bpf_ktime_get_ns(), since;

	if (set_take(&stall_starts, stall_starts_mask, stall_key(cause), &since))
		stall_count(cause, now - since);
	else
		LOSE(stall_rows, unseen);
}

/* The kernel's own compaction, by kcompactd or for huge pages, holds nobody up. */
static __always_inline bool stall_is_kernel(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, flags) & PF_KTHREAD;
}

ON(mm_vmscan_direct_reclaim_begin)
{
	stall_begins(STALL_DIRECT);
}

ON(mm_vmscan_direct_reclaim_end)
{
	stall_ends(STALL_DIRECT);
}

ON(mm_vmscan_memcg_reclaim_begin)
{
	stall_begins(STALL_MEMCG);
}

ON(mm_vmscan_memcg_reclaim_end)
{
	stall_ends(STALL_MEMCG);
}

ON(mm_compaction_begin)
{
	if (!stall_is_kernel())
		stall_begins(STALL_COMPACT);
}

ON(mm_compaction_end)
{
	if (!stall_is_kernel())
		stall_ends(STALL_COMPACT);
}

/* A writer that has made too many pages dirty sleeps for so many jiffies, unless it is none or less. */
static __always_inline void stall_dirty(long pause)
{
	if (pause > 0)
		stall_count(STALL_DIRTY, (__u64)pause * stall_tick);
}

ON(balance_dirty_pages, void *wb, void *control, long ratelimit, long task_ratelimit, long dirtied, long period, long pause)
{
	stall_dirty(pause);
}

/* Before 6.18. */
ON(balance_dirty_pages___limits, void *wb, long all, long background, long dirty, long wb_all, long wb_dirty, long ratelimit, long task_ratelimit, long dirtied, long period, long pause)
{
	stall_dirty(pause);
}
