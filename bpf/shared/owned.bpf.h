/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Owned tables: arrays that the agent maps, whose rows come and go with processes, connections or names. A row has a word `claims`
 * and a key, 0 while the row is nobody's. Four steps, the first two of programs, the others of the agent (src/kit/owned_table.rs):
 *
 *   claim    Without compare-and-swap (5.10 has none): a locked add to `claims`; whoever reads 1 afterwards owns the row, fills it in and
 *            writes the key last of all. If two come at once both may read 2: then neither does, and the agent frees the row.
 *   count    By locked adds to the row that has the key.
 *   retire   The owner has ended, or the agent takes the key away: from then on no program begins to count in the row.
 *   release  Once no program is still counting: the row is cleared, and then `claims`, with release order.
 *
 * Programs need no barrier for it, and without fetching adds (5.12) there is none on arm64. A branch on what was read, 0 from
 * `claims` or the key, comes before all later writes, the write of a locked add included: so it adds to what the agent cleared. A plain
 * load may come early and find what was there before: who counts by plain adds writes his counters when he claims the row
 * (netproc), or the agent clears rows a tick before it releases them (src/modules/shared/cgroups.rs). Writes may be seen in another
 * order than they were made: a key a few nanoseconds before what belongs to it.
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

/* A claim in an array with marks: also a row that two have claimed has to be mapped, or the agent never frees it. */
static __always_inline bool claim_marked(__u64 *claims, void *marks, __u32 part)
{
	bool is_mine;

	if (*(volatile __u64 *)claims)
		return false;
	is_mine = claim(claims);
	mark(marks, part);
	return is_mine;
}

/*
 * The first row of a table for which `hit` is true, else NULL: as `r`, its number as `place`. `at` is the number of the nth of `most`
 * rows that its owner may have.
 */
#define OWNED_LOOK(r, place, rows, most, at, hit)                                                                     \
	do {                                                                                                          \
		(r) = NULL;                                                                                           \
		_Pragma("clang loop unroll(disable)") for (__u32 nth = 0; nth < (most); nth++)                        \
		{                                                                                                     \
			(place) = (at);                                                                               \
			(r) = row(rows, place);                                                                       \
			if ((r) && (hit))                                                                             \
				break;                                                                                \
			(r) = NULL;                                                                                   \
		}                                                                                                     \
	} while (0)

/*
 * The row of an owner, for whom `its` is true, else one that `take` gets him and `begin` fills in; NULL: all are others'. A row that
 * was freed says nothing of those behind it, so all are looked at first. Two CPUs may claim a row each for one owner: the agent adds them up.
 */
#define OWNED_ROW(r, place, rows, most, at, its, take, begin)                                                         \
	do {                                                                                                          \
		OWNED_LOOK(r, place, rows, most, at, its);                                                            \
		if (r)                                                                                                \
			break;                                                                                        \
		OWNED_LOOK(r, place, rows, most, at, take);                                                           \
		if (r) {                                                                                              \
			begin;                                                                                        \
		}                                                                                                     \
	} while (0)

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
