/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Run queue latency: one count per arrival of a task on a CPU. sched_switch fires before the scheduler updates the
 * incoming task's sched_info, so last_queued is still the time it was queued, by the run queue's clock. Where the task
 * before went to sleep, the scheduler has just read that clock, as a rule. Where a wake-up asked for the switch, it was
 * last read then (rq_clock_skip_update): the time from there, all of it on an idle CPU, takes a clock of our own.
 */
#include "shared/filter.bpf.h"
#include "shared/hist.bpf.h"

struct runq_row {
	__u64 unmeasured; /* arrivals whose time of queueing is not known */
	__u64 by_wakeup;  /* set by the agent once the wake-up programs run: use their times where the kernel keeps none */
	__u64 ahead;      /* what our clock is ahead of the run queue's; 0: not known yet */
	__u64 least;      /* the least that was found of it in this period; 0: nothing yet */
	__u64 compared;   /* when the clocks were last compared, by the run queue's */
	__u64 period;     /* when this period began, by the same */
	__u64 buckets[HIST_BUCKETS];
	__u64 pad[2];
};

/*
 * Between two comparisons of the clocks, and a period of them. The clocks drift by some millionths, but a comparison finds
 * too much: what went by since the scheduler read its clock, which is long on the way to idle, where it looks for work on
 * other CPUs first, and where a hypervisor took the CPU away. The least of several is near.
 */
#define RUNQ_COMPARE 1000000 /* ns */
#define RUNQ_PERIOD 16000000 /* ns */

/* When a task became runnable, by thread id, where the kernel does not keep it. */
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
PRIVATE(runq_delays, struct runq_delay);
PRIVATE(runq_waits, struct runq_wait);

const volatile __u32 runq_delay_mask;
const volatile __u64 runq_filter;

FEATURE(no_sched_info, !bpf_core_field_exists(((struct task_struct *)0)->sched_info.last_queued))

/* Consecutive ids go to places apart: partners that wake each other must not share a line. */
static __always_inline __u32 runq_place(__u32 pid)
{
	return pid * 0x9e3779b1 >> 12 & runq_delay_mask;
}

static __always_inline void runq_since(__u32 pid, __u64 ns)
{
	struct runq_wait *wait = row(&runq_waits, runq_place(pid));

	if (!wait)
		return;
	wait->ns = ns;
	wait->pid = pid;
}

/* Since when a task waits; 0 if that is not known. */
static __always_inline __u64 runq_waits_since(__u32 pid)
{
	struct runq_wait *wait = row(&runq_waits, runq_place(pid));

	if (!wait || wait->pid != pid)
		return 0;
	wait->pid = 0; /* never pairs with a later arrival */
	return wait->ns;
}

ON(sched_wakeup, struct task_struct *task)
{
	runq_since(GET(task, pid), bpf_ktime_get_ns());
}

ON(sched_wakeup_new, struct task_struct *task)
{
	runq_since(GET(task, pid), bpf_ktime_get_ns());
}

static __always_inline bool runq_is_runnable(const bool raw, struct task_struct *task)
{
	if (bpf_core_field_exists(((struct task_struct___state *)0)->state))
		return !GET((struct task_struct___state *)task, state);
	return !GET(task, __state);
}

static __always_inline void runq_count(const bool raw, struct runq_row *r, struct task_struct *task, __u64 wait)
{
	if (runq_filter && !filter_wants(runq_filter, GET(task, tgid)))
		return;
	r->buckets[usec_bucket(wait)]++; /* interrupts are off and the run queue is locked: nothing interleaves */
}

static __always_inline void runq_unmeasured(const bool raw, struct runq_row *r, struct task_struct *task)
{
	if (!runq_filter || filter_wants(runq_filter, GET(task, tgid)))
		r->unmeasured++;
}

