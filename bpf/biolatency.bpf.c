/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Block I/O latency by disk: one count per completed request. The kernel keeps both start times in the request; where
 * it caches the clock while a task submits a batch (struct blk_plug, 6.9) the time of issue is taken here instead.
 */
#include "hist.bpf.h"

#define OP_MASK 0xff
#define OP_WRITE 1	 /* the highest operation whose completion without bytes is none */
#define OP_PASSTHROUGH 32 /* first of the operations that are not I/O of the disk (SCSI and driver commands) */

/* One per CPU and disk; the row at index 0 of a CPU takes what found no place. */
struct bio_row {
	__u64 disk; /* major << 32 | minor, plus 1 << 63 so that none is 0 */
	__u64 unmeasured; /* completed, but no usable start time */
	__u64 other_start; /* counted with the other start time, the wanted one was missing */
	__u64 pad[5];
	__u64 slots[HIST_SLOTS];
};

/* Requests in flight, by tag: unique while in flight, so only the mixing below can collide. */
struct bio_start {
	__u64 rq;
	__u64 ns;
};

ROWS(bio_rows, struct bio_row);
SLOTS(bio_starts, struct bio_start);

const volatile __u32 bio_disk_mask; /* rows per CPU - 1, a power of two */
const volatile __u32 bio_start_mask;
const volatile bool bio_queued;

FEATURE(plug_clock, bpf_core_field_exists(((struct blk_plug *)0)->cur_ktime))

static __always_inline struct bio_start *bio_start_of(const bool raw, struct request *rq)
{
	struct request_queue *q = GET(rq, q);
	struct blk_mq_hw_ctx *hctx = GET(rq, mq_hctx);
	__u32 queue = GET(q, id) * 31 + (hctx ? GET(hctx, queue_num) : 0);

	return row(&bio_starts, (queue * 0x9e3779b1 ^ (__u32)GET(rq, tag)) & bio_start_mask);
}

static __always_inline __u64 bio_disk_of(const bool raw, struct request *rq)
{
	struct gendisk *disk;

	if (bpf_core_field_exists(((struct request___disk *)0)->rq_disk))
		disk = GET((struct request___disk *)rq, rq_disk);
	else
		disk = GET(GET(rq, q), disk);
	return 1ULL << 63 | (__u64)GET(disk, major) << 32 | (__u32)GET(disk, first_minor);
}

/* The row of a disk on this CPU: claimed at first sight in one of four places. */
static __always_inline struct bio_row *bio_row_of(__u64 disk)
{
	__u32 base = bpf_get_smp_processor_id() * (bio_disk_mask + 1);
	__u32 place = ((__u32)disk >> 4 ^ (__u32)disk ^ (__u32)(disk >> 32) * 7) & bio_disk_mask;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u32 at = (place + i) & bio_disk_mask;
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

/* 6.11 made the flags of a request an enum; by then RQF_IO_STAT had long been one of them. */
enum rqf_flags___io_stat {
	__RQF_IO_STAT___io_stat = 0,
};

/*
 * The time of allocation; 0 if the kernel did not take it. Kernels from 6.13 take it only where they account (queue/iostats),
 * and elsewhere leave the time of an earlier request in the field (blk_account_io_start).
 */
static __always_inline __u64 bio_allocated(const bool raw, struct request *rq)
{
	if (bpf_core_enum_value_exists(enum rqf_flags___io_stat, __RQF_IO_STAT___io_stat) &&
	    !(GET(rq, rq_flags) & 1U << bpf_core_enum_value(enum rqf_flags___io_stat, __RQF_IO_STAT___io_stat)))
		return 0;
	return GET(rq, start_time_ns);
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
	__u32 op = GET(rq, cmd_flags) & OP_MASK;
	__u64 now, issued = 0, wanted, other;
	struct bio_start *start;
	struct bio_row *r;

	/* The parent of a flush and the second completion of a write-through (FUA) write: no bytes, counted before. */
	if (!nr_bytes && op <= OP_WRITE)
		return;
	/* A part of a request; the rest will follow and complete it. */
	if (nr_bytes < GET(rq, __data_len))
		return;
	if (op >= OP_PASSTHROUGH)
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
		wanted = bio_allocated(raw, rq);
		other = issued;
	} else {
		wanted = issued;
		other = bio_allocated(raw, rq);
	}

	r = bio_row_of(bio_disk_of(raw, rq));
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
	COUNT(r->slots[usec_slot(now - wanted)]);
}
