/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counters by CPU and key: a disk, an operation, whatever has at most about KEYS different numbers, none of them 0, which counts as lost. A row begins
 * with two words, `key` and `lost`. The first row of a CPU belongs to no key: its `lost` counts what found no row.
 */
#pragma once

#include "owned.bpf.h"

#define KEYS 64 /* rows per CPU, as in src/kit/map.rs */
#define KEY_PLACES 8

static __always_inline void *keyed_row(void *rows, __u64 key)
{
	__u32 first = bpf_get_smp_processor_id() * KEYS, hash = number_hash(key);
	__u64 *rest;

#pragma unroll
	for (int i = 0; i < KEY_PLACES; i++) {
		__u32 at = number_slot(hash, i) & (KEYS - 1);
		/* a row with the key 0 is one that is free */
		__u64 *r = at && key ? row(rows, first + at) : NULL;

		if (!r)
			continue;
		if (!*r)
			*r = key;
		if (*r == key)
			return r;
	}
	rest = row(rows, first);
	if (rest)
		COUNT(rest[1]);
	return NULL;
}

/* Counts an event of a key in a counter of its row. */
#define COUNT_KEY(rows, key, counter)                                                                                 \
	do {                                                                                                          \
		typeof(*(rows).value) *keyed_ = keyed_row(&(rows), key);                                              \
		if (keyed_)                                                                                           \
			COUNT(keyed_->counter);                                                                       \
	} while (0)
