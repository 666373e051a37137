/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Requests of the block layer: whose disk they are of, and which of their completions count. */
#pragma once

#include "probe.bpf.h"

#define OP_MASK 0xff
#define OP_WRITE 1	 /* the highest operation whose completion without bytes is none */
#define OP_FLUSH 2
#define OP_DISCARD 3
#define OP_PASSTHROUGH 32 /* first of the operations that are not I/O of the disk (SCSI and driver commands) */

static __always_inline __u32 block_op(const bool raw, struct request *rq)
{
	return GET(rq, cmd_flags) & OP_MASK;
}

/* The parent of a flush and the second completion of a write-through (FUA) write: no bytes, counted before. */
static __always_inline bool block_is_ghost(__u32 op, __u32 nr_bytes)
{
	return !nr_bytes && op <= OP_WRITE;
}

/* A part of a request; the rest will follow and complete it. */
static __always_inline bool block_is_part(const bool raw, struct request *rq, __u32 nr_bytes)
{
	return nr_bytes < GET(rq, __data_len);
}

static __always_inline bool block_is_command(__u32 op)
{
	return op >= OP_PASSTHROUGH;
}

/* Since 6.11 the flags of a request are an enum, so that BTF knows them. */
enum rqf_flags___accounted {
	__RQF_IO_STAT___accounted,
};

/*
 * When a request was allocated; 0: not known. With accounting off (queue/iostats) kernels from 6.13 leave what an earlier
 * request with this tag had (blk_account_io_start).
 */
static __always_inline __u64 block_allocated(const bool raw, struct request *rq)
{
	if (bpf_core_enum_value_exists(enum rqf_flags___accounted, __RQF_IO_STAT___accounted)) {
		__u32 bit = bpf_core_enum_value(enum rqf_flags___accounted, __RQF_IO_STAT___accounted);

		if (!(GET(rq, rq_flags) >> (bit & 31) & 1))
			return 0;
	}
	return GET(rq, start_time_ns);
}

static __always_inline struct gendisk *block_gendisk(const bool raw, struct request *rq)
{
	if (bpf_core_field_exists(((struct request___disk *)0)->rq_disk))
		return GET((struct request___disk *)rq, rq_disk);
	return GET(GET(rq, q), disk);
}

/* major << 32 | minor */
static __always_inline __u64 block_disk(const bool raw, struct request *rq)
{
	struct gendisk *disk = block_gendisk(raw, rq);

	return (__u64)GET(disk, major) << 32 | (__u32)GET(disk, first_minor);
}

/* Tells a disk from one that had its numbers before (sysfs: diskseq); 0: this kernel does not. */
static __always_inline __u64 block_disk_sequence(const bool raw, struct request *rq)
{
	struct gendisk *disk = block_gendisk(raw, rq);

	return bpf_core_field_exists(disk->diskseq) ? GET(disk, diskseq) : 0;
}

/*
 * The address of a request as a number, less that of a variable of the programs: to the verifier the difference of two pointers is
 * a number. Requests are whole cache lines, so the lowest six bits tell nothing.
 */
static __always_inline __u64 block_number(const bool raw, struct request *rq, const volatile void *base)
{
	__u64 number = (__u64)rq;

	if (!raw)
		asm volatile("%0 = %1; %0 -= %2" : "=&r"(number) : "r"(rq), "r"(base));
	return number >> 6;
}

/* A number to place a request by: a tag is unique in its hardware queue while in flight, so only this mixing can collide. */
static __always_inline __u32 block_spread(const bool raw, struct request *rq, __u32 tag)
{
	struct request_queue *q = GET(rq, q);
	struct blk_mq_hw_ctx *hctx = GET(rq, mq_hctx);
	__u32 queue = GET(q, id) * 31 + (hctx ? GET(hctx, queue_num) : 0);

	return queue * 0x9e3779b1 ^ tag;
}
