/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Run queue latency by cgroup of v2. The times are those of runqlat.bpf.c: where that module is on too, its handlers find each time once
 * for both; else they run from here and count for this one only.
 */
#include "shared/places.bpf.h"
#include "shared/groups.bpf.h"

/* A cgroup's tasks, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct cgq_row {
	__u64 used; /* whether a program has counted in it */
	struct fine_hist waits;
	__u64 unmeasured; /* arrivals after an unknown time */
	__u64 pad[5];
};

/* Row 0 of each group of CPUs is for tasks of cgroups that found no place. */
ROWS(cgq_owners, struct place_owner);
ROWS(cgq_rows, struct cgq_row);
ROWS(cgq_marks, struct mark); /* one for each row */

const volatile __u32 cgq_mask; /* places of owners, less 1 */
const volatile __u32 cgq_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool cgq_shared; /* it is more than one */

/* Counts the arrival of a task on this CPU; a time below zero is not known. */
static __always_inline void cgq_count(const bool raw, struct task_struct *task, __s64 wait)
{
	const bool plain = !cgq_shared; /* interrupts are off and the run queue is locked: nothing interleaves */
	struct cgq_row *r;
	__u64 id = 0;

	if (bpf_core_field_exists(((struct task_struct *)0)->cgroups))
		id = GET(GET(GET(GET(task, cgroups), dfl_cgrp), kn), id);
	r = place_row(&cgq_rows, &cgq_marks, cgq_mask, cgq_cpu_shift, place_index(&cgq_owners, cgq_mask, id));
	if (!r)
		return;
	if (likely(wait >= 0))
		GROUP_TIME(r->waits, wait);
	else
		GROUP_SUM(r->unmeasured, 1);
}

static __always_inline void runqlat__sched_wakeup(const bool raw, void *ctx, struct task_struct *task);
static __always_inline void runqlat__sched_wakeup_new(const bool raw, void *ctx, struct task_struct *task);
static __always_inline void runqlat__sched_switch(const bool raw, void *ctx, bool preempt, struct task_struct *prev, struct task_struct *next);

ON(sched_wakeup, struct task_struct *task)
{
	if (!runqlat_on)
		runqlat__sched_wakeup(raw, ctx, task);
}

ON(sched_wakeup_new, struct task_struct *task)
{
	if (!runqlat_on)
		runqlat__sched_wakeup_new(raw, ctx, task);
}

ON(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (!runqlat_on)
		runqlat__sched_switch(raw, ctx, preempt, prev, next);
}
