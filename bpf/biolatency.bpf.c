/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Block I/O latency by disk and operation, from a request's allocation and from its issue to its completion. The kernel keeps
 * both start times in the request; where it caches the clock while a task submits a batch (struct blk_plug, 6.9) the time of
 * issue is taken here instead.
 */
#include "shared/block_times.bpf.h"
#include "shared/owned.bpf.h"
#include "shared/groups.bpf.h"
#include "shared/latest.bpf.h"
#include "shared/owners.bpf.h"

/*
 * What the rows of all operations begin with. A request whose allocation is not known counts in `device` only, one whose issue is not
 * known in `device` from its allocation, and neither in `queue`.
 */
#define BIO_HEAD                                                                                                      \
	__u64 disk; /* 1 << 63 | major << 32 | minor; BIO_OTHERS; 0: has not counted */                               \
	__u64 bytes;                                                                                                  \
	__u64 unmeasured; /* completed, but neither start time is known: all others are in `device` */                \
	__u64 no_start; /* allocation not known: not in `total` */                                                    \
	__u64 no_issue; /* issue not known */                                                                         \
	struct fine_hist total; /* allocation to completion */

struct bio_head {
	BIO_HEAD
};

/* Reads or writes of one disk, by one CPU or several (bio_cpu_shift). */
struct bio_row {
	BIO_HEAD
	struct fine_hist device; /* issue to completion */
	struct fine_hist queue; /* allocation to issue */
};

/* Discards or flushes of one disk. */
struct bio_small {
	BIO_HEAD
	__u64 device[HIST_BUCKETS];
	__u64 pad[2];
};

#define BIO_SIZES 10 /* up to 4 KB, 8 KB, 16 KB ... 1 MB, and over */

/* Reads or writes of one disk by their size, from allocation to completion: with the option by_size. */
struct bio_size_row {
	__u64 disk;
	__u64 pad[5];
	struct fine_hist sizes[BIO_SIZES];
};

/* The slowest request of a disk since the agent last looked. CPUs that write at once leave a `check` that does not fit: the agent leaves it out. */
struct bio_slowest {
	__u64 disk;
	__u64 epoch;
	__u64 total; /* ns, as in bio_row */
	__u64 device;
	__u64 ended; /* by the monotonic clock; 0: no request yet */
	__u64 submitter; /* process << 32 | operation; process 0: not known */
	__u64 comm[2];
	__u64 bytes;
	__u64 sector;
	__u64 cgroup; /* its id; 0: not known */
	__u64 check; /* of the words from `epoch` on */
	__u64 pad[4];
};

/* A request that took long: with the option slow. */
struct bio_slow {
	struct event_head head; /* the cgroup is the one that the request is accounted to */
	__u64 disk; /* as in bio_row */
	__u64 total;
	__u64 queue; /* of it until the issue to the device */
	__u64 bytes;
	__u64 sector;
	__u64 comm[2];
	__u32 pid; /* 0: not known */
	__u32 operation;
	__u32 flags; /* SLOW_SYNC ... */
	__u32 pad;
};

/* Flags of a request, in the order of the letters FAMS of blktrace. */
#define SLOW_PREFLUSH 1
#define SLOW_FUA 2
#define SLOW_RAHEAD 4
#define SLOW_SYNC 8
#define SLOW_META 16

/* The agent's. What is `slowest` restarts with the next number; the one before keeps its row until then. */
struct bio_epoch {
	__u64 number;
	__u64 pad[7];
};

/* A disk that does not count, by the option devices. */
struct bio_ignored {
	__u64 disk; /* as in bio_row; 0: none */
	__u64 sequence; /* block_disk_sequence */
};

/* A request of which a part is complete, and how much. */
struct bio_part {
	__u64 number;
	__u64 bytes;
};

/*
 * Two of each for every disk and group of CPUs: reads and writes, flushes and discards. The rows of a disk are found by its numbers, at the
 * same index for all groups; those at index 0 take what found no place. Behind those of the last group are BIO_LATE indexes that all CPUs
 * share, for disks that come later.
 */
ROWS(bio_rows, struct bio_row);
ROWS(bio_smalls, struct bio_small);
ROWS(bio_marks, struct mark); /* one for the rows of all kinds that have the same number */
ROWS(bio_sizes, struct bio_size_row); /* reads and writes */
ROWS(bio_slowests, struct bio_slowest); /* even and odd epochs */
ROWS(bio_epochs, struct bio_epoch);
ROWS(bio_ignoreds, struct bio_ignored);
LATEST(slow)
EXPORT(struct bio_slow);

