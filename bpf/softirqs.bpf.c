/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Softirqs by vector: how long each runs, and how long it was raised before. A CPU runs one at a time, whichever task it interrupts, so
 * that times are kept by CPU. Interrupts that come meanwhile are part of a softirq's time.
 */
#include "shared/fine.bpf.h"

#define SOFTIRQS 10 /* NR_SOFTIRQS of include/linux/interrupt.h */

/* A vector on a CPU. */
struct soft_row {
	__u64 since;  /* when it began, by bpf_ktime_get_ns; 0: it does not run */
	__u64 unseen; /* ends without a beginning */
	struct fine_hist times;
	__u64 pad[5];
};

/* The same, while it waits. */
struct soft_wait {
	__u64 raised; /* when it was raised first since it last began; 0: it is not raised */
	struct fine_hist times;
	__u64 pad[6];
};

ROWS(soft_rows, struct soft_row); /* for each CPU one for each vector */
ROWS(soft_waits, struct soft_wait);

const volatile bool soft_waiting;

static __always_inline void *soft_row_of(void *rows, __u32 vector)
{
	return row(rows, bpf_get_smp_processor_id() * SOFTIRQS + vector);
}

ON(softirq_raise, unsigned int vector)
{
	struct soft_wait *wait = vector < SOFTIRQS ? soft_row_of(&soft_waits, vector) : NULL;

	if (wait && !wait->raised)
		wait->raised = bpf_ktime_get_ns();
}

ON(softirq_entry, unsigned int vector)
{
	struct soft_row *r = vector < SOFTIRQS ? soft_row_of(&soft_rows, vector) : NULL;
	__u64 now = bpf_ktime_get_ns();
	struct soft_wait *wait;

	if (!r)
		return;
	r->since = now;
	if (!soft_waiting)
		return;
	wait = soft_row_of(&soft_waits, vector);
	if (!wait || !wait->raised)
		return; /* its raise was taken for that of the run before, which had not begun */
	now -= wait->raised;
	wait->raised = 0;
	FINE_COUNT(wait->times, now);
}

ON(softirq_exit, unsigned int vector)
{
	struct soft_row *r = vector < SOFTIRQS ? soft_row_of(&soft_rows, vector) : NULL;
	__u64 since;

	if (!r)
		return;
	since = r->since;
	r->since = 0;
	if (likely(since))
		FINE_COUNT(r->times, bpf_ktime_get_ns() - since);
	else
		r->unseen++;
}
