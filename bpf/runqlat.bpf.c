/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Run queue latency: one count per arrival of a task on a CPU. sched_switch fires before the scheduler updates the
 * incoming task's sched_info, so last_queued is still the time it was queued, by the run queue's clock. Where the task
 * before went to sleep, the scheduler has just read that clock. Where a wake-up asked for the switch, it was last read
 * then (rq_clock_skip_update): the time from there, all of it on an idle CPU, takes a clock of our own.
 */
#include "shared/filter.bpf.h"
#include "shared/fine.bpf.h"

struct runq_row {
	__u64 unmeasured; /* arrivals whose time of queueing is not known */
	__u64 ahead;      /* what our clock is ahead of the run queue's; 0: not known yet */
	__u64 compared;   /* when the clocks were last compared, by the run queue's, in RUNQ_COMPARE */
	__u64 preempted;  /* the thread that was last preempted on its way to sleep, and the time */
	__u64 since;
	struct fine_hist waits;
	__u64 pad[2];
};

#define RUNQ_COMPARE 20 /* between two comparisons of the clocks: 1.05 ms, as a power of two in ns */

/* A task as of its last arrival, by its thread id; by the wake-ups: the id, and since when it waits. */
struct runq_task {
	__u64 key;   /* the id << 32, and how often it has arrived (sched_info.pcount): an arrival may go unseen */
	__u64 delay; /* sched_info.run_delay */
};

ROWS(runq_rows, struct runq_row);
PRIVATE(runq_tasks, struct runq_task);

const volatile __u32 runq_task_mask;
const volatile bool runq_by_wakeup; /* the kernel keeps no times of queueing */
const volatile __u64 runq_filter;

/* 1 - and not !, which is a branch in the program at every switch. */
FEATURE(no_sched_info, 1 - bpf_core_field_exists(((struct task_struct *)0)->sched_info.last_queued))

/* Consecutive ids go to places apart: partners that wake each other must not share a line. */
static __always_inline struct runq_task *runq_task(__u64 pid)
{
	return row(&runq_tasks, pid * 0x1e3779b1 >> 12 & runq_task_mask);
}

static __always_inline void runq_waits(__u32 pid, __u64 now)
{
	struct runq_task *t = runq_task(pid);

	if (!t)
		return;
	t->delay = now;
	t->key = pid;
}

ON(sched_wakeup, struct task_struct *task)
{
	runq_waits(GET(task, pid), bpf_ktime_get_ns());
}

ON(sched_wakeup_new, struct task_struct *task)
{
	runq_waits(GET(task, pid), bpf_ktime_get_ns());
}

/* A task's state, as wide as a register, which is less code than a yes or no; 0: runnable, as the idle task is, too. */
static __always_inline __u64 runq_state(const bool raw, struct task_struct *task)
{
	if (bpf_core_field_exists(((struct task_struct___state *)0)->state))
		return GET((struct task_struct___state *)task, state);
	return GET(task, __state);
}

/* Counts the arrival of a task, for others too, `now` by bpf_ktime_get_ns; a time below zero is not known. */
static __always_inline void runq_count(const bool raw, struct runq_row *r, struct task_struct *task, __s64 wait, __u64 now)
{
	/* One question at a switch where the others are off. */
	if (cgroup_runq_on && COUNTS_FOR(cgroup_runq))
		cgq_count(raw, task, wait);
	if (COUNTS_FOR(offcpu))
		ofc_arrives(raw, task, wait, now);
	if ((cgroup_runq_on || oncpu_on || offcpu_on) && !COUNTS_FOR(runqlat))
		return;
	if (runq_filter && !filter_wants(runq_filter, GET(task, tgid)))
		return;
	if (likely(wait >= 0)) {
		/* Interrupts are off and the run queue is locked: nothing interleaves. The sum is last, as in FINE_COUNT. */
		r->waits.buckets[fine_bucket(wait)]++;
		r->waits.sum += wait;
	} else {
		r->unmeasured++;
	}
}

/* Tells others of a switch; `now` by bpf_ktime_get_ns. */
static __always_inline void runq_tell(const bool raw, void *ctx, bool preempt, __u64 sleeps, struct task_struct *prev, struct task_struct *next, __u64 now)
{
	if (COUNTS_FOR(oncpu))
		onc_switch(raw, preempt, sleeps, prev, next, now);
	if (COUNTS_FOR(offcpu))
		ofc_leaves(raw, ctx, preempt, sleeps, prev, now);
}

