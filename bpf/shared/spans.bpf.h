/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Times of spans: how many, their sum, and the longest. */
#pragma once

#include "probe.bpf.h"

struct span_times {
	__u64 count;
	__u64 ns;
	__u64 max[4]; /* by CPU: there is no atomic maximum before 5.12, and one CPU in four seldom comes in between */
};

static __always_inline void span_add(struct span_times *times, __u64 ns)
{
	__u64 cpu = bpf_get_smp_processor_id();

	BOUND(cpu, 3);
	ADD(times->count, 1);
	ADD(times->ns, ns);
	if (ns > times->max[cpu])
		times->max[cpu] = ns;
}
