/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which processes are in which module's filter. A process is judged by its command name when it is born and when it execs, and
 * by its command line when it execs, before it runs an instruction: expressions are walked as automata, which the agent
 * makes (src/process/automaton.rs). The agent is told of each exec if it could make none, or the line is too long, and of
 * processes that come and go in filters whose modules attach to probes. An entry lasts until the process is reaped: what happens
 * while it exits counts too, and the id cannot be used again before.
 */
#include "shared/owned.bpf.h"
#include "shared/filter.bpf.h"

#define FILTER_PLACES 128

struct filter_ask {
	__u32 process;
	__u32 pad;
};

/* Who has the rows of this number. */
struct filter_slot {
	__u64 claims;
	__u64 process; /* 0: nobody */
	__u64 ended;   /* 1: so has the process; 2: modules are emptying the rows */
	__u64 pad[5];
};

struct filter_stat {
	__u64 full;    /* processes that found no room */
	__u64 unasked; /* processes that the agent was not told of */
	__u64 pad[6];
};

/* Filters by command name. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64[2]);
	__type(value, __u64);
} filter_names SEC(".maps");

#define FILTER_CLASSES 64 /* as src/process/automaton.rs has it, and the next */
#define FILTER_STATES 512

/* The automaton of all expressions for command lines. One value, so that steps need no lookups. */
struct filter_automaton {
	__u64 ready; /* the agent has made it */
	__u64 pad[7];
	__u8 class[256];			       /* of each byte; NUL, which ends an argument, has that of the blank */
	__u16 next[FILTER_STATES * FILTER_CLASSES]; /* state, by state and class; 0: nothing matches any more */
	__u64 filters[FILTER_STATES];		       /* of a line that ends in this state */
};

ROWS(filter_automata, struct filter_automaton);
ROWS(filter_slots, struct filter_slot);
ROWS(filter_stats, struct filter_stat);
RING(filter_asks);
EXPORT(struct filter_ask);

const volatile __u64 filter_lines;    /* filters with expressions for command lines */
const volatile __u64 filter_detailed; /* filters whose processes get rows of their own */
const volatile __u64 filter_followed; /* filters whose processes the agent attaches to */

static __always_inline struct filter_member *filter_entry(__u32 process)
{
	return bpf_map_lookup_elem(&filter_members, &process);
}

/* The filters that the current thread's name is in. */
static __always_inline __u64 filter_by_name(void)
{
	__u64 comm[2] = {}, *filters;

	bpf_get_current_comm(comm, sizeof(comm));
	filters = bpf_map_lookup_elem(&filter_names, comm);
	return filters ? *filters : 0;
}

#define FILTER_CHUNK 64
#define FILTER_CHUNKS 64

static __always_inline __u32 filter_step(const struct filter_automaton *automaton, __u32 state, __u8 byte)
{
	__u32 at = state * FILTER_CLASSES + automaton->class[byte];

	BOUND(at, 32767);
	return automaton->next[at];
}

/*
 * The filters that the command line of a new program is in: its arguments with blanks between them. False if this cannot be told
 * here. No branch in the steps: the verifier allows 8192 in all.
 */
static __always_inline bool filter_by_line(const bool raw, struct task_struct *task, __u64 *filters)
{
	const struct filter_automaton *automaton = row(&filter_automata, 0);
	struct mm_struct *mm = GET(task, mm);
	__u64 at = GET(mm, arg_start), end = GET(mm, arg_end), rest;
	char chunk[FILTER_CHUNK] = {}, last;
	__u32 state = 1;

	if (!automaton || !automaton->ready)
		return false;
	end--; /* the last argument ends with a NUL; before it stands another one if it is empty */
	if ((__s64)(end - at) <= 0 || bpf_probe_read_user(&last, 1, (void *)end - 1) || !last)
		return false;
	for (int i = 0; i < FILTER_CHUNKS && end - at >= FILTER_CHUNK && state; i++, at += FILTER_CHUNK) {
		if (bpf_probe_read_user(chunk, FILTER_CHUNK, (void *)at))
			return false;
#pragma clang loop unroll(disable)
		for (int j = 0; j < FILTER_CHUNK; j++)
			state = filter_step(automaton, state, chunk[j]);
	}
	rest = end - at;
	if (state && rest) {
		if (rest >= FILTER_CHUNK)
			return false;
		BOUND(rest, 63);
		if (bpf_probe_read_user(chunk, rest, (void *)at))
			return false;
#pragma clang loop unroll(disable)
		for (__u64 j = 0; j < FILTER_CHUNK && j < rest; j++)
			state = filter_step(automaton, state, chunk[j]);
	}
	BOUND(state, 511);
	*filters = automaton->filters[state];
	return true;
}

