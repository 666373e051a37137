/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Events of language runtimes by process and kind, which is the target. The agent frees the rows of processes that ended. */
#include "shared/owned.bpf.h"
#include "shared/filter.bpf.h"

#define US_EVENTS 6 /* as many as src/modules/shared/runtimes.rs has */
#define US_WAYS 8

struct us_row {
	__u64 process; /* 0: free */
	__u64 claims;
	__u64 counts[US_EVENTS];
};

struct us_stat {
	__u64 crowded; /* events of processes that found no row */
	__u64 pad[7];
};

ROWS(us_rows, struct us_row);
ROWS(us_stats, struct us_stat);

const volatile __u32 us_mask;
const volatile __u64 us_filter;

static __always_inline struct us_row *us_find(__u64 process)
{
	__u32 hash = number_hash(process), place;
	struct us_row *r;

	OWNED_ROW(r, place, &us_rows, US_WAYS, number_slot(hash, nth) & us_mask, r->process == process, claim(&r->claims),
		  r->process = process);
	return r;
}

ON_EACH_CODE(target, ctx)
{
	__u64 process = bpf_get_current_pid_tgid() >> 32;
	struct us_row *r;

	if (target >= US_EVENTS || !filter_wants(us_filter, process))
		return;
	r = us_find(process);
	if (r) {
		BOUND(target, 7);
		if (target < US_EVENTS)
			ADD(r->counts[target], 1);
		return;
	}
	LOSE(us_stats, crowded);
}
