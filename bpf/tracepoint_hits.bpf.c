/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Hits of the tracepoints that the configuration names. */
#include "shared/hits.bpf.h"

ROWS(tp_hits, struct hit);

const volatile __u32 tp_stride;
const volatile __u64 tp_filter;

ON_EACH_TRACEPOINT(target)
{
	struct hit *hit = hit_row(&tp_hits, tp_stride, target);

	if (hit && filter_wants_current(tp_filter))
		COUNT(hit->count); /* each target has a program of its own */
}