static __always_inline __u32 filter_slot_of(__u32 process)
{
	struct filter_slot *slot;
	__u32 place;

	OWNED_LOOK(slot, place, &filter_slots, FILTER_PLACES, nth, claim(&slot->claims));
	if (!slot)
		return 0;
	slot->process = process;
	return place + 1;
}

static __always_inline void filter_give_back(__u32 slot)
{
	struct filter_slot *of = row(&filter_slots, slot - 1);

	if (of)
		of->ended = 1;
}

static __always_inline void filter_put(__u32 process, struct filter_member *now)
{
	if (now->filters & filter_detailed && !now->slot)
		now->slot = filter_slot_of(process);
	if (!now->filters && !now->asked && !now->slot) {
		bpf_map_delete_elem(&filter_members, &process);
		return;
	}
	if (!bpf_map_update_elem(&filter_members, &process, now, BPF_ANY))
		return;
	if (now->slot)
		filter_give_back(now->slot);
	LOSE(filter_stats, full);
}

/* Once the entry is there, which the agent's answer replaces. The agent is woken if it has no earlier record to read. */
static __always_inline void filter_tell(__u32 process, struct filter_member *now)
{
	struct filter_ask *ask = bpf_ringbuf_reserve(&filter_asks, sizeof(*ask), 0);

	if (ask) {
		ask->process = process;
		ask->pad = 0;
		bpf_ringbuf_submit(ask, 0);
		return;
	}
	now->asked = 0;
	filter_put(process, now);
	LOSE(filter_stats, unasked);
}

ON(task_newtask, struct task_struct *task, unsigned long clone_flags)
{
	struct filter_member *parent, *stale, now = {};
	__u32 process;

	if (clone_flags & CLONE_THREAD)
		return;
	process = GET(task, tgid);
	stale = filter_entry(process);
	if (stale && stale->slot)
		filter_give_back(stale->slot);
	parent = filter_entry(bpf_get_current_pid_tgid() >> 32);
	if (parent) {
		now.lines = parent->lines;
		now.asked = parent->asked;
	}
	now.filters = filter_by_name() | now.lines; /* the child has the name of the thread that forks */
	now.born = GET(task, start_time);
	if (!stale && !now.filters && !now.asked)
		return;
	filter_put(process, &now);
	/* In the memory of its parent it runs what is attached to already. */
	if (now.asked || (now.filters & filter_followed && !(clone_flags & CLONE_VM)))
		filter_tell(process, &now);
}

ON(sched_process_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32;
	struct filter_member *before = filter_entry(process), now = {};
	__u64 followed = 0;

	if (before) {
		now.ids = before->ids;
		now.slot = before->slot;
		followed = before->filters;
	}
	now.filters = filter_by_name() | now.ids;
	now.born = GET(task, start_time);
	if (filter_lines && !filter_by_line(raw, task, &now.lines))
		now.asked = 1;
	now.filters |= now.lines;
	if (!before && !now.filters && !now.asked)
		return;
	followed = (followed | now.filters) & filter_followed;
	filter_put(process, &now);
	if (now.asked || followed)
		filter_tell(process, &now);
}

/* The leader of a process is reaped last, also if its other threads outlived it. */
ON(sched_process_free, struct task_struct *task)
{
	__u32 process = GET(task, tgid);
	struct filter_member *member;

	if (GET(task, pid) != process)
		return;
	member = filter_entry(process);
	/* This comes some time after the id was given back: another process may have it already. */
	if (!member || (member->born && member->born != GET(task, start_time)))
		return;
	if (member->slot)
		filter_give_back(member->slot);
	bpf_map_delete_elem(&filter_members, &process);
}

/* What the agent found out about a process; yields whether that is news. */
ON_CALL(admit, __u32 process, __u64 names, __u64 lines, __u64 ids)
{
	struct filter_member *before = filter_entry(process), now = {};
	__u64 filters = names | lines | ids;

	if (before) {
		if (before->filters == filters && before->lines == lines && before->ids == ids && !before->asked)
			return 0;
		now.born = before->born;
		now.slot = before->slot;
	} else if (!filters) {
		return 0;
	}
	now.filters = filters;
	now.lines = lines;
	now.ids = ids;
	filter_put(process, &now);
	return 1;
}

/* A command name, as two words, and the filters it is in. */
ON_CALL(name, __u64 low, __u64 high, __u64 filters)
{
	__u64 comm[2] = { low, high };

	return !bpf_map_update_elem(&filter_names, comm, &filters, BPF_ANY);
}
