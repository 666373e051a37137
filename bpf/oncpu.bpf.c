/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Turns of tasks on a CPU: how long, and how they end. A turn lasts from the switch to a task to the next switch of that CPU. The times
 * are those of runqlat.bpf.c, whose program runs for this one where that module is off.
 */
#include "shared/places.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/groups.bpf.h"

/* A CPU. */
struct onc_row {
	__u64 since;   /* the last switch, by bpf_ktime_get_ns */
	__u64 running; /* the thread that it was to */
	__u64 voluntary;
	__u64 involuntary;
	__u64 migrations;
	__u64 unmeasured; /* turns whose beginning was not seen */
	struct fine_hist turns;
	__u64 pad;
};

/* A cgroup's tasks, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct onc_group {
	__u64 used; /* whether a program has counted in it */
	__u64 ns;
	__u64 voluntary;
	__u64 involuntary;
	__u64 migrations;
	__u64 preempted_by_own;
	__u64 preempted_by_other;
	__u64 pad;
};

ROWS(onc_rows, struct onc_row);
ROWS(onc_owners, struct place_owner);
ROWS(onc_groups, struct onc_group);
ROWS(onc_marks, struct mark); /* one for each row of a group */

const volatile __u64 onc_filter;
const volatile bool onc_by_cgroup;
const volatile __u32 onc_mask; /* places of owners, less 1 */
const volatile __u32 onc_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool onc_shared; /* it is more than one */

static __always_inline __u64 onc_cgroup(const bool raw, struct task_struct *task)
{
	return GET(GET(GET(GET(task, cgroups), dfl_cgrp), kn), id);
}

static __always_inline struct onc_group *onc_group(__u64 cgroup)
{
	return place_row(&onc_groups, &onc_marks, onc_mask, onc_cpu_shift, place_index(&onc_owners, onc_mask, cgroup));
}

/*
 * A CPU switches between tasks; `sleeps` is the state of the first, 0 where it stays runnable. Interrupts are off and the run queue is
 * locked: nothing interleaves.
 */
static __always_inline void onc_switch(const bool raw, bool preempt, __u64 sleeps, struct task_struct *prev, struct task_struct *next, __u64 now)
{
	const bool plain = !onc_shared;
	struct onc_row *r = cpu_row(&onc_rows);
	struct onc_group *group;
	__u64 pid = (__u32)GET(prev, pid), next_pid = (__u32)GET(next, pid), since, cgroup;
	bool is_known, voluntary = !preempt && sleeps;

	if (!r)
		return;
	since = r->since;
	is_known = r->running == pid && now > since;
	r->since = now;
	r->running = next_pid;
	if (!pid || (onc_filter && !filter_wants(onc_filter, GET(prev, tgid))))
		return;
	if (voluntary)
		r->voluntary++;
	else
		r->involuntary++;
	if (likely(is_known)) {
		/* The sum is last, as in FINE_COUNT. */
		r->turns.buckets[fine_bucket(now - since)]++;
		r->turns.sum += now - since;
	} else if (since) { /* else it began before the program was attached */
		r->unmeasured++;
	}
	if (!onc_by_cgroup)
		return;
	cgroup = onc_cgroup(raw, prev);
	group = onc_group(cgroup);
	if (!group)
		return;
	if (is_known)
		GROUP_SUM(group->ns, now - since);
	if (voluntary) {
		GROUP_SUM(group->voluntary, 1);
		return;
	}
	GROUP_SUM(group->involuntary, 1);
	if (!next_pid)
		return; /* no task took the CPU: a limit of the cgroup did, or a move to another CPU */
	if (onc_cgroup(raw, next) == cgroup)
		GROUP_SUM(group->preempted_by_own, 1);
	else
		GROUP_SUM(group->preempted_by_other, 1);
}

static __always_inline void runqlat__sched_switch(const bool raw, void *ctx, bool preempt, struct task_struct *prev, struct task_struct *next);

ON(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (!runqlat_on && !cgroup_runq_on && !offcpu_on)
		runqlat__sched_switch(raw, ctx, preempt, prev, next);
}

/* The kernel calls it for real moves only, with interrupts off. */
ON(sched_migrate_task, struct task_struct *task)
{
	const bool plain = !onc_shared;
	struct onc_row *r = cpu_row(&onc_rows);
	struct onc_group *group;

	if (!r || (onc_filter && !filter_wants(onc_filter, GET(task, tgid))))
		return;
	r->migrations++;
	if (!onc_by_cgroup)
		return;
	group = onc_group(onc_cgroup(raw, task));
	if (group)
		GROUP_SUM(group->migrations, 1);
}