/*
 * Which disk an index belongs to: whoever inserts first has it, for all CPUs. The index of a disk by its numbers. At 0, how many of the
 * indexes that all CPUs share may be taken.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u64);
} bio_owners SEC(".maps");

/* Requests in flight (block_times.bpf.h). */
PRIVATE(bio_starts, __u64);

/* Two at one place would be taken for smaller than they are: parts are rare. */
PRIVATE(bio_parts, struct bio_part);

const volatile __u32 bio_disks; /* rows per group of CPUs and operation */
const volatile __u32 bio_last_cpu; /* the highest number of a CPU */
const volatile __u32 bio_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool bio_shared; /* it is more than one */
const volatile __u32 bio_start_shift; /* 32 - log2 of the places in bio_starts */
const volatile bool bio_one_program; /* the time of issue is not taken here */
const volatile bool bio_by_size;
const volatile __u32 bio_size_cpu_shift; /* as bio_cpu_shift, for bio_sizes */
const volatile bool bio_size_shared;
const volatile bool bio_exemplars;
const volatile bool bio_slow; /* requests of at least bio_slow_ns become rows */
const volatile __u64 bio_slow_ns;
const volatile bool bio_filtered; /* some disks do not count */
const volatile __u32 bio_ignored_shift; /* 32 - log2 of the places in bio_ignoreds */
const volatile __u32 bio_part_shift; /* 32 - log2 of the places in bio_parts */

FEATURE(plug_clock, bpf_core_field_exists(((struct blk_plug *)0)->cur_ktime))

#define BIO_OTHERS (1ULL << 62) /* disks that found no place */
#define BIO_CHOICES 8 /* of a disk for its index */
#define BIO_LATE 256 /* indexes that all CPUs share (size.rs) */
#define BIO_RIVALS 4 /* disks that may take one of these at the same time */

#define BIO_SUM GROUP_SUM
#define BIO_TIME GROUP_TIME

static __always_inline __u32 bio_hash(__u64 disk)
{
	return ((__u32)(disk >> 32) << 20 ^ (__u32)disk) * 0x9e3779b1;
}

/* Whether the agent has found that this disk does not count. Until then it counts, and the agent does not show it. */
static __always_inline bool bio_ignores(const bool raw, struct request *rq, __u64 disk)
{
	struct bio_ignored *ignored;

	if (!bio_filtered)
		return false;
	ignored = row(&bio_ignoreds, bio_hash(disk) >> bio_ignored_shift);
	return ignored && ignored->disk == disk && ignored->sequence == block_disk_sequence(raw, rq);
}

ON(block_rq_issue, struct request *rq)
{
	block_issued(raw, &bio_starts, bio_start_shift, (void *)&bio_disks, rq);
}

/* The index of a disk's rows, one of `span` by a hash; never 0. */
static __always_inline __u32 bio_index(__u32 hash, __u32 span)
{
	return 1 + ((__u64)hash * span >> 32);
}

/* Whether an index is the disk's, or was nobody's and is now. */
static __always_inline bool bio_claim(__u64 index, __u64 disk)
{
	__u64 *owner = bpf_map_lookup_elem(&bio_owners, &index);

	if (!owner) {
		bpf_map_update_elem(&bio_owners, &index, &disk, BPF_NOEXIST);
		owner = bpf_map_lookup_elem(&bio_owners, &index);
	}
	return owner && *owner == disk;
}

/*
 * The index of a disk that is not at its first choice, or does not count there yet; 0 if all are others'. It is the same for all kinds of
 * rows. Two CPUs that look for one at once may take two of those that all share: one is the disk's from then on, and what the other
 * counted once adds up with it.
 */
static __always_inline __u32 bio_place(__u64 disk)
{
	__u64 *known = bpf_map_lookup_elem(&bio_owners, &disk);
	__u32 hash = bio_hash(disk), span = bio_disks - 1;
	__u64 none = 0, place = 0, late;

	if (likely(known))
		return *known;
	known = bpf_map_lookup_elem(&bio_owners, &none);
	late = bio_disks + (known ? *known : 0);
#pragma nounroll
	for (int nth = 0; nth < BIO_CHOICES + BIO_RIVALS; nth++, hash += 0x9e3779b1) {
		__u64 index = nth < BIO_CHOICES ? bio_index(hash, span) : late++;

		if (index < bio_disks + BIO_LATE && bio_claim(index, disk)) {
			place = index;
			break;
		}
	}
	if (!place)
		return 0;
	bpf_map_update_elem(&bio_owners, &disk, &place, BPF_NOEXIST);
	if (place >= bio_disks) {
		late -= bio_disks;
		bpf_map_update_elem(&bio_owners, &none, &late, BPF_ANY);
	}
	return place;
}

