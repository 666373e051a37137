/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Run queue latency: one count per arrival of a task on a CPU. sched_switch fires before the scheduler updates the
 * incoming task's sched_info, so last_queued is still the time it was queued, by the same clock the run queue has just
 * read under its lock: no clock is read here.
 */
#include "filter.bpf.h"
#include "hist.bpf.h"

struct runq_row {
	__u64 unmeasured; /* arrivals whose time of queueing is not known */
	__u64 by_wakeup;  /* set by the agent once the wake-up programs run: use their times where the kernel keeps none */
	__u64 pad[6];
	__u64 slots[HIST_SLOTS];
};

/* When a task became runnable, by thread id: for kernels that do not keep it. */
struct runq_wait {
	__u64 pid;
	__u64 ns;
};

/* sched_info.run_delay of a task when it last arrived, by thread id. */
struct runq_delay {
	__u64 pid;
	__u64 delay;
};

ROWS(runq_rows, struct runq_row);
SLOTS(runq_delays, struct runq_delay);
SLOTS(runq_waits, struct runq_wait);

PROCESS_SET(runq_set);

const volatile __u32 runq_delay_mask;
const volatile bool runq_filtered;

FEATURE(no_sched_info, !bpf_core_field_exists(((struct task_struct *)0)->sched_info.last_queued))

/* Consecutive ids go to places apart: partners that wake each other must not share a line. */
static __always_inline __u32 runq_place(__u32 pid)
{
	return pid * 0x9e3779b1 >> 12 & runq_delay_mask;
}

static __always_inline void runq_runnable(__u32 pid)
{
	struct runq_wait *wait = row(&runq_waits, runq_place(pid));

	if (!wait)
		return;
	wait->ns = bpf_ktime_get_ns();
	wait->pid = pid;
}

ON(sched_wakeup, struct task_struct *task)
{
	runq_runnable(GET(task, pid));
}

ON(sched_wakeup_new, struct task_struct *task)
{
	runq_runnable(GET(task, pid));
}

static __always_inline bool runq_is_runnable(const bool raw, struct task_struct *task)
{
	if (bpf_core_field_exists(((struct task_struct___state *)0)->state))
		return !GET((struct task_struct___state *)task, state);
	return !GET(task, __state);
}

/* The wait by the wake-up programs' time; negative if they saw no wake-up. */
static __always_inline __s64 runq_woken(__u32 pid)
{
	struct runq_wait *wait = row(&runq_waits, runq_place(pid));
	__u64 now = bpf_ktime_get_ns();

	if (!wait || wait->pid != pid || wait->ns > now)
		return -1;
	wait->pid = 0; /* never pairs with a later arrival */
	return now - wait->ns;
}

ON(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u64 queued, clock, wait, before, pcount;
	struct runq_delay *delay;
	struct runq_row *r = cpu_row(&runq_rows);
	__u32 pid = GET(next, pid);

	if (!r)
		return;
	if (r->by_wakeup && runq_is_runnable(raw, prev))
		runq_runnable(GET(prev, pid)); /* taken off the CPU, it waits from now on */
	if (!pid)
		return; /* the idle task never waits */
	if (r->by_wakeup) {
		__s64 woken = runq_woken(pid);

		if (runq_filtered && !in_set(&runq_set, GET(next, tgid)))
			return;
		if (woken < 0)
			r->unmeasured++;
		else
			r->slots[usec_slot(woken)]++;
		return;
	}
	if (!bpf_core_field_exists(((struct task_struct *)0)->sched_info.last_queued)) {
		r->unmeasured++;
		return;
	}
	queued = GET(next, sched_info.last_queued);
	clock = GET(GET(GET(prev, se.cfs_rq), rq), clock);
	if (!queued || clock < queued) {
		if (!runq_filtered)
			r->unmeasured++;
		return;
	}
	wait = clock - queued;

	/*
	 * When a waiting task moves to another CPU the kernel folds the wait so far into run_delay and restarts
	 * last_queued; what has been folded since the last arrival belongs to this wait.
	 */
	before = GET(next, sched_info.run_delay);
	pcount = GET(next, sched_info.pcount);
	delay = row(&runq_delays, runq_place(pid));
	if (delay) {
		__u64 folded = 0;

		if (!pcount)
			folded = before;
		else if (delay->pid == pid && before > delay->delay)
			folded = before - delay->delay;
		delay->pid = pid;
		delay->delay = before + wait;
		wait += folded;
	}
	if (runq_filtered && !in_set(&runq_set, GET(next, tgid)))
		return;
	r->slots[usec_slot(wait)]++; /* interrupts are off and the run queue is locked: nothing interleaves */
}
