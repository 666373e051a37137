/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Events of which the latest are rows (src/modules/shared/latest.rs): records of a ring. A process may fill a quarter of the ring in a
 * second, so that a stranger with any number of events hides nobody else's. What finds no room is counted, by reason.
 *
 *   LATEST(stem)              the maps <stem>_events, <stem>_lost and <stem>_shares, and the constant <stem>_ring
 *   EVENT(stem, type, owner)  room for a record, with its head filled in; NULL: there is none. <stem>_done(record) hands it over
 *   EVENT_OF(stem, type, owner, payer)
 *                             the same, where another process than the owner of the row gives of its share
 */
#pragma once

#include "owned.bpf.h"

/* What a record begins with. */
struct event_head {
	__u64 ns;     /* of the monotonic clock */
	__u64 cgroup; /* of the current task, in cgroup v2 */
	__u64 owner;  /* the process that it takes a row of */
};

struct latest_stat {
	__u64 full;    /* the ring was full */
	__u64 crowded; /* the share of the process was used up */
	__u64 pad[6];
};

#define SHARES 1024

/* Bytes that processes took in a second; processes that hash alike have one. */
struct share {
	__u64 second; /* in units of 2^30 ns */
	__u64 bytes;
};

/* Two CPUs that begin a second at once may forget a record of each other. */
static __always_inline bool share_has(void *shares, __u64 owner, __u64 ns, __u64 bytes, __u64 most)
{
	struct share *share = row(shares, number_hash(owner) & (SHARES - 1));

	if (!share)
		return false;
	if (share->second != ns >> 30) {
		share->second = ns >> 30;
		share->bytes = 0;
	}
	if (share->bytes + bytes > most)
		return false;
	ADD(share->bytes, bytes);
	return true;
}

#define LATEST(stem)                                                                                                  \
	RING(stem##_events);                                                                                          \
	ROWS(stem##_lost, struct latest_stat);                                                                        \
	PRIVATE(stem##_shares, struct share);                                                                         \
	const volatile __u64 stem##_ring; /* its size in bytes */                                                     \
	static __always_inline void stem##_done(void *event) { ring_submit(&stem##_events, event, stem##_ring / 2); }

#define EVENT_OF(stem, type, of, payer)                                                                               \
	({                                                                                                            \
		__u64 ns_ = bpf_ktime_get_ns();                                                                       \
		struct event_head *head_ = NULL;                                                                      \
		if (!share_has(&stem##_shares, payer, ns_, sizeof(type), stem##_ring / 4)) {                          \
			LOSE(stem##_lost, crowded);                                                                   \
		} else {                                                                                              \
			head_ = bpf_ringbuf_reserve(&stem##_events, sizeof(type), 0);                                 \
			if (!head_)                                                                                   \
				LOSE(stem##_lost, full);                                                              \
		}                                                                                                     \
		if (head_) {                                                                                          \
			head_->ns = ns_;                                                                              \
			head_->cgroup = bpf_get_current_cgroup_id();                                                  \
			head_->owner = (of);                                                                          \
		}                                                                                                     \
		(type *)head_;                                                                                        \
	})

#define EVENT(stem, type, owner) EVENT_OF(stem, type, owner, owner)
