/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Threads that JVMs start and stop: target 0 and 1. */
#include "shared/hits.bpf.h"

ROWS(jt_hits, struct hit);

const volatile __u32 jt_stride;
const volatile __u64 jt_filter;

ON_EACH_CODE(target, ctx)
{
	if (filter_wants_current(jt_filter))
		hit_user(&jt_hits, jt_stride, target);
}
