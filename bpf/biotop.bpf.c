/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Block I/O by process, disk and direction, with times. Where bioperpid is on it counts for both; the time of issue is ours. */
#include "shared/owners.bpf.h"

static __always_inline bool OWN(counts)(void)
{
	return !bioperpid_on;
}

#include "shared/owner_events.bpf.h"

ON(block_rq_issue, struct request *rq)
{
	owner_issue(raw, rq);
}