/* The arrival of a task by the times of the wake-up programs. */
static __always_inline void runq_by_wakeup(const bool raw, struct runq_row *r, bool preempt, struct task_struct *prev,
					   struct task_struct *next)
{
	__u64 now = bpf_ktime_get_ns(), since;
	__u32 pid = GET(next, pid);

	if (preempt || runq_is_runnable(raw, prev))
		runq_since(GET(prev, pid), now); /* taken off the CPU, it waits from now on */
	if (!pid)
		return;
	since = runq_waits_since(pid);
	if (!since || since > now)
		runq_unmeasured(raw, r, next);
	else
		runq_count(raw, r, next, now - since);
}

/* The clock of this CPU's run queue, which the scheduler has just read. */
static __always_inline __u64 runq_clock(const bool raw, struct task_struct *prev)
{
	return GET(GET(GET(prev, se.cfs_rq), rq), clock);
}

static __always_inline void runq_lower(__u64 *least, __u64 ahead)
{
	if (!*least || (__s64)(ahead - *least) < 0)
		*least = ahead;
}

/* The clock as of now after a task that sleeps, for which the scheduler has read it. */
static __always_inline __u64 runq_compare(struct runq_row *r, __u64 clock)
{
	__u64 ahead;

	if (likely(clock - r->compared <= RUNQ_COMPARE))
		return clock;
	ahead = bpf_ktime_get_ns() - clock;
	runq_lower(&r->least, ahead);
	runq_lower(&r->ahead, ahead);
	r->compared = clock;
	if (clock - r->period > RUNQ_PERIOD) {
		r->ahead = r->least;
		r->least = 0;
		r->period = clock;
	}
	return clock;
}

/* The clock as of now where it may have stood still since a wake-up. */
static __always_inline __u64 runq_now(struct runq_row *r, __u64 clock)
{
	__u64 now = bpf_ktime_get_ns() - r->ahead;

	return r->ahead && (__s64)(now - clock) > 0 ? now : clock;
}

ON(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u64 queued, since, clock, now, delayed, folded = 0;
	struct runq_row *r = cpu_row(&runq_rows);
	struct runq_delay *delay;
	__u32 pid = GET(next, pid);
	bool fresh;

	if (!r)
		return;
	if (feature__no_sched_info() || unlikely(r->by_wakeup))
		return runq_by_wakeup(raw, r, preempt, prev, next);
	/* Preempted on its way to sleep, a task goes on waiting for a CPU, but the kernel does not keep since when. */
	if (unlikely(preempt) && !runq_is_runnable(raw, prev))
		runq_since(GET(prev, pid), runq_clock(raw, prev));
	clock = runq_clock(raw, prev);
	if (!pid) {
		runq_compare(r, clock);
		return; /* the idle task never waits */
	}
	queued = GET(next, sched_info.last_queued);
	/* Queued at this very moment, as it seems: a wake-up asked for the switch before the other task went to sleep. */
	fresh = GET(prev, pid) && !runq_is_runnable(raw, prev) && clock != queued;
	now = fresh ? runq_compare(r, clock) : runq_now(r, clock);
	since = likely(queued) ? queued : runq_waits_since(pid);
	if (unlikely(!since || clock < since))
		return runq_unmeasured(raw, r, next);

	/*
	 * When a waiting task moves to another CPU the kernel folds the wait so far into run_delay and restarts
	 * last_queued; what has been folded since the last arrival belongs to this wait.
	 */
	delayed = GET(next, sched_info.run_delay);
	delay = row(&runq_delays, runq_place(pid));
	if (delay) {
		if (unlikely(!GET(next, sched_info.pcount)))
			folded = delayed; /* its first arrival; the place may still hold an earlier task's */
		else if (likely(delay->pid == pid) && delayed > delay->delay)
			folded = delayed - delay->delay;
		delay->pid = pid;
		delay->delay = delayed + (likely(queued) ? clock - queued : 0); /* as the kernel is about to add it up */
	}
	runq_count(raw, r, next, now - since + folded);
}
