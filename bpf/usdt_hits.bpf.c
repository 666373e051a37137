/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Hits of the USDT probes that the configuration names; which processes count is a matter of where they are attached. */
#include "hits.bpf.h"

ROWS(ud_hits, struct hit);

const volatile __u32 ud_stride;

ON_EACH_CODE(target, ctx)
{
	hit_user(&ud_hits, ud_stride, target);
}
