/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Events of language runtimes by process and kind. Attached to single processes; the target is the row of one and the kind. */
#include "probe.bpf.h"

#define KINDS 8 /* a power of two, no less than src/modules/runtimes.rs has */

struct us_row {
	__u64 counts[KINDS];
};

ROWS(us_rows, struct us_row);

ON_EACH_CODE(target, ctx)
{
	struct us_row *r = row(&us_rows, target / KINDS);

	if (!r)
		return;
	BOUND(target, 7);
	ADD(r->counts[target], 1);
}
