/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Log-linear histograms of times: 16 buckets to the octave from 1 us to 2^27 us, 16 equal ones below 1 us, one bucket per octave
 * above 2^27 us, the last of them open. Sums of 16 are the powers of two of hist.bpf.h, without error.
 */
#pragma once

#include "hist.bpf.h"

#define FINE_BUCKETS 456 /* 453 are in use: the rest makes whole cache lines */
#define FINE_OCTAVES 448 /* the first bucket that is an octave */
#define FINE_LAST 452

struct fine_hist {
	__u64 sum; /* ns */
	__u64 buckets[FINE_BUCKETS];
};

/* What clang does not know the range of it does not compare with a branch. */
#define HIDE(v) asm("" : "+r"(v))

/* The bucket of a time: an octave, and 16 to 31 for where in it. */
static __always_inline __u64 fine_bucket(__u64 ns)
{
	__u64 v, octave, step, bucket;

	if (unlikely(ns >> 47))
		ns = (1ULL << 47) - 1; /* in the last bucket, too */
	/*
	 * In sixteenths of a microsecond: 2 / 125 ns, the product exact below 2^32. Longer times lose 16 bits first, which changes no
	 * bucket. One form for all times is less code than a division for the long ones.
	 */
	octave = OVER(ns, (1 << 20) / 2 * 125 - 1) << 4;
	v = (ns << 1 >> octave) * 274877907 >> 35;
	HIDE(v);
	/* Sums of comparisons that do not depend on each other: fewer steps than a search by halves. */
	step = (OVER(v, 0xff) + OVER(v, 0xfff) + OVER(v, 0xffff)) << 2;
	v >>= step;
	octave += step;
	HIDE(v);
	step = OVER(v, 0x1f) + OVER(v, 0x3f) + OVER(v, 0x7f);
	v >>= step;
	bucket = ((octave + step) << 4) + v;
	asm volatile("%0 += %1; %0 -= %1" : "+r"(bucket) : "r"(ns)); /* for the verifier; see usec_bucket */
	if (unlikely(bucket >= FINE_OCTAVES)) {
		bucket = FINE_OCTAVES - (FINE_OCTAVES >> 4) + (bucket >> 4);
		if (bucket > FINE_LAST)
			bucket = FINE_LAST;
	}
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

/* The same where another task can preempt this one between the load and the store: in user code. */
#define FINE_COUNT_SHARED(hist, ns)                                                                                    \
	do {                                                                                                          \
		__u64 bucket_ = fine_bucket(ns);                                                                      \
                                                                                                                       \
		ADD((hist).buckets[bucket_], 1);                                                                      \
		ADD((hist).sum, ns);                                                                                  \
	} while (0)
