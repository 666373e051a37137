/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The part of biolatency for disks without requests, such as device-mapper, md and zram: bios from their submission to their completion.
 * A bio counts once, for the disk that it was submitted to: the parts that it is split into complete it together, and the clones for
 * the disks below are other bios.
 */
#include "set_table.bpf.h"

/* Two rows of each disk: reads and writes, flushes and discards. They are found as those of requests are. */
struct bio_stack_row {
	__u64 disk;
	__u64 displaced; /* in the first row: bios that gave way to others while in flight */
	__u64 pad[4];
	struct fine_hist total[2];
};

ROWS(bio_stack_rows, struct bio_stack_row);

/* Bios in flight, by address. */
struct bio_waits {
	__u64 keys[SET_WAYS];
	__u64 since[SET_WAYS];
	__u64 disks[SET_WAYS]; /* as in the rows, with the operation */
};

PRIVATE(bio_waiting, struct bio_waits);

const volatile __u32 bio_waiting_mask; /* sets - 1 */

#define BIO_OP 56 /* the operation's first bit in bio_waits.disks: 0 to 3 */

/* Before 5.12 a bio comes second among the arguments of block_bio_queue. */
#define HAS_BIO_BDEV bpf_core_field_exists(((struct bio *)0)->bi_bdev)

static __always_inline struct gendisk *bio_gendisk(const bool raw, struct bio *bio)
{
	if (HAS_BIO_BDEV)
		return GET(GET(bio, bi_bdev), bd_disk);
	return GET((struct bio___disk *)bio, bi_disk);
}

/* Zeroing is a write, as with requests; a flush is a write without data (blkdev_issue_flush). */
static __always_inline __u64 bio_operation(const bool raw, struct bio *bio)
{
	__u32 op = GET(bio, bi_opf) & OP_MASK;

	if (op == OP_FLUSH || (op == OP_WRITE && !GET(bio, bi_iter.bi_size)))
		return OP_FLUSH;
	return op == OP_DISCARD ? OP_DISCARD : op & 1;
}

ON(block_bio_queue___stacked, struct bio *bio)
{
	struct bio_stack_row *first;
	struct bio_waits *waits;
	struct gendisk *disk;
	bool displaced = false;
	__u32 way = 0;
	__u64 key;

	if (!HAS_BIO_BDEV)
		asm volatile("%0 = *(u64 *)(%1 + 8)" : "=r"(bio) : "r"(ctx)); /* in C both loads become one at a variable offset */
	disk = bio_gendisk(raw, bio);
	if (GET(GET(disk, queue), mq_ops))
		return;
	key = block_number(raw, (void *)bio, (void *)&bio_disks);
	waits = way_find(&bio_waiting, bio_waiting_mask, key, &way);
	if (!waits)
		waits = set_claim(&bio_waiting, bio_waiting_mask, key, &way, &displaced);
	if (!waits)
		return;
	waits->disks[way] = 1ULL << 63 | bio_operation(raw, bio) << BIO_OP | (__u64)GET(disk, major) << 32 |
			    (__u32)GET(disk, first_minor);
	waits->since[way] = bpf_ktime_get_ns();
	first = displaced ? row(&bio_stack_rows, 0) : NULL;
	if (first) {
		ADD(first->displaced, 1);
		mark(&bio_marks, 0);
	}
}

ON(block_bio_complete, struct request_queue *q, struct bio *bio)
{
	struct bio_stack_row *r;
	struct bio_waits *waits;
	__u64 key, disk, ns;
	__u32 way = 0, op;
	bool plain, late;

	if (GET(q, mq_ops))
		return;
	key = block_number(raw, (void *)bio, (void *)&bio_disks);
	waits = way_find(&bio_waiting, bio_waiting_mask, key, &way);
	if (!waits)
		return; /* a part, which the marks of the whole were copied to, or its beginning was before ours */
	disk = waits->disks[way];
	ns = bpf_ktime_get_ns() - waits->since[way];
	way_free(waits, way, key);
	op = disk >> BIO_OP & 3;
	r = bio_row_of(&bio_stack_rows, disk & ~(3ULL << BIO_OP), op >> 1, &bio_cpu_shift, &late);
	plain = !late && group_plain(bio_shared);
	BOUND(op, 1);
	if (r)
		BIO_TIME(r->total[op], ns);
}
