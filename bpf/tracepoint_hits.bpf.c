/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Hits of the tracepoints that the configuration names. */
#include "hits.bpf.h"

ROWS(tp_hits, struct hit);
PROCESS_SET(tp_set);

const volatile __u32 tp_stride;
const volatile bool tp_filtered;

ON_EACH_TRACEPOINT(target)
{
	struct hit *hit = hit_row(&tp_hits, tp_stride, target);

	if (hit && hit_wanted(tp_filtered, &tp_set))
		COUNT(hit->count); /* each target has a program of its own */
}
