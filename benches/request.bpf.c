/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the parts of counting a block request cost: the two programs of biolatency up to PART, for `benches/compare --object`. With libbpf's headers:
 *
 *   clang -O2 -g -target bpf -mcpu=v2 -D__TARGET_ARCH_x86 -Ibpf -DPART=9 -c benches/request.bpf.c -o part9.bpf.o
 *
 *   1  two clock reads              5  the numbers of the disk
 *   2  the check for ghosts         6  its row and its bytes
 *   3  the time since allocation    7  the histogram from the allocation
 *   4  the issue, kept and found    8  the one from the issue
 *                                   9  the one between both
 *
 * STARTS_LOG2 is the size of the table of times of issue. What else was tried, with PART=9: EARLY reads the clock first, LOOP counts all
 * histograms by the same code, DIRECT has arrays at fixed addresses instead of looked-up elements, NEAR keeps the sums of the histograms beside the
 * disk. benches/README.md has the numbers.
 */
#define MODULE request
#include "shared/block_times.bpf.h"
#include "shared/groups.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#ifndef STARTS_LOG2
#define STARTS_LOG2 11
#endif
#define DISKS 20
#define CPUS 16
#define ROWS_ALL (CPUS * DISKS * 2)

/* Uses a value, so that clang computes it. */
#define USE(v) asm volatile("" ::"r"((__u64)(v)))

struct times {
	__u64 buckets[FINE_BUCKETS];
};

/* As struct bio_row. */
struct request_row {
	__u64 disk, bytes, unmeasured, no_start, no_issue;
#ifdef NEAR
	__u64 sums[3];
	struct times hists[3];
#else
	struct fine_hist hists[3];
#endif
	__u64 pad[16];
};

__u32 base;

#ifdef DIRECT
__u64 starts[1 << STARTS_LOG2];
struct request_row rows[ROWS_ALL];
#else
#define ARRAY(name, count, of)                                                                                        \
	struct {                                                                                                      \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                                     \
		__uint(max_entries, count);                                                                           \
		__type(key, __u32);                                                                                   \
		__type(value, of);                                                                                    \
	} name SEC(".maps")
ARRAY(starts, 1 << STARTS_LOG2, __u64);
ARRAY(rows, ROWS_ALL, struct request_row);
#endif

static __always_inline __u64 *request_start(__u64 number)
{
#ifdef DIRECT
	__u32 place = (__u32)number * 0x9e3779b1 >> (32 - STARTS_LOG2);

	return place < 1 << STARTS_LOG2 ? &starts[place] : NULL;
#else
	return block_start(&starts, 32 - STARTS_LOG2, number);
#endif
}

static __always_inline struct request_row *request_row(__u64 disk, __u32 op)
{
	__u32 hash = ((__u32)(disk >> 32) << 20 ^ (__u32)disk) * 0x9e3779b1;
	__u32 index = 1 + (__u32)((__u64)hash * (DISKS - 1) >> 32);
	__u32 number = (bpf_get_smp_processor_id() * DISKS + index) << 1 | (op & 1);

#ifdef DIRECT
	return number < ROWS_ALL ? &rows[number] : NULL;
#else
	return row(&rows, number);
#endif
}

static __always_inline void request_count(struct request_row *r, int nth, __u64 ns)
{
	r->hists[nth].buckets[fine_bucket(ns)]++;
#ifdef NEAR
	r->sums[nth] += ns;
#else
	r->hists[nth].sum += ns;
#endif
}

SEC("tp_btf/block_rq_issue")
int request_block_rq_issue(__u64 *ctx)
{
	struct request *rq = (void *)ctx[0];
	__u64 number, *start;

	if (PART < 4) {
		USE(bpf_ktime_get_ns());
		return 0;
	}
	number = block_number(false, rq, &base);
	start = request_start(number);
	if (start)
		*start = bpf_ktime_get_ns() << 16 | (number & 0xffff);
	return 0;
}

/* Nanoseconds since the issue; -1: not known. */
static __always_inline __s64 request_since_issue(struct request *rq, __u64 now)
{
	__u64 number = block_number(false, rq, &base), *start = request_start(number);
	__u64 issued = start ? *start : 0;

	if (issued && (__u16)issued == (__u16)number) {
		*start = 0;
		return (__s64)((now << 16) - (issued & ~0xffffULL)) >> 16;
	}
	return rq->io_start_time_ns ? (__s64)(now - rq->io_start_time_ns) : -1;
}

/* The histograms up to PART. */
static __always_inline void request_times(struct request_row *r, __u64 total, __u64 device)
{
	__u64 times[] = {total, device, total > device ? total - device : 0};

#ifdef LOOP
#pragma clang loop unroll(disable)
#else
#pragma unroll
#endif
	for (int nth = 0; nth < PART - 6; nth++) {
		__u64 ns = times[nth];

		request_count(r, nth, ns);
	}
}

SEC("tp_btf/block_rq_complete")
int request_block_rq_complete(__u64 *ctx)
{
	struct request *rq = (void *)ctx[0];
	__u32 op, nr_bytes = ctx[2];
	__s64 total = 0, device = 0;
	struct request_row *r = NULL;
	__u64 now, disk = 0;

#ifdef EARLY
	now = bpf_ktime_get_ns();
#endif
	op = block_op(false, rq);
	if (PART >= 2 && (block_is_command(op) || block_is_ghost(op, nr_bytes)))
		return 0;
	if (PART >= 5)
		disk = 1ULL << 63 | block_disk(false, rq);
#ifndef EARLY
	now = bpf_ktime_get_ns();
#endif
	USE(now);
	USE(disk);
	if (PART >= 6) {
		r = request_row(disk, op);
		if (!r)
			return 0;
		if (unlikely(r->disk != disk))
			r->disk = disk;
		r->bytes += nr_bytes;
	}
	if (PART >= 2 && block_is_part(false, rq, nr_bytes))
		return 0;
	if (PART >= 3)
		total = block_since_allocation(false, rq, op, now);
	if (PART >= 4)
		device = request_since_issue(rq, now);
	USE(total);
	USE(device);
	if (PART >= 7 && likely(total >= 0 && device >= 0))
		request_times(r, total, device);
	return 0;
}
