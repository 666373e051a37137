/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Hits of the functions of programs and libraries that the configuration names, and the times of their outermost calls. */
#include "shared/calls.bpf.h"
#include "shared/fine.bpf.h"
#include "shared/hits.bpf.h"

struct up_time {
	struct fine_hist times;
	__u64 unmatched; /* returns whose call was not seen */
	__u64 displaced; /* starts that gave way to another's */
	__u64 nested;    /* calls inside another one of the function, which are part of its time */
	__u64 pad[4];
};

ROWS(up_hits, struct hit);
ROWS(up_times, struct up_time);
PRIVATE(up_starts, struct set_calls);

const volatile __u32 up_stride;
const volatile __u32 up_targets;
const volatile __u32 up_start_mask;
const volatile __u64 up_filter;
const volatile bool up_timed;

static __always_inline struct up_time *up_time(__u32 target)
{
	return row(&up_times, bpf_get_smp_processor_id() * up_targets + target);
}

ON_EACH_CODE(target, ctx)
{
	__u64 id = up_filter || up_timed ? bpf_get_current_pid_tgid() : 0;
	struct up_time *time;

	if (!filter_wants(up_filter, id >> 32))
		return;
	hit_user(&up_hits, up_stride, target);
	if (!up_timed || !call_begins(&up_starts, up_start_mask, call_key(id, target), PT_REGS_SP(ctx)))
		return;
	time = up_time(target);
	if (time)
		ADD(time->displaced, 1);
}

ON_EACH_CODE_RETURN(target, ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), ns = 0;
	struct up_time *time;
	int how;

	if (!filter_wants(up_filter, id >> 32))
		return;
	how = call_ends(&up_starts, up_start_mask, call_key(id, target), RETURN_FRAME(ctx), &ns);
	time = up_time(target);
	if (!time)
		return;
	if (how == CALL_TIMED)
		FINE_COUNT_SHARED(time->times, ns);
	else if (how == CALL_NESTED)
		ADD(time->nested, 1);
	else
		ADD(time->unmatched, 1);
}
