/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Rows by cgroup: a table of owners, in which a cgroup takes a place at its first event (owned.bpf.h), and for each place rows of
 * counters. A place is the agent's to give back (src/modules/shared/cgroups.rs).
 */
#pragma once

#include "owned.bpf.h"

struct cgroup_owner {
	__u64 id; /* of the cgroup: the number of its kernfs node; 0: nobody; CGROUP_RETIRED: about to be nobody */
	__u64 claims;
};

#define CGROUP_CHOICES 32 /* of a cgroup for its place: with nine of ten taken, one in thirty finds none */

/* The index of a cgroup's rows: 1 and up; 0 for those that find no place, and for id 0. `mask` is the number of places less 1. */
static __always_inline __u32 cgroup_index(void *owners, __u32 mask, __u64 id)
{
	__u32 hash = number_hash(id), place;
	struct cgroup_owner *owner;

	if (!id)
		return 0;
	/* In one go: those without a place are counted at each event. */
	OWNED_LOOK(owner, place, owners, CGROUP_CHOICES, number_slot(hash, nth) & mask,
		   likely(owner->id == id) || (!owner->id && claim(&owner->claims) && (owner->id = id)));
	return owner ? place + 1 : 0;
}

/* The row of an index for this CPU, one of 1 << shift that share it; it begins with whether it is in use, which `marks` is told once. */
static __always_inline void *cgroup_row(void *rows, void *marks, __u32 mask, __u32 shift, __u32 index)
{
	__u32 number = (bpf_get_smp_processor_id() >> shift) * (mask + 2) + index;
	__u64 *used = row(rows, number);

	if (used && unlikely(!*used)) {
		*used = 1;
		mark(marks, number);
	}
	return used;
}