/*
 * The number of a disk's row by its first choice, one of this group of 1 << cpu_shift CPUs. The constants are read after the call, so that
 * the loader can write them into the program (src/loader/immediate.rs).
 */
static __always_inline __u32 bio_first(__u64 disk, __u32 which, const volatile __u32 *cpu_shift)
{
	__u32 cpu = bpf_get_smp_processor_id(), disks = bio_disks;

	return ((cpu >> *cpu_shift) * disks + bio_index(bio_hash(disk), disks - 1)) << 1 | which;
}

/*
 * The row of a disk whose first choice is not its own: a row of `smalls` if `is_small`; whether all CPUs share it. All kinds of rows begin
 * with their disk.
 */
static __always_inline void *bio_other_row(void *rows, void *smalls, bool is_small, __u64 disk, __u32 which,
					   const volatile __u32 *cpu_shift, bool *late)
{
	__u32 place = bio_place(disk), cpu = bpf_get_smp_processor_id(), number;
	__u64 *r;

	*late = place >= bio_disks;
	if (*late)
		cpu = bio_last_cpu;
	number = ((cpu >> *cpu_shift) * bio_disks + place) << 1 | which;
	if (is_small) {
		r = row(smalls, number);
		HIDE(r); /* or clang makes one call of both, of a map that the verifier does not know */
	} else {
		r = row(rows, number);
	}
	disk = place ? disk : BIO_OTHERS;
	if (r && *r != disk) {
		*r = disk; /* it counts from now on */
		mark(&bio_marks, number);
	}
	return r;
}

/* The row of a disk for this CPU, or for all of them. */
static __always_inline void *bio_row_of(void *rows, __u64 disk, __u32 which, const volatile __u32 *cpu_shift, bool *late)
{
	__u64 *r = row(rows, bio_first(disk, which, cpu_shift));

	*late = false;
	if (likely(r && *r == disk))
		return r;
	return bio_other_row(rows, rows, false, disk, which, cpu_shift, late);
}

/* Both times of a request, -1 for one that is not known; false if neither is. */
static __always_inline bool bio_times(const bool raw, struct request *rq, __u32 op, __u64 now, __s64 *total, __s64 *device)
{
	*device = block_since_issue(raw, &bio_starts, bio_start_shift, (void *)&bio_disks, !bio_one_program, rq, now);
	*total = block_since_allocation(raw, rq, op, now);
	return *device >= 0 || *total >= 0;
}

static __always_inline struct bio_part *bio_part_of(__u64 number)
{
	return row(&bio_parts, (__u32)number * 0x9e3779b1 >> bio_part_shift);
}

/* Remembers a part of a request. */
static __always_inline void bio_remember(const bool raw, struct request *rq, __u32 nr_bytes)
{
	__u64 number = block_number(raw, rq, (void *)&bio_disks);
	struct bio_part *part = bio_part_of(number);

	if (!part)
		return;
	if (part->number != number) {
		part->number = number;
		part->bytes = 0;
	}
	part->bytes += nr_bytes;
}

/* Bytes of earlier parts of a request that is complete now. */
static __always_inline __u64 bio_earlier(const bool raw, struct request *rq)
{
	__u64 number = block_number(raw, rq, (void *)&bio_disks);
	struct bio_part *part = bio_part_of(number);

	if (likely(!part || part->number != number))
		return 0;
	part->number = 0;
	return part->bytes;
}

/* Counts a read or a write by its size. */
static __always_inline void bio_size(__u64 disk, __u32 op, __u64 bytes, __s64 total, const bool plain)
{
	bool late;
	struct bio_size_row *r = bio_row_of(&bio_sizes, disk, op & 1, &bio_size_cpu_shift, &late);
	__u64 size = 0;

	if (!r)
		return;
#pragma unroll
	for (int power = 12; power <= 20; power++)
		size += OVER(bytes, (1ULL << power));
	asm volatile("%0 += %1; %0 -= %1" : "+r"(size) : "r"(bytes)); /* for the verifier; see usec_bucket */
	if (unlikely(size >= BIO_SIZES))
		size = BIO_SIZES - 1;
	BIO_TIME(r->sizes[size], total);
}

