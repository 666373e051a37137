/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counters by process (src/modules/shared/by_process.rs). Before it includes this, a module defines COUNTS, a struct of counters, and
 * STEM, with which the names of its maps begin:
 *
 *   OWN(counts_of_thread)()   its counters of the current thread; NULL: there is no row for them, and that is counted
 *
 * A thread runs on one CPU at a time, so its counters need no locks; the agent adds up the rows of a process. A thread sits in one of
 * four rows of the set that its id picks, for as long as it lives; at its exit the row is marked, and the agent takes over the counts
 * and frees it.
 */
#include "owned.bpf.h"

#ifndef THREAD_WAYS
#define THREAD_WAYS 4

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
	__u64 lost; /* events of threads that found no row */
	__u64 pad[7];
};

const volatile __u32 thread_mask; /* sets - 1 */
const volatile __u32 thread_part_shift; /* log2 of the rows that share a mark */

/* Threads get consecutive ids, hence sets of their own; a set is 128 bytes, so neighbours share no line. */
static __always_inline __u32 thread_set(__u32 tid)
{
	return ((tid ^ tid >> 10) & thread_mask) * THREAD_WAYS;
}
#define OF_STEM(name) OWN_OF(STEM, name)
#endif

ROWS(OF_STEM(threads), struct thread);
ROWS(OF_STEM(names), struct thread_name);
ROWS(OF_STEM(marks), struct mark);
ROWS(OF_STEM(losses), struct thread_stat);
ROWS(OF_STEM(counts), COUNTS);

/* Begins to count for the current program: name, then state, whose number of execs has the agent read the name. */
static __always_inline void OWN(thread_begins)(__u32 place, struct thread *t)
{
	struct thread_name *name = row(&OF_STEM(names), place);

	if (name)
		process_name(name->comm);
	*(volatile __u64 *)&t->state = process_execs() << 1;
}

/* Counters begin when their row is claimed, since they grow by plain adds (owned.bpf.h). */
static __always_inline void OWN(counts_begin)(__u32 place)
{
	COUNTS *r = row(&OF_STEM(counts), place);

	if (r)
		__builtin_memset(r, 0, sizeof(*r));
}

/* The row of a thread and its number; NULL: it has none. */
static __always_inline struct thread *OWN(known)(__u64 id, __u32 *place)
{
	__u32 set = thread_set((__u32)id);
	struct thread *t;

	OWNED_LOOK(t, *place, &OF_STEM(threads), THREAD_WAYS, set + nth, t->id == id);
	return t;
}

static __always_inline COUNTS *OWN(counts_of_thread)(void)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 set = thread_set((__u32)id), place;
	struct thread *t;

	OWNED_ROW(t, place, &OF_STEM(threads), THREAD_WAYS, set + nth, t->id == id,
		  claim_marked(&t->claims, &OF_STEM(marks), place >> thread_part_shift), {
			  t->born = process_born();
			  OWN(thread_begins)(place, t);
			  OWN(counts_begin)(place);
			  *(volatile __u64 *)&t->id = id;
		  });
	if (t)
		return row(&OF_STEM(counts), place);
	LOSE(OF_STEM(losses), lost);
	return NULL;
}

static __always_inline void OWN(thread_ends)(__u64 id)
{
	__u32 place;
	struct thread *t = OWN(known)(id, &place);

	if (t)
		t->state |= 1;
}

ON(sched_process_exit, struct task_struct *task)
{
	OWN(thread_ends)(bpf_get_current_pid_tgid());
}

/*
 * A thread that execs takes over its process's id, and with it the row of the thread that had it, which is not ended then;
 * its own old row is no longer found by anybody.
 */
ON(sched_process_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 place;
	struct thread *t = OWN(known)(id, &place);

	if (t)
		OWN(thread_begins)(place, t);
	if ((__u32)id != (__u32)old_pid)
		OWN(thread_ends)(id >> 32 << 32 | (__u32)old_pid);
}

#undef COUNTS
#undef STEM
