/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counting hits of targets: a counter per CPU and target, the counters of a CPU side by side. */
#pragma once

#include "filter.bpf.h"

struct hit {
	__u64 count;
};

static __always_inline struct hit *hit_row(void *map, __u32 stride, __u32 target)
{
	return row(map, bpf_get_smp_processor_id() * stride + target);
}

/* A hit in user code, where another task can preempt this one on this CPU. */
static __always_inline void hit_user(void *map, __u32 stride, __u32 target)
{
	struct hit *hit = hit_row(map, stride, target);

	if (hit)
		ADD(hit->count, 1);
}