/* The cgroup that a request is accounted to. */
static __always_inline __u64 bio_cgroup(const bool raw, struct request *rq)
{
	struct bio *bio = GET(rq, bio);
	struct blkcg_gq *group;

	if (!bio || !bpf_core_field_exists(bio->bi_blkg))
		return 0;
	group = GET(bio, bi_blkg);
	return group ? GET(GET(GET(GET(group, blkcg), css.cgroup), kn), id) : 0;
}

/* The process that submitted a request, and its name; 0 if that was not seen. */
static __always_inline __u64 bio_submitter(const bool raw, struct request *rq, __u64 comm[2])
{
	struct io_slot *slot = owner_slot(raw, rq, false);
	struct io_owner *owner = slot && (__s64)slot->place >= 0 ? row(&io_owners, slot->place) : NULL;

	comm[0] = comm[1] = 0;
	if (!owner || owner->key != slot->key)
		return 0;
	comm[0] = owner->comm[0];
	comm[1] = owner->comm[1];
	return owner->key >> 32;
}

/* Remembers a request that is the slowest of its disk so far. */
static __always_inline void bio_slower(const bool raw, struct request *rq, __u64 disk, __u64 ended, __s64 total, __s64 device, __u32 last,
				       __u64 earlier)
{
	struct bio_epoch *epoch = row(&bio_epochs, 0);
	struct bio_slowest *r;
	__u64 check;
	bool late;

	if (!epoch)
		return;
	check = epoch->number;
	r = bio_row_of(&bio_slowests, disk, check & 1, &bio_cpu_shift, &late);
	if (!r || likely(r->epoch >= check && r->total >= (__u64)total))
		return;
	r->epoch = check;
	r->total = total;
	r->device = device;
	r->ended = ended;
	r->submitter = bio_submitter(raw, rq, r->comm) << 32 | block_op(raw, rq);
	r->bytes = earlier + last;
	r->sector = GET(rq, __sector) - (earlier >> 9);
	r->cgroup = bio_cgroup(raw, rq);
	/* Each word counts by its place (slowest.rs). */
#pragma unroll
	for (int word = 2; word <= 10; word++)
		check = check * 0x9e3779b97f4a7c15 + ((__u64 *)r)[word];
	r->check = check;
}

/* A flag of a request, by its number in this kernel. */
#define SLOW_FLAG(flags, number, flag) ((flags) >> bpf_core_enum_value(enum req_flag_bits, number) & 1 ? (flag) : 0)

/* Hands over a request that took long. Its submitter gives of its share: who makes many slow requests hides nobody else's. */
static __always_inline void bio_slow_row(const bool raw, struct request *rq, __u64 disk, __s64 total, __s64 device, __u32 last, __u64 earlier)
{
	__u64 comm[2], pid = bio_submitter(raw, rq, comm);
	struct bio_slow *r = EVENT(slow, struct bio_slow, pid);
	__u32 flags = GET(rq, cmd_flags);

	if (!r)
		return;
	r->head.cgroup = bio_cgroup(raw, rq);
	r->disk = disk;
	r->total = total;
	r->queue = total > device ? total - device : 0;
	r->bytes = earlier + last;
	r->sector = GET(rq, __sector) - (earlier >> 9);
	r->comm[0] = comm[0];
	r->comm[1] = comm[1];
	r->pid = pid;
	r->operation = block_op(raw, rq);
	r->flags = SLOW_FLAG(flags, __REQ_PREFLUSH, SLOW_PREFLUSH) | SLOW_FLAG(flags, __REQ_FUA, SLOW_FUA) |
		   SLOW_FLAG(flags, __REQ_RAHEAD, SLOW_RAHEAD) | SLOW_FLAG(flags, __REQ_SYNC, SLOW_SYNC) |
		   SLOW_FLAG(flags, __REQ_META, SLOW_META);
	slow_done(r);
}

/* Whether it matters who submitted a request, and how large it is in all. */
#define BIO_WHO (bio_exemplars || bio_slow)

/* Counts in the row of its disk, which all CPUs share if `late`. */
static __always_inline void bio_count(const bool raw, struct request *rq, __u32 nr_bytes, __u64 disk, __u32 op, __u64 now,
				      struct bio_head *r, __u64 is_small, const bool late)
{
	const bool plain = !late && group_plain(bio_shared);
	__s64 total, device;
	__u64 earlier = 0;

