/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Places by key, for what threads and sockets are in the middle of: none gives way to another's as long as there is room. A key
 * has a choice of two sets of eight ways, of which the second is for when the first is full: with a quarter of all ways taken one
 * key in a million finds both full. The keys of a set share a cache line. The hash says with which way a search begins, so that mostly
 * one look finds a key.
 *
 * A way is claimed by adding the key to its word: who then reads nothing but his own has it, the others take theirs back. So
 * nothing is left for the agent to free.
 *
 * With one exception: where both sets are full a key is written over another one. If its owner frees the way, or a claimer takes
 * his key back, within the nanoseconds between their look and their addition, the word is left with a sum that is nobody's key.
 * It costs a start that then counts as lost, and a way of a set that was full; the next key that finds the set full may
 * write over it. Additions alone cannot tell it from a claim under way, and a compare-and-swap came with 5.12.
 */
#pragma once

#include "owned.bpf.h"

#define SET_WAYS 8

/* Every set begins like this. */
struct way_keys {
	__u64 keys[SET_WAYS]; /* 0: free */
};

static __always_inline void *set_set(void *map, __u32 mask, __u32 hash, int nth)
{
	return row(map, (nth ? hash >> 16 : hash) & mask);
}

/* The nth way of a search. */
static __always_inline __u32 way_nth(__u32 hash, __u32 nth)
{
	__u32 way = (hash >> 29) + nth;

	BOUND(way, 7);
	return way;
}

/* Whether a set has the key, and in which of its ways. A loop: unrolled it is ten times the code, mostly cold. */
static __always_inline bool way_is_in(const struct way_keys *set, __u32 hash, __u64 key, __u32 *way)
{
#pragma clang loop unroll(disable)
	for (__u32 nth = 0; nth < SET_WAYS; nth++) {
		*way = way_nth(hash, nth);
		if (set->keys[*way] == key)
			return true;
	}
	return false;
}

/* Takes a way of a set for a key that has none. */
static __always_inline bool way_claim(struct way_keys *set, __u32 hash, __u64 key, __u32 *way)
{
#pragma clang loop unroll(disable)
	for (__u32 nth = 0; nth < SET_WAYS; nth++) {
		volatile __u64 *word;

		*way = way_nth(hash, nth);
		word = &set->keys[*way];
		if (*word)
			continue;
		ADD(*word, key);
		if (*word == key)
			return true;
		ADD(*word, -key);
	}
	return false;
}

/* Takes another key's way. */
static __always_inline void way_displace(struct way_keys *set, __u32 hash, __u64 key, __u32 *way, bool *displaced)
{
	*displaced = true;
	*way = way_nth(hash, 0);
	set->keys[*way] = key;
}

/* The set that has the key, and which of its ways; NULL: none has. */
static __always_inline void *way_find(void *map, __u32 mask, __u64 key, __u32 *way)
{
	__u32 hash = number_hash(key);

#pragma clang loop unroll(disable)
	for (int nth = 0; nth < 2; nth++) {
		struct way_keys *set = set_set(map, mask, hash, nth);

		if (!set)
			return NULL;
		if (way_is_in(set, hash, key, way))
			return set;
	}
	return NULL;
}

/* Gives a key that has no way yet one, another's if all are taken. */
static __always_inline void *set_claim(void *map, __u32 mask, __u64 key, __u32 *way, bool *displaced)
{
	__u32 hash = number_hash(key);
	struct way_keys *set;

#pragma clang loop unroll(disable)
	for (int nth = 0; nth < 2; nth++) {
		set = set_set(map, mask, hash, nth);
		if (!set)
			return NULL;
		if (way_claim(set, hash, key, way))
			return set;
	}
	way_displace(set, hash, key, way, displaced);
	return set;
}

/* By an addition too: somebody may be about to take his own back. */
static __always_inline void way_free(void *set, __u32 way, __u64 key)
{
	ADD(((struct way_keys *)set)->keys[way], -key);
}

/* A number by key: mostly the time at which something began. */
struct set_numbers {
	__u64 keys[SET_WAYS];
	__u64 numbers[SET_WAYS];
};

/*
 * The way of a key, its own or one that it takes; where to write its number, instead of an earlier one. The second set, another cache line, is looked at only where the
 * first is full: an earlier number that no end took is written over there the next time that it is.
 *
 * Until then it harms no key whose beginnings and ends are all seen: an end looks in the first set first, where the number of its own
 * beginning is. Only an end whose beginning was lost (its program did not run, or another key took its way) takes the earlier one, once,
 * and then counts a time that is too long. That needs a full first set (one key in 1,000 where 4,000 threads are in a call), an end that never
 * came and a lost beginning, all of the same key. To look for it would cost each beginning or each end a second cache line.
 */
static __always_inline void *set_way(void *map, __u32 mask, __u64 key, __u32 *way, bool *displaced)
{
	__u32 hash = number_hash(key);
	struct way_keys *set;

#pragma clang loop unroll(disable)
	for (int nth = 0; nth < 2; nth++) {
		set = set_set(map, mask, hash, nth);
		if (!set)
			return NULL;
		if (way_is_in(set, hash, key, way) || way_claim(set, hash, key, way))
			return set;
	}
	way_displace(set, hash, key, way, displaced);
	return set;
}

static __always_inline __u64 *set_number(void *map, __u32 mask, __u64 key, bool *displaced)
{
	__u32 way = 0;
	struct set_numbers *set = set_way(map, mask, key, &way, displaced);

	return set ? &set->numbers[way] : NULL;
}

/* Something of the key begins now; true if the start of something else gave way to it. */
static __always_inline bool set_begins(void *map, __u32 mask, __u64 key)
{
	bool displaced = false;
	__u64 *since = set_number(map, mask, key, &displaced);

	if (since)
		*since = bpf_ktime_get_ns();
	return displaced;
}

/* The number of a key, which is forgotten: it never pairs with a later end. False: there is none. */
static __always_inline bool set_take(void *map, __u32 mask, __u64 key, __u64 *number)
{
	__u32 way = 0;
	struct set_numbers *set = way_find(map, mask, key, &way);

	if (!set)
		return false;
	*number = set->numbers[way];
	way_free(set, way, key);
	return true;
}
