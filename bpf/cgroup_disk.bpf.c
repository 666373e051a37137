/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Block I/O latency by cgroup. The block layer keeps with each bio whose it is (bi_blkg), so that buffered writes which the kernel
 * writes back later belong to the cgroup that wrote.
 */
#include "shared/block_times.bpf.h"
#include "shared/places.bpf.h"
#include "shared/groups.bpf.h"

/* Reads or writes; see struct bio_row. */
struct cgd_side {
	__u64 bytes;
	struct fine_hist total; /* allocation to completion */
	struct fine_hist queue; /* allocation to issue */
	__u64 unmeasured; /* completed, but neither start time is known */
	__u64 no_start; /* allocation not known: in `total` from the issue */
};

/* A cgroup's requests, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct cgd_row {
	__u64 used; /* whether a program has counted in it */
	struct cgd_side read;
	struct cgd_side write;
	__u64 pad[5];
};

/* Row 0 of each group of CPUs is for requests of cgroups that found no place, and for those that nobody owns. */
ROWS(cgd_owners, struct place_owner);
ROWS(cgd_rows, struct cgd_row);
ROWS(cgd_marks, struct mark); /* one for each row */
PRIVATE(cgd_starts, __u64);

const volatile __u32 cgd_mask; /* places of owners, less 1 */
const volatile __u32 cgd_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool cgd_shared; /* it is more than one */
const volatile __u32 cgd_start_shift; /* 32 - log2 of the places in cgd_starts */

/* The id of the cgroup that a request belongs to; 0: not known. */
static __always_inline __u64 cgd_cgroup(const bool raw, struct request *rq)
{
	struct blkcg_gq *blkg;
	struct blkcg *blkcg;
	struct bio *bio;

	if (!bpf_core_field_exists(((struct bio *)0)->bi_blkg))
		return 0;
	bio = GET(rq, bio);
	if (!bio)
		return 0;
	blkg = GET(bio, bi_blkg);
	if (!blkg)
		return 0;
	blkcg = GET(blkg, blkcg);
	if (!blkcg)
		return 0;
	return GET(GET(GET(blkcg, css.cgroup), kn), id);
}

ON(block_rq_issue, struct request *rq)
{
	block_issued(raw, &cgd_starts, cgd_start_shift, (void *)&cgd_mask, rq);
}

ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	const bool plain = group_plain(cgd_shared);
	__u32 op = block_op(raw, rq);
	struct cgd_side *side;
	struct cgd_row *r;
	__s64 total, device;
	__u64 now;

	if (op == OP_FLUSH || op == OP_DISCARD || block_is_ghost(op, nr_bytes) || block_is_command(op))
		return;
	r = place_row(&cgd_rows, &cgd_marks, cgd_mask, cgd_cpu_shift, place_index(&cgd_owners, cgd_mask, cgd_cgroup(raw, rq)));
	if (!r)
		return;
	side = op & 1 ? &r->write : &r->read;
	GROUP_SUM(side->bytes, nr_bytes);
	if (unlikely(block_is_part(raw, rq, nr_bytes)))
		return;
	now = bpf_ktime_get_ns();
	total = block_since_allocation(raw, rq, op, now);
	device = block_since_issue(raw, &cgd_starts, cgd_start_shift, (void *)&cgd_mask, true, rq, now);
	if (unlikely(total < 0)) {
		if (device < 0) {
			GROUP_SUM(side->unmeasured, 1);
			return;
		}
		GROUP_SUM(side->no_start, 1);
		total = device;
	} else if (likely(device >= 0)) {
		__u64 queue = total > device ? total - device : 0;

		GROUP_TIME(side->queue, queue);
	}
	GROUP_TIME(side->total, total);
}
