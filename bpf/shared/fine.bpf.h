/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Log-linear histograms of times: 16 buckets to the octave from 1 us to 2^27 us, 16 equal ones below 1 us, one bucket per octave
 * above 2^27 us, the last of them open. Sums of 16 are the powers of two of hist.bpf.h, without error.
 */
#pragma once

#include "hist.bpf.h"

#define FINE_BUCKETS 456 /* 453 are in use: the rest makes whole cache lines */

struct fine_hist {
	__u64 sum; /* ns */
	__u64 buckets[FINE_BUCKETS];
};

/* What clang does not know the range of it does not compare with a branch. */
#define HIDE(v) asm("" : "+r"(v))

/* The bucket of times up to 2^27 us from their sixteenths of a microsecond. */
static __always_inline __u64 fine_log_linear(__u64 v)
{
	__u64 octave, step;

	/* Sums of comparisons that do not depend on each other: fewer steps than a search by halves. */
	octave = OVER(v, 0xfffff) << 4;
	v >>= octave;
	HIDE(v);
	step = (OVER(v, 0xff) + OVER(v, 0xfff) + OVER(v, 0xffff)) << 2;
	v >>= step;
	octave += step;
	HIDE(v);
	step = OVER(v, 0x1f) + OVER(v, 0x3f) + OVER(v, 0x7f);
	v >>= step;
	return ((octave + step) << 4) + v;
}

static __always_inline __u64 fine_bucket(__u64 ns)
{
	__u64 v, bucket;

	if (likely(ns < 1ULL << 31)) {
		bucket = fine_log_linear(ns * 274877907 >> 34); /* exact below 2^31.2; see usec_bucket */
	} else if (ns < (1ULL << 27) * 1000) {
		bucket = fine_log_linear(ns * 2 / 125);
	} else {
		v = ns / 1000;
		bucket = 448 + OVER(v, (1ULL << 28) - 1) + OVER(v, (1ULL << 29) - 1) + OVER(v, (1ULL << 30) - 1) +
			 OVER(v, (1ULL << 31) - 1);
	}
	asm volatile("%0 += %1; %0 -= %1" : "+r"(bucket) : "r"(ns)); /* for the verifier; see usec_bucket */
	if (unlikely(bucket >= FINE_BUCKETS))
		bucket = FINE_BUCKETS - 1;
	return bucket;
}

/* Counts a time in a histogram of this CPU's row (SUM): the bucket first, so that whoever reads the sum first misses none. */
#define FINE_COUNT(hist, ns)                                                                                           \
	do {                                                                                                          \
		__u64 bucket_ = fine_bucket(ns);                                                                      \
                                                                                                                       \
		COUNT((hist).buckets[bucket_]);                                                                       \
		SUM((hist).sum, ns);                                                                                  \
	} while (0)
