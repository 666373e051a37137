/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The table of threads: where a thread's counters are. A thread runs on one CPU at a time, so the counters of its row
 * need no locks; the agent adds up the rows of a process. A thread sits in one of four slots of the set its id picks, for
 * as long as it lives; at its exit the slot is marked, and the agent takes over the counts and frees it.
 */
#pragma once

#include "owned.bpf.h"

#define WAYS 4

struct thread {
	__u64 id;      /* process << 32 | thread; 0: free */
	__u64 claims;
	__u64 born;    /* start time of the process, tells a reused process id apart */
	__u64 state;   /* bit 0: thread has ended; the rest is the number of execs of it and its forebears */
};

/* In an array of its own, which is written at a claim and an exec only. */
struct thread_name {
	__u64 comm[2]; /* the command name of the process */
};

struct thread_stat {
	__u64 lost; /* calls of threads that found no slot, by their module's count of them */
	__u64 pad[7];
};

ROWS(threads, struct thread);
ROWS(thread_names, struct thread_name);
ROWS(thread_marks, struct mark);
ROWS(thread_stats, struct thread_stat);

const volatile __u32 thread_mask; /* sets - 1 */
const volatile __u32 thread_part_shift; /* log2 of the slots that share a mark */

/* Threads get consecutive ids, hence sets of their own; a set is 128 bytes, so neighbours share no line. */
static __always_inline __u32 thread_set(__u32 tid)
{
	return ((tid ^ tid >> 10) & thread_mask) * WAYS;
}

/* Begins to count for the current program: name, then state, whose number of execs has the agent read the name. */
static __always_inline void thread_begin(__u32 slot, struct thread *t)
{
	struct thread_name *name = row(&thread_names, slot);

	if (name)
		process_name(name->comm);
	*(volatile __u64 *)&t->state = process_execs() << 1;
}

/* The slot of the current thread, claimed if it has none; negative: all four ways are taken. */
static __always_inline __s64 thread_slot(void)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 set = thread_set((__u32)id), place;
	struct thread *t;

	OWNED_ROW(t, place, &threads, WAYS, set + nth, t->id == id,
		  claim_marked(&t->claims, &thread_marks, place >> thread_part_shift), {
			  t->born = process_born();
			  thread_begin(place, t);
			  OWN(begins)(place);
			  *(volatile __u64 *)&t->id = id;
		  });
	return t ? (__s64)place : -1;
}

/* The row of a thread and its number; NULL: it has none. */
static __always_inline struct thread *thread_known(__u64 id, __u32 *slot)
{
	__u32 set = thread_set((__u32)id);
	struct thread *t;

	OWNED_LOOK(t, *slot, &threads, WAYS, set + nth, t->id == id);
	return t;
}

static __always_inline void thread_end(__u64 id)
{
	__u32 slot;
	struct thread *t = thread_known(id, &slot);

	if (t)
		t->state |= 1;
}
