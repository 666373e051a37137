/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Taking a free place in a table that the agent maps, without compare-and-swap (5.10 has none): the claim is a locked add,
 * and whoever reads 1 afterwards owns the place. If two come at once both may read 2: then neither does, and the agent
 * sets the place free again when it finds it claimed without a key.
 */
#pragma once

#include "probe.bpf.h"

static __always_inline bool claim(__u64 *claims)
{
	if (*(volatile __u64 *)claims)
		return false;
	__sync_fetch_and_add(claims, 1);
	return *(volatile __u64 *)claims == 1;
}

/* Mixed twice: ports follow one another, and a product's bit depends on the bits below it only. */
static __always_inline __u32 number_hash(__u64 number)
{
	number = (number ^ number >> 32) * 0x9e3779b97f4a7c15;
	number = (number ^ number >> 29) * 0xff51afd7ed558ccd;
	return number >> 32;
}

/* The places a number may have, each by its own step: at half load one in 256 finds eight of them taken, of neighbours far more. */
static __always_inline __u32 number_slot(__u32 hash, __u32 nth)
{
	return hash + nth * (hash >> 16 | 1);
}

/*
 * Tells the agent that a row of a part of an array is in use: of such an array it maps only the pages of these parts
 * (src/loader/sparse.rs). To be called once the row is claimed. A mark only grows.
 */
struct mark {
	__u64 rows;
};

static __always_inline void mark(void *marks, __u32 part)
{
	struct mark *mark = row(marks, part);

	if (mark)
		ADD(mark->rows, 1);
}
