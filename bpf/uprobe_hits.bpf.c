/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Hits of the functions of programs and libraries that the configuration names. */
#include "shared/hits.bpf.h"

ROWS(up_hits, struct hit);

const volatile __u32 up_stride;
const volatile __u64 up_filter;

ON_EACH_CODE(target, ctx)
{
	if (filter_wants_current(up_filter))
		hit_user(&up_hits, up_stride, target);
}
