/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Hits of the functions of programs and libraries that the configuration names. */
#include "hits.bpf.h"

ROWS(up_hits, struct hit);

const volatile __u32 up_stride;
const volatile __u64 up_filter;

ON_EACH_CODE(target)
{
	struct hit *hit = hit_row(&up_hits, up_stride, target);

	if (hit && hit_wanted(up_filter))
		ADD(hit->count, 1); /* another task can preempt this one here, on this CPU */
}
