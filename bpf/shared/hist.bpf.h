/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Powers of two, in microseconds or bytes: bucket 0 holds 0-1, bucket i holds 2^i to 2^(i+1)-1, the last bucket all that is more. */
#pragma once

#include "probe.bpf.h"

#define HIST_BUCKETS 32

/* v > limit as 1 or 0, for v below 2^63, without a branch: latencies are what a branch predictor cannot learn. */
#define OVER(v, limit) ((limit - (v)) >> 63)

/*
 * The bucket of a number. Adding and taking off another one that the verifier does not know makes it forget by which of 32 ways it came
 * here: without it a program with two of these passes the limit of a million instructions on 6.12 to 6.18.
 */
static __always_inline __u64 log2_bucket(__u64 v, __u64 unknown)
{
	__u64 bucket, step;

	if (unlikely(v > 0xffffffff))
		v = 0xffffffff;
	bucket = OVER(v, 0xffff) << 4;
	v >>= bucket;
	step = OVER(v, 0xff) << 3;
	v >>= step;
	bucket |= step;
	step = OVER(v, 0xf) << 2;
	v >>= step;
	bucket |= step;
	step = OVER(v, 0x3) << 1;
	v >>= step;
	bucket |= step;
	bucket |= v >> 1;
	asm volatile("%0 += %1; %0 -= %1" : "+r"(bucket) : "r"(unknown));
	BOUND(bucket, 31);
	return bucket;
}

static __always_inline __u64 usec_bucket(__u64 ns)
{
	/* Exact below 2^32; older CPUs take 40 cycles and more for a 64-bit division. */
	return log2_bucket(likely(ns < 1ULL << 32) ? ns * 274877907 >> 38 : ns / 1000, ns);
}
