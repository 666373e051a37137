/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP and UDP calls and bytes of each thread. */
#include "shared/sock.bpf.h"

struct net_row {
	struct {
		__u64 calls;
		__u64 bytes;
	} cells[4];
};

#define COUNTS struct net_row
#define STEM netproc
#include "shared/by_process.bpf.h"

static __always_inline void OWN(moved)(__u64 cell, __s64 bytes)
{
	struct net_row *r = OWN(counts_of_thread)();

	BOUND(cell, 3);
	if (!r)
		return;
	r->cells[cell].calls++;
	if (bytes > 0)
		r->cells[cell].bytes += bytes;
}

#include "shared/traffic.bpf.h"
