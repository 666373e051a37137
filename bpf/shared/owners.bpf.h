/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Block I/O by the process that submitted it and the disk. Where a request begins, the process running is its submitter and
 * the request remembers it; where it completes, its bytes (those merged into it included) count there. A process and disk
 * keep their place in the table until the agent frees it, some time after the process ended.
 */
#pragma once

#include "block.bpf.h"
#include "owned.bpf.h"

#define OWNER_WAYS 4

struct io_cells {
	__u64 requests;
	__u64 bytes;
	__u64 ns;
	__u64 untimed; /* of the requests, those without a start time */
};

struct io_owner {
	__u64 key; /* process << 32 | major << 20 | minor; 0: free. Process 0: the submitter is not known */
	__u64 claims;
	__u64 exec; /* of the process when its name was taken */
	__u64 comm[2];
	__u64 pad[3];
	struct io_cells cells[2]; /* reads, writes: bit 0 of the operation */
};

/* A request in flight. */
struct io_slot {
	__u64 rq;
	__u64 key;
	__u64 place;
	__u64 ns; /* when it was issued to the device; 0: not seen */
};

struct io_stat {
	__u64 crowded; /* submissions of processes that found no place, counted under process 0 */
	__u64 unknown; /* completions of requests whose beginning was not seen, counted under process 0 */
	__u64 lost;    /* completions for which not even process 0 had a place */
	__u64 by_bio;  /* in the first row: bytes are counted where bios are submitted, not at completion */
	__u64 pad[4];
};

ROWS(io_owners, struct io_owner);
PRIVATE(io_slots, struct io_slot);
ROWS(io_stats, struct io_stat);
ROWS(io_marks, struct mark);

const volatile __u32 io_owner_mask; /* sets - 1 */
const volatile __u32 io_part_shift; /* log2 of the places that share a mark */
const volatile __u32 io_slot_mask; /* sets - 1 */
const volatile bool io_top; /* names have to be right, and times are wanted */

/* The name of the process since it executed a program: it may have read that program from this disk under the name before. */
static __always_inline void owner_follow(struct io_owner *r)
{
	__u64 exec;

	if (HAS_TYPED_TASK)
		exec = bpf_get_current_task_btf()->self_exec_id;
	else if (io_top)
		exec = process_execs();
	else
		return; /* not worth a probe read for each request */
	if (r->exec == exec)
		return;
	process_name(r->comm);
	r->exec = exec;
}

/* The place of a process and disk, claimed if they have none; negative: all ways are taken. */
static __always_inline __s64 owner_place(__u64 key, const bool current)
{
	__u32 set = (((__u32)(key >> 32) ^ (__u32)key * 0x9e3779b1) & io_owner_mask) * OWNER_WAYS, place;
	struct io_owner *r;

	OWNED_ROW(r, place, &io_owners, OWNER_WAYS, set + nth, r->key == key,
		  claim_marked(&r->claims, &io_marks, place >> io_part_shift), {
			  if (current) {
				  process_name(r->comm);
				  r->exec = process_execs();
			  }
			  *(volatile __u64 *)&r->key = key;
		  });
	if (r && current)
		owner_follow(r);
	return r ? (__s64)place : -1;
}

/* The place of the current process, or of process 0 if there is none left. */
static __always_inline __s64 owner_current(__u64 disk, __u64 *key)
{
	__u64 process = bpf_get_current_pid_tgid() >> 32;
	__s64 place;

	*key = process << 32 | disk;
	place = owner_place(*key, process != 0);
	if (place >= 0)
		return place;
	LOSE(io_stats, crowded);
	*key = disk;
	return owner_place(*key, false);
}

/*
 * Where a request in flight is remembered, or to be remembered at its beginning; NULL: it is not. Found by the tag that it keeps
 * from its allocation to its end: with a scheduler the other tag comes and goes. Other disks' requests share the set. A hash of the
 * address instead spreads them over so many pages that each look takes 20 to 100 ns more.
 */
static __always_inline struct io_slot *owner_slot(const bool raw, struct request *rq, const bool begin)
{
	struct io_slot *free = NULL;
	int tag = GET(rq, internal_tag);
	__u32 set;

	if (tag < 0)
		tag = GET(rq, tag);
	set = (block_spread(raw, rq, tag) & io_slot_mask) * OWNER_WAYS;
#pragma clang loop unroll(disable)
	for (int i = 0; i < OWNER_WAYS; i++) {
		struct io_slot *slot = row(&io_slots, set + i);

		if (!slot)
			continue;
		if (slot->rq == (__u64)rq)
			return slot;
		if (begin && !free && !slot->rq)
			free = slot;
	}
	if (begin && !free)
		free = row(&io_slots, set); /* of the one that had it the beginning will be unknown */
	return free;
}

