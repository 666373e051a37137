/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How long requests took. A module that needs the time of issue has a PRIVATE array of words for requests in flight: when each was
 * issued (48 bits) and which it is (16 bits of its address), at a place that the other bits choose. `shift` is 32 - log2 of its places.
 */
#pragma once

#include "block.bpf.h"

static __always_inline __u64 *block_start(void *starts, __u32 shift, __u64 number)
{
	return row(starts, (__u32)number * 0x9e3779b1 >> shift);
}

/* Keeps when the request is issued; `base` is a variable of the programs (block_number). */
static __always_inline void block_issued(const bool raw, void *starts, __u32 shift, const volatile void *base, struct request *rq)
{
	__u64 number = block_number(raw, rq, base);
	__u64 *start = block_start(starts, shift, number);

	if (start)
		*start = bpf_ktime_get_ns() << 16 | (number & 0xffff);
}

/* How long ago the request was issued, if that was seen; -1 if not. Without `kept` only the kernel's own time is asked. */
static __always_inline __s64 block_since_issue(const bool raw, void *starts, __u32 shift, const volatile void *base, bool kept,
					       struct request *rq, __u64 now)
{
	__u64 issued, number;
	__u64 *start;

	if (kept) {
		number = block_number(raw, rq, base);
		start = block_start(starts, shift, number);
		if (start) {
			issued = *start;
			if ((__u16)issued == (__u16)number && issued) {
				*start = 0; /* never pairs with a later request at this address */
				return (__s64)((now << 16) - (issued & ~0xffffULL)) >> 16;
			}
		}
	}
	issued = GET(rq, io_start_time_ns);
	return issued ? (__s64)(now - issued) : -1;
}

/* How long ago the request was allocated; -1: not known. */
static __always_inline __s64 block_since_allocation(const bool raw, struct request *rq, __u32 op, __u64 now)
{
	__u64 allocated = op == OP_FLUSH ? GET(rq, start_time_ns) : block_allocated(raw, rq);

	return allocated ? (__s64)(now - allocated) : -1;
}
