/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Events of language runtimes by process and kind, which is the target. Attached to single processes. */
#include "filter.bpf.h"

#define KINDS 8 /* a power of two, no less than src/modules/runtimes.rs has */

struct us_row {
	__u64 counts[KINDS];
};

ROWS(us_rows, struct us_row);
PROCESS_SET(us_set); /* with the row of each process */

ON_EACH_CODE(target, ctx)
{
	__u32 *place = set_number(&us_set, bpf_get_current_pid_tgid() >> 32);
	struct us_row *r = place ? row(&us_rows, *place) : NULL;

	if (!r)
		return;
	BOUND(target, 7);
	ADD(r->counts[target], 1);
}