/* The disk's half of a key; 0 for what is no disk. */
static __always_inline __u64 owner_disk(__u64 disk)
{
	return disk >> 32 ? (disk >> 32 << 20 | (disk & 0xfffff)) & 0xffffffff : 0;
}

static __always_inline void owner_begin(const bool raw, struct request *rq)
{
	__u64 disk = owner_disk(block_disk(raw, rq));
	struct io_slot *slot;

	if (!disk || block_is_command(block_op(raw, rq)))
		return;
	slot = owner_slot(raw, rq, true);
	if (!slot)
		return;
	slot->rq = 0;
	slot->ns = 0;
	slot->place = owner_current(disk, &slot->key);
	slot->rq = (__u64)rq;
}

static __always_inline void owner_issue(const bool raw, struct request *rq)
{
	struct io_slot *slot = owner_slot(raw, rq, false);

	if (slot)
		slot->ns = bpf_ktime_get_ns();
}

static __always_inline void owner_time(const bool raw, struct request *rq, struct io_cells *cells, __u64 issued)
{
	__u64 now = bpf_ktime_get_ns();

	if (!issued)
		issued = GET(rq, io_start_time_ns);
	if (!issued)
		issued = block_allocated(raw, rq);
	if (issued && issued <= now)
		ADD(cells->ns, now - issued);
	else
		ADD(cells->untimed, 1);
}

/* The row of a request whose beginning was not seen: process 0. NULL: its bytes are counted elsewhere, or lost. */
static __always_inline struct io_owner *owner_unknown(__u64 disk)
{
	struct io_stat *first = row(&io_stats, 0);
	struct io_owner *r;
	__s64 place;

	if (!first || first->by_bio)
		return NULL;
	place = disk ? owner_place(disk, false) : -1;
	r = place < 0 ? NULL : row(&io_owners, place);
	if (r)
		LOSE(io_stats, unknown);
	else
		LOSE(io_stats, lost);
	return r;
}

static __always_inline void owner_complete(const bool raw, struct request *rq, __u32 nr_bytes)
{
	__u32 op = block_op(raw, rq), way = op & 1;
	struct io_slot *slot;
	struct io_owner *r = NULL;
	bool part;

	if (block_is_command(op))
		return;
	slot = owner_slot(raw, rq, false);
	part = block_is_part(raw, rq, nr_bytes);
	/* Commands without data (flushes) and second completions move nothing. */
	if (nr_bytes) {
		if (slot && (__s64)slot->place >= 0)
			r = row(&io_owners, slot->place);
		if (!slot || !r || r->key != slot->key)
			r = owner_unknown(owner_disk(block_disk(raw, rq)));
		if (r) {
			BOUND(way, 1);
			ADD(r->cells[way].bytes, nr_bytes);
			if (!part) {
				ADD(r->cells[way].requests, 1);
				if (io_top)
					owner_time(raw, rq, &r->cells[way], slot ? slot->ns : 0);
			}
		}
	}
	if (slot && !part)
		slot->rq = 0; /* never pairs with a later request at this address */
}

/*
 * For kernels that show nowhere else who submits a request. Only bios of request-based disks: the others stand on disks whose
 * bios come by here too. Before 5.12 the first argument is another one; those kernels have blk_account_io_start.
 */
static __always_inline void owner_bio(const bool raw, struct bio *bio)
{
	struct io_stat *first = row(&io_stats, 0);
	struct gendisk *disk;
	struct io_owner *r;
	__u32 way, bytes;
	__s64 place;
	__u64 key;

	if (!first || !bpf_core_field_exists(bio->bi_bdev))
		return;
	first->by_bio = 1;
	disk = GET(GET(bio, bi_bdev), bd_disk);
	bytes = GET(bio, bi_iter.bi_size);
	if (!bytes || !GET(GET(disk, queue), mq_ops))
		return;
	place = owner_current(owner_disk((__u64)GET(disk, major) << 32 | (__u32)GET(disk, first_minor)), &key);
	r = place < 0 ? NULL : row(&io_owners, place);
	if (!r)
		return;
	way = GET(bio, bi_opf) & 1;
	BOUND(way, 1);
	ADD(r->cells[way].bytes, bytes);
	ADD(r->cells[way].requests, 1);
	ADD(r->cells[way].untimed, 1);
}
