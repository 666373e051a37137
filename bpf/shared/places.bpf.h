/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Rows by owner, which is a number: a cgroup, a network, a port. In a table of owners each takes a place at its first event (owned.bpf.h),
 * and each place has rows of counters. A place is the agent's to give back (src/modules/shared/places.rs).
 */
#pragma once

#include "owned.bpf.h"

struct place_owner {
	__u64 id; /* of a cgroup the number of its kernfs node; 0: nobody; PLACE_RETIRED: about to be nobody */
	__u64 claims;
};

#define ALL_CPUS 31 /* as a shift, where events are rare enough for all CPUs to share rows: log2 of more CPUs than there are */
#define PLACE_CHOICES 32 /* of an owner for its place: with nine of ten taken, one in thirty finds none */

/* The index of an owner's rows: 1 and up; 0 for those that find no place, and for id 0. `mask` is the number of places less 1. */
static __always_inline __u32 place_index(void *owners, __u32 mask, __u64 id)
{
	__u32 hash = number_hash(id), place;
	struct place_owner *owner;

	if (!id)
		return 0;
	/* In one go: those without a place are counted at each event. */
	OWNED_LOOK(owner, place, owners, PLACE_CHOICES, number_slot(hash, nth) & mask,
		   likely(owner->id == id) || (!owner->id && claim(&owner->claims) && (owner->id = id)));
	return owner ? place + 1 : 0;
}

/* A hash of the first 15 bytes of a string of the kernel, for owners that have a name (src/modules/shared/places.rs has the same). */
static __always_inline __u32 name_hash(const char *name)
{
	__u64 words[2] = {};

	bpf_probe_read_kernel_str(words, sizeof(words), name);
	return ((words[0] * 0x9e3779b97f4a7c15ULL) ^ (words[1] * 0xc2b2ae3d27d4eb4fULL)) >> 32;
}

/* The row of an index for this CPU, one of 1 << shift that share it; it begins with whether it is in use, which `marks` is told once. */
static __always_inline void *place_row(void *rows, void *marks, __u32 mask, __u32 shift, __u32 index)
{
	__u32 number = (bpf_get_smp_processor_id() >> shift) * (mask + 2) + index;
	__u64 *used = row(rows, number);

	if (used && unlikely(!*used)) {
		*used = 1;
		mark(marks, number);
	}
	return used;
}