/* The arrival of a task by the times of the wake-up programs. */
static __always_inline void runq_switch_by_wakeup(const bool raw, void *ctx, struct runq_row *r, bool preempt,
						  struct task_struct *prev, struct task_struct *next)
{
	__u32 pid = GET(next, pid);
	struct runq_task *t;
	__u64 sleeps = runq_state(raw, prev), now = bpf_ktime_get_ns();
	__s64 wait = -1;

	runq_tell(raw, ctx, preempt, sleeps, prev, next, now);
	if (preempt || !sleeps)
		runq_waits(GET(prev, pid), now); /* taken off the CPU, it waits from now on */
	if (!pid)
		return;
	t = runq_task(pid);
	if (t && t->key == pid) {
		wait = now - t->delay;
		t->key = 0; /* never pairs with a later arrival */
	}
	runq_count(raw, r, next, wait, now);
}

/*
 * The time by our clock, on the run queue's scale. A comparison of the clocks finds too much: what went by since the
 * scheduler read its own, which is long on the way to idle, where it looks for work on other CPUs first, and where a
 * hypervisor took the CPU away. So the least that is found counts at once, and what is more by a sixteenth each
 * RUNQ_COMPARE, since the clocks drift.
 */
static __always_inline __u64 runq_now(struct runq_row *r, __u64 clock, bool compare)
{
	__u64 now = bpf_ktime_get_ns(), ahead = r->ahead;

	if (!ahead || (__s64)(now - clock - ahead) < 0)
		ahead = now - clock;
	now -= ahead;
	if (compare && clock >> RUNQ_COMPARE != r->compared) {
		ahead += (now - clock) >> 4;
		r->compared = clock >> RUNQ_COMPARE;
	}
	r->ahead = ahead;
	return now;
}

ON(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u64 queued, clock, now, delay, before;
	struct runq_row *r = cpu_row(&runq_rows);
	struct runq_task *t;
	__u64 pid, key, arrivals;
	__u64 sleeps;

	if (!r)
		return;
	if (feature__no_sched_info() || runq_by_wakeup)
		return runq_switch_by_wakeup(raw, ctx, r, preempt, prev, next);
	now = clock = GET(GET(GET(prev, se.cfs_rq), rq), clock);
	queued = GET(next, sched_info.last_queued);
	sleeps = runq_state(raw, prev);
	/* Preempted on its way to sleep, a task goes on waiting for a CPU, but the kernel does not keep since when. */
	if (unlikely(preempt) && sleeps) {
		r->since = clock;
		r->preempted = (__u32)GET(prev, pid);
	}
	/* Queued at this very moment, as it seems: a wake-up asked for the switch before the other went to sleep. */
	if (!sleeps || unlikely(clock == queued) || unlikely(clock >> RUNQ_COMPARE != r->compared))
		now = runq_now(r, clock, sleeps);
	runq_tell(raw, ctx, preempt, sleeps, prev, next, now + r->ahead);
	if (!runqlat_on && !cgroup_runq_on && !offcpu_on)
		return; /* nobody asks since when a task waits */
	pid = (__u32)GET(next, pid);
	if (!pid)
		return; /* the idle task never waits */
	t = runq_task(pid);
	if (!t)
		return;

	/*
	 * When a waiting task moves to another CPU the kernel folds the wait so far into run_delay and restarts
	 * last_queued; what has been folded since the last arrival belongs to this wait.
	 */
	before = delay = GET(next, sched_info.run_delay);
	if (likely(queued)) {
		arrivals = GET(next, sched_info.pcount);
		key = (pid << 32) + arrivals;
		if (likely(t->key == key))
			before = t->delay;
		else if (!arrivals)
			before = 0; /* its first */
		t->key = key + 1;
		t->delay = delay + clock - queued; /* as the kernel is about to add it up */
	} else if (r->preempted == pid) {
		queued = r->since;
		r->preempted = 0; /* never pairs with a later arrival */
	} else {
		queued = -1ULL >> 1;
	}
	runq_count(raw, r, next, now - queued + delay - before, now + r->ahead);
}
