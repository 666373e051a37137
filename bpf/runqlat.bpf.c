/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Run queue latency: one count per arrival of a task on a CPU. sched_switch fires before the scheduler updates the
 * incoming task's sched_info, so last_queued is still the time it was queued, by the same clock the run queue has just
 * read under its lock: no clock is read here.
 */
#include "filter.bpf.h"
#include "hist.bpf.h"

struct runq_row {
	__u64 unmeasured; /* arrivals whose time of queueing the kernel did not keep */
	__u64 pad[7];
	__u64 slots[HIST_SLOTS];
};

/* sched_info.run_delay of a task when it last arrived, by thread id. */
struct runq_delay {
	__u64 pid;
	__u64 delay;
};

ROWS(runq_rows, struct runq_row);
SLOTS(runq_delays, struct runq_delay);

PROCESS_SET(runq_set);

const volatile __u32 runq_delay_mask;
const volatile bool runq_filtered;

FEATURE(sched_info, bpf_core_field_exists(((struct task_struct *)0)->sched_info.last_queued))

ON(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u64 queued, clock, wait, before, pcount;
	struct runq_delay *delay;
	struct runq_row *r;
	__u32 pid = GET(next, pid);

	if (!pid)
		return; /* the idle task never waits */
	r = cpu_row(&runq_rows);
	if (!r)
		return;
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
	delay = row(&runq_delays, (pid << 3 | pid >> 12) & runq_delay_mask);
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
