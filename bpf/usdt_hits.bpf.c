/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Hits of the USDT probes that the configuration names. */
#include "shared/hits.bpf.h"

ROWS(ud_hits, struct hit);

const volatile __u32 ud_stride;
const volatile __u64 ud_filter;

ON_EACH_CODE(target, ctx)
{
	if (filter_wants_current(ud_filter))
		hit_user(&ud_hits, ud_stride, target);
}
