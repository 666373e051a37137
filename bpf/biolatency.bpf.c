/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Block I/O latency by disk: one count per completed request. The kernel keeps both start times in the request; where
 * it caches the clock while a task submits a batch (struct blk_plug, 6.9) the time of issue is taken here instead.
 */
#include "shared/block.bpf.h"
#include "shared/hist.bpf.h"

/* One per CPU and disk; the row at index 0 of a CPU takes what found no slot. */
struct bio_row {
	__u64 disk; /* major << 32 | minor, plus 1 << 63 so that none is 0 */
	__u64 unmeasured; /* completed, but no usable start time */
	__u64 other_start; /* counted with the other start time, the wanted one was missing */
	__u64 pad[5];
	__u64 buckets[HIST_BUCKETS];
};

/* Requests in flight, by tag: unique while in flight, so only the mixing below can collide. */
struct bio_start {
	__u64 rq;
	__u64 ns;
};

ROWS(bio_rows, struct bio_row);
PRIVATE(bio_starts, struct bio_start);

const volatile __u32 bio_disk_mask; /* rows per CPU - 1, a power of two */
const volatile __u32 bio_start_mask;
const volatile bool bio_queued;

FEATURE(plug_clock, bpf_core_field_exists(((struct blk_plug *)0)->cur_ktime))

static __always_inline struct bio_start *bio_start_of(const bool raw, struct request *rq)
{
	return row(&bio_starts, block_spread(raw, rq, GET(rq, tag)) & bio_start_mask);
}

/* The row of a disk on this CPU: claimed at first sight in one of four slots. */
static __always_inline struct bio_row *bio_row_of(__u64 disk)
{
	__u32 base = bpf_get_smp_processor_id() * (bio_disk_mask + 1);
	__u32 slot = ((__u32)disk >> 4 ^ (__u32)disk ^ (__u32)(disk >> 32) * 7) & bio_disk_mask;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u32 at = (slot + i) & bio_disk_mask;
		struct bio_row *r = at ? row(&bio_rows, base + at) : NULL;

		if (!r)
			continue;
		if (r->disk == disk)
			return r;
		if (!r->disk) {
			r->disk = disk;
			return r;
		}
	}
	return row(&bio_rows, base);
}

ON(block_rq_issue, struct request *rq)
{
	struct bio_start *start = bio_start_of(raw, rq);

	if (!start)
		return;
	start->ns = bpf_ktime_get_ns();
	start->rq = (__u64)rq;
}

ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	__u32 op = block_op(raw, rq);
	__u64 now, issued = 0, wanted, other;
	struct bio_start *start;
	struct bio_row *r;

	if (block_is_ghost(op, nr_bytes) || block_is_part(raw, rq, nr_bytes) || block_is_command(op))
		return;

	now = bpf_ktime_get_ns();
	start = bio_start_of(raw, rq);
	if (start && start->rq == (__u64)rq) {
		issued = start->ns;
		start->rq = 0; /* never pairs with a later request at this address */
	}
	if (!issued)
		issued = GET(rq, io_start_time_ns);
	if (bio_queued) {
		wanted = block_allocated(raw, rq);
		other = issued;
	} else {
		wanted = issued;
		other = block_allocated(raw, rq);
	}

	r = bio_row_of(1ULL << 63 | block_disk(raw, rq));
	if (!r)
		return;
	if (!wanted) {
		wanted = other;
		if (wanted)
			COUNT(r->other_start);
	}
	if (!wanted || wanted > now) {
		COUNT(r->unmeasured);
		return;
	}
	COUNT(r->buckets[usec_bucket(now - wanted)]);
}
