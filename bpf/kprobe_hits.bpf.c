/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Calls of the kernel functions that the configuration names: how many, how many failed, how long they took. All is counted
 * at the return, where the value is known. A start time is kept by thread and function, so that traced functions can
 * call each other; of one that calls itself the outermost call has a time.
 */
#include "shared/calls.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/fine.bpf.h"

struct kp_row {
	__u64 calls;
	__u64 fails;
	__u64 ns;
	__u64 timed;     /* calls that ns holds */
	__u64 unmatched; /* returns without a start time */
	__u64 displaced; /* start times that gave way to another's */
	__u64 nested;    /* calls inside another one of the function, which are part of its time */
	__u64 pad;
};

struct kp_time {
	struct fine_hist times;
	__u64 pad[7];
};

ROWS(kp_rows, struct kp_row);
ROWS(kp_details, struct kp_row);
ROWS(kp_times, struct kp_time);
PRIVATE(kp_starts, struct set_calls);

/* How a returned value is compared to tell a failure. */
enum {
	KP_EQ,
	KP_NE,
	KP_LT,
	KP_LE,
	KP_GT,
	KP_GE,
};

const volatile __s64 kp_value;
const volatile __u32 kp_targets;
const volatile __u32 kp_start_mask;
const volatile __s32 kp_errno; /* only calls that return its negative count; 0: all */
const volatile __u8 kp_compare;
const volatile __u64 kp_filter;
const volatile bool kp_detailed;
const volatile bool kp_timed;
const volatile bool kp_histograms;

static __always_inline bool kp_failed(__s64 value)
{
	switch (kp_compare) {
	case KP_EQ:
		return value == kp_value;
	case KP_LT:
		return value < kp_value;
	case KP_LE:
		return value <= kp_value;
	case KP_GT:
		return value > kp_value;
	case KP_GE:
		return value >= kp_value;
	default:
		return value != kp_value;
	}
}

static __always_inline void kp_count(struct kp_row *r, bool failed, int how, __u64 ns)
{
	ADD(r->calls, 1);
	if (failed)
		ADD(r->fails, 1);
	if (!kp_timed)
		return;
	if (how == CALL_TIMED) {
		ADD(r->ns, ns);
		ADD(r->timed, 1);
	} else if (how == CALL_NESTED) {
		ADD(r->nested, 1);
	} else {
		ADD(r->unmatched, 1);
	}
}

ON_EACH_ENTRY(target, frame)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct kp_row *r;

	if (!filter_wants(kp_filter, id >> 32) || !call_begins(&kp_starts, kp_start_mask, call_key(id, target), frame))
		return;
	r = row(&kp_rows, bpf_get_smp_processor_id() * kp_targets + target);
	if (r)
		ADD(r->displaced, 1);
}

ON_EACH_RETURN(target, bits, ret, frame)
{
	__u64 id = kp_filter || kp_timed ? bpf_get_current_pid_tgid() : 0, ns = 0;
	struct filter_member *member = NULL;
	int how = CALL_UNSEEN;
	__s64 value = 0;
	struct kp_row *r;
	__u32 place;

	if (kp_filter) {
		member = filter_member(kp_filter, id >> 32);
		if (!member)
			return;
	}
	if (kp_timed)
		how = call_ends(&kp_starts, kp_start_mask, call_key(id, target), frame, &ns);
	if (bits) {
		__u32 unused = (64 - bits) & 63;

		value = (__s64)(ret << unused) >> unused;
	}
	if (kp_errno && value != -(__s64)kp_errno)
		return;
	place = bpf_get_smp_processor_id() * kp_targets + target;
	r = row(&kp_rows, place);
	if (r)
		kp_count(r, bits && kp_failed(value), how, ns);
	if (kp_histograms && how == CALL_TIMED) {
		struct kp_time *time = row(&kp_times, place);

		if (time)
			FINE_COUNT(time->times, ns);
	}
	if (!kp_detailed || !member || !member->slot)
		return;
	r = row(&kp_details, (member->slot - 1) * kp_targets + target);
	if (r)
		kp_count(r, false, how, ns);
}