	BIO_SUM(r->bytes, nr_bytes);
	if (unlikely(block_is_part(raw, rq, nr_bytes))) {
		if (bio_by_size || BIO_WHO)
			bio_remember(raw, rq, nr_bytes);
		return;
	}
	if (bio_by_size || BIO_WHO)
		earlier = bio_earlier(raw, rq);
	if (unlikely(!bio_times(raw, rq, op, now, &total, &device))) {
		BIO_SUM(r->unmeasured, 1);
		return;
	}
	if (unlikely(total < 0)) {
		BIO_SUM(r->no_start, 1);
	} else {
		if (unlikely(device < 0)) {
			device = total;
			BIO_SUM(r->no_issue, 1);
		} else if (likely(!is_small)) {
			__u64 queue = total > device ? total - device : 0;

			BIO_TIME(((struct bio_row *)r)->queue, queue);
		}
		BIO_TIME(r->total, total);
	}
	if (unlikely(is_small))
		BIO_SUM(((struct bio_small *)r)->device[usec_bucket(device)], 1);
	else
		BIO_TIME(((struct bio_row *)r)->device, device);
	if (unlikely(total < 0))
		return;
	if (bio_by_size && !is_small)
		bio_size(disk, op, earlier + nr_bytes, total, !late && group_plain(bio_size_shared));
	if (bio_exemplars)
		bio_slower(raw, rq, disk, now, total, device, nr_bytes, earlier);
	if (bio_slow && (__u64)total >= bio_slow_ns)
		bio_slow_row(raw, rq, disk, total, device, nr_bytes, earlier);
}

/* Counts the completion of a request, or of a part of it. */
static __always_inline void bio_complete(const bool raw, struct request *rq, __u32 nr_bytes)
{
	__u32 op = block_op(raw, rq);
	__u64 disk, now, is_small;
	struct bio_head *r;
	__u32 number;
	bool late;

	if (unlikely(block_is_command(op)))
		return;
	disk = 1ULL << 63 | block_disk(raw, rq); /* before the paths part: each load of a pointer takes the verifier a millisecond */
	if (unlikely(!nr_bytes)) {
		asm volatile(""); /* or clang makes one number of both questions, with jumps of its own */
		if (block_is_ghost(op, nr_bytes))
			return;
	}
	if (bio_ignores(raw, rq, disk))
		return;
	now = bpf_ktime_get_ns();

	number = bio_first(disk, op & 1, &bio_cpu_shift);
	/* clang may not tell later from the operation which of the two it was: the verifier cannot. */
	if (unlikely(op == OP_FLUSH || op == OP_DISCARD)) {
		r = row(&bio_smalls, number);
		is_small = 1;
		HIDE(is_small);
	} else {
		r = row(&bio_rows, number);
		is_small = 0;
		HIDE(is_small);
	}
	if (unlikely(!r) || unlikely(r->disk != disk)) {
		asm volatile("%0 += %1; %0 -= %1" : "+r"(op) : "r"(disk)); /* for the verifier; see usec_bucket */
		r = bio_other_row(&bio_rows, &bio_smalls, is_small, disk, op & 1, &bio_cpu_shift, &late);
		if (!r)
			return;
		/* By code of its own: the other asks for each add nothing. */
		if (group_plain(bio_shared) && unlikely(late)) {
			bio_count(raw, rq, nr_bytes, disk, op, now, r, is_small, true);
			return;
		}
	}
	bio_count(raw, rq, nr_bytes, disk, op, now, r, is_small, false);
}

/* Whether submitters are remembered here: biotop and bioperpid do it too. */
static __always_inline bool bio_begins(void)
{
	return BIO_WHO && !biotop_on && !bioperpid_on;
}

ON(block_io_start, struct request *rq)
{
	if (bio_begins())
		owner_begin(raw, rq);
}

ON_ENTRY(blk_account_io_start, struct request *rq)
{
	if (bio_begins())
		owner_begin(raw, rq);
}

ON_ENTRY(__blk_account_io_start, struct request *rq)
{
	if (bio_begins())
		owner_begin(raw, rq);
}

/* What submits a bio tells nothing of its request: where the kernel has no other hook the submitter is not known. */
ON(block_bio_queue, struct bio *bio)
{
}

/* Of the modules at this hook this is the first: the others forget who submitted the request. */
ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	bio_complete(raw, rq, nr_bytes);
	if (bio_begins())
		owner_complete(raw, rq, nr_bytes);
}

#include "shared/stacked.bpf.h"
