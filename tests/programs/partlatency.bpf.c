/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Reads and writes by partition: from the allocation of a request to its completion. A disk without partitions is its own. */
#include "shared/block_times.bpf.h"
#include "shared/fine.bpf.h"
#include "shared/keys.bpf.h"

struct block_device___number {
	__u32 bd_dev;
} __attribute__((preserve_access_index));

/* Linux 5.11 and later; a flush has no partition. */
struct request___part {
	struct block_device___number *part;
} __attribute__((preserve_access_index));

/* One per CPU and partition. */
struct part_row {
	__u64 key; /* major << 20 | minor */
	__u64 lost;
	__u64 pad[4];
	struct fine_hist total[2]; /* reads, writes */
};

ROWS(part_rows, struct part_row);

ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	struct block_device___number *part = GET((struct request___part *)rq, part);
	__u32 op = block_op(raw, rq);
	struct part_row *r;
	__s64 ns;

	if (!part || op > OP_WRITE || block_is_ghost(op, nr_bytes) || block_is_part(raw, rq, nr_bytes))
		return;
	ns = block_since_allocation(raw, rq, op, bpf_ktime_get_ns());
	r = keyed_row(&part_rows, GET(part, bd_dev));
	if (!r || ns < 0)
		return;
	if (op == OP_WRITE)
		FINE_COUNT(r->total[1], ns);
	else
		FINE_COUNT(r->total[0], ns);
}
