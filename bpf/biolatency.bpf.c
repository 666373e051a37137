/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Block I/O latency by disk and operation, from a request's allocation and from its issue to its completion. The kernel keeps
 * both start times in the request; where it caches the clock while a task submits a batch (struct blk_plug, 6.9) the time of
 * issue is taken here instead.
 */
#include "shared/block_times.bpf.h"
#include "shared/groups.bpf.h"

/*
 * Reads or writes of one disk, by one CPU or several (bio_cpu_shift). A request whose allocation is not known counts in `total` from its
 * issue, one whose issue is not known in `device` from its allocation, and neither in `queue`.
 */
struct bio_row {
	__u64 disk; /* 1 << 63 | major << 32 | minor; BIO_OTHERS; 0: has not counted */
	__u64 bytes;
	struct fine_hist total; /* allocation to completion */
	struct fine_hist device; /* issue to completion */
	struct fine_hist queue; /* allocation to issue */
	__u64 unmeasured; /* completed, but neither start time is known: all others are in `total` and in `device` */
	__u64 no_start; /* allocation not known */
	__u64 no_issue; /* issue not known */
};

/* Discards or flushes of one disk. */
struct bio_small {
	__u64 disk;
	__u64 bytes;
	struct fine_hist total;
	__u64 device[HIST_BUCKETS];
	__u64 unmeasured;
	__u64 no_start;
	__u64 no_issue;
	__u64 pad[2];
};

/*
 * Two of each for every disk and group of CPUs: reads and writes, flushes and discards. The rows of a disk are found by its numbers, at the
 * same index for all groups; those at index 0 take what found no place.
 */
ROWS(bio_rows, struct bio_row);
ROWS(bio_smalls, struct bio_small);

/* Which disk an index belongs to: whoever inserts first has it, for all CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} bio_owners SEC(".maps");

/* Requests in flight (block_times.bpf.h). */
PRIVATE(bio_starts, __u64);

const volatile __u32 bio_disks; /* rows per group of CPUs and operation */
const volatile __u32 bio_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool bio_shared; /* it is more than one */
const volatile __u32 bio_start_shift; /* 32 - log2 of the places in bio_starts */
const volatile bool bio_one_program; /* the time of issue is not taken here */

FEATURE(plug_clock, bpf_core_field_exists(((struct blk_plug *)0)->cur_ktime))

#define BIO_OTHERS (1ULL << 62) /* disks that found no place */
#define BIO_CHOICES 16 /* of a disk for its index */

#define BIO_SUM GROUP_SUM
#define BIO_TIME GROUP_TIME

ON(block_rq_issue, struct request *rq)
{
	block_issued(raw, &bio_starts, bio_start_shift, (void *)&bio_disks, rq);
}

/* The index of a disk's rows, by the nth choice; never 0. */
static __always_inline __u32 bio_index(__u64 disk, __u32 nth)
{
	__u32 hash = ((__u32)(disk >> 32) << 20 ^ (__u32)disk) * 0x9e3779b1 + nth * 0x9e3779b1;

	return 1 + ((__u64)hash * (bio_disks - 1) >> 32);
}

/* Whether an index is the disk's, who may have it if it is nobody's. */
static __always_inline bool bio_owns(__u32 index, __u64 *disk)
{
	__u64 *owner = bpf_map_lookup_elem(&bio_owners, &index);

	if (!owner) {
		bpf_map_update_elem(&bio_owners, &index, disk, BPF_NOEXIST);
		owner = bpf_map_lookup_elem(&bio_owners, &index);
	}
	return owner && *owner == *disk;
}

/* The row of a disk for this CPU; both kinds of rows begin with their disk. */
static __always_inline void *bio_row_of(void *rows, __u64 disk, __u32 which)
{
	__u32 group = (bpf_get_smp_processor_id() >> bio_cpu_shift) * bio_disks;
	__u64 *r = row(rows, (group + bio_index(disk, 0)) << 1 | which);

	if (likely(r && *r == disk))
		return r;
	for (__u32 nth = 0; nth < BIO_CHOICES; nth++) {
		__u32 index = bio_index(disk, nth);

		r = row(rows, (group + index) << 1 | which);
		if (!r)
			break;
		if (!*r && bio_owns(index, &disk))
			*r = disk;
		if (*r == disk)
			return r;
	}
	r = row(rows, group << 1 | which);
	if (r)
		*r = BIO_OTHERS;
	return r;
}

/* Both times of a request, -1 for one that is not known; false if neither is. */
static __always_inline bool bio_times(const bool raw, struct request *rq, __u32 op, __u64 now, __s64 *total, __s64 *device)
{
	*device = block_since_issue(raw, &bio_starts, bio_start_shift, (void *)&bio_disks, !bio_one_program, rq, now);
	*total = block_since_allocation(raw, rq, op, now);
	return *device >= 0 || *total >= 0;
}

ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	__u32 op = block_op(raw, rq);
	const bool plain = group_plain(bio_shared);
	__s64 total, device;
	__u64 disk, now;

	if (block_is_ghost(op, nr_bytes) || block_is_command(op))
		return;
	now = bpf_ktime_get_ns();
	disk = 1ULL << 63 | block_disk(raw, rq);

	if (unlikely(op == OP_FLUSH || op == OP_DISCARD)) {
		struct bio_small *r = bio_row_of(&bio_smalls, disk, op & 1);

		if (!r)
			return;
		BIO_SUM(r->bytes, nr_bytes);
		if (block_is_part(raw, rq, nr_bytes))
			return;
		if (!bio_times(raw, rq, op, now, &total, &device)) {
			BIO_SUM(r->unmeasured, 1);
			return;
		}
		if (total < 0) {
			total = device;
			BIO_SUM(r->no_start, 1);
		}
		if (device < 0) {
			device = total;
			BIO_SUM(r->no_issue, 1);
		}
		BIO_TIME(r->total, total);
		BIO_SUM(r->device[usec_bucket(device)], 1);
	} else {
		struct bio_row *r = bio_row_of(&bio_rows, disk, op & 1);

		if (!r)
			return;
		BIO_SUM(r->bytes, nr_bytes);
		if (unlikely(block_is_part(raw, rq, nr_bytes)))
			return;
		if (unlikely(!bio_times(raw, rq, op, now, &total, &device))) {
			BIO_SUM(r->unmeasured, 1);
			return;
		}
		if (unlikely(total < 0)) {
			total = device;
			BIO_SUM(r->no_start, 1);
		} else if (unlikely(device < 0)) {
			device = total;
			BIO_SUM(r->no_issue, 1);
		} else {
			__u64 queue = total > device ? total - device : 0;

			BIO_TIME(r->queue, queue);
		}
		BIO_TIME(r->total, total);
		BIO_TIME(r->device, device);
	}
}
