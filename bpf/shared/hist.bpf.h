/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Powers of two in microseconds: bucket 0 holds 0-1, bucket i holds 2^i to 2^(i+1)-1, the last bucket all that is longer. */
#pragma once

#include "probe.bpf.h"

#define HIST_BUCKETS 32

/* v > limit as 1 or 0, for v below 2^63, without a branch: latencies are what a branch predictor cannot learn. */
#define OVER(v, limit) ((limit - (v)) >> 63)

static __always_inline __u64 usec_bucket(__u64 ns)
{
	__u64 us, bucket, step;

	/* Exact below 2^32; older CPUs take 40 cycles and more for a 64-bit division. */
	if (likely(ns < 1ULL << 32))
		us = ns * 274877907 >> 38;
	else
		us = ns / 1000;
	if (unlikely(us > 0xffffffff))
		us = 0xffffffff;
	bucket = OVER(us, 0xffff) << 4;
	us >>= bucket;
	step = OVER(us, 0xff) << 3;
	us >>= step;
	bucket |= step;
	step = OVER(us, 0xf) << 2;
	us >>= step;
	bucket |= step;
	step = OVER(us, 0x3) << 1;
	us >>= step;
	bucket |= step;
	bucket |= us >> 1;
	/*
	 * Adding and taking off an unknown number makes the verifier forget by which of 32 ways it came here: without it a
	 * program with two of these passes the limit of a million instructions on 6.12 to 6.18.
	 */
	asm volatile("%0 += %1; %0 -= %1" : "+r"(bucket) : "r"(ns));
	BOUND(bucket, 31);
	return bucket;
}
