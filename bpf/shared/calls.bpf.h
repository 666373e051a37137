/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Calls in progress, by thread and function: of a function that calls itself, directly or not, the outermost. A call inside of it
 * has a stack frame below; a start that is found at the frame of a new call, or below, belongs to a call whose return was not seen, as
 * when a kretprobe was dropped or an exception left the function.
 */
#pragma once

#include "set_table.bpf.h"

struct call {
	__u64 since;
	__u64 frame; /* where the call's stack frame begins; 0: the way was just taken */
};

struct set_calls {
	__u64 keys[SET_WAYS];
	struct call calls[SET_WAYS];
};

enum {
	CALL_TIMED,
	CALL_NESTED, /* in another one of the same function by the same thread */
	CALL_UNSEEN, /* its beginning was not seen */
};

static __always_inline __u64 call_key(__u64 id, __u32 target)
{
	return id << 32 | (target + 1);
}

/* A call begins; true if the start of another thread's gave way to it. */
static __always_inline bool call_begins(void *map, __u32 mask, __u64 key, __u64 frame)
{
	bool displaced = false;
	__u32 way = 0;
	struct set_calls *set = set_way(map, mask, key, &way, &displaced);
	struct call *call;

	if (!set)
		return false;
	call = &set->calls[way];
	if (!displaced && call->frame > frame)
		return false;
	call->frame = frame;
	call->since = bpf_ktime_get_ns();
	return displaced;
}

/* A call has returned: how it counts, and with CALL_TIMED its time. */
static __always_inline int call_ends(void *map, __u32 mask, __u64 key, __u64 frame, __u64 *ns)
{
	__u64 now = bpf_ktime_get_ns(), began;
	__u32 way = 0;
	struct set_calls *set = way_find(map, mask, key, &way);
	struct call *call;

	if (!set)
		return CALL_UNSEEN;
	call = &set->calls[way];
	began = call->frame;
	if (began > frame)
		return CALL_NESTED;
	*ns = now - call->since;
	call->frame = 0;
	way_free(set, way, key);
	return began == frame ? CALL_TIMED : CALL_UNSEEN;
}
