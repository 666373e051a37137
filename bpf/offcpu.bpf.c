/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Time of tasks off a CPU, by reason. Where a task leaves a CPU, it says why: by its state, the system call that it is in, and the
 * arguments of that. Where it comes back, the time since then is divided at the moment when it became runnable: before that it waited
 * for the reason, after that for a CPU. The times are those of runqlat.bpf.c, whose program runs for this one where that module is off.
 */
#include "shared/places.bpf.h"
#include "shared/context.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/groups.bpf.h"
#include "shared/set_table.bpf.h"
#include "shared/spans.bpf.h"
#include "shared/stack_rows.bpf.h"
#include "shared/syscall.bpf.h"

/* Reasons, in the order of the metrics. */
enum ofc_reason {
	OFC_RUNQ,
	OFC_DISK,
	OFC_FAULT,
	OFC_FILE,
	OFC_NET,
	OFC_PIPE,
	OFC_TTY,
	OFC_STOP,
	OFC_LOCK,
	OFC_COND,
	OFC_POLL,
	OFC_TIMER,
	OFC_CHILD,
	OFC_KERNEL,
	OFC_OTHER,
	OFC_REASONS = 16, /* a power of two, for the verifier */
	/* Of a system call: asks more. */
	OFC_BY_FILE = OFC_REASONS, /* what the file is, whose descriptor is the first argument */
	OFC_BY_FUTEX, /* the operation on the futex */
};

#define OFC_CALLS 512

/* include/linux/sched.h */
#define OFC_UNINTERRUPTIBLE 0x2
#define OFC_STOPPED 0xc /* __TASK_STOPPED, __TASK_TRACED */
#define OFC_DEAD 0x80
#define OFC_OF_KERNEL 0x200010 /* PF_KTHREAD; PF_IO_WORKER, from 5.12 on */
#define OFC_EXITING 0x4

/* include/uapi/linux/futex.h */
#define OFC_FUTEX_WAIT 0
#define OFC_FUTEX_LOCK_PI 6
#define OFC_FUTEX_LOCK_PI2 13

/* include/uapi/linux/stat.h */
#define OFC_TYPE 0170000
#define OFC_SOCKET 0140000
#define OFC_PIPE_TYPE 0010000
#define OFC_CHARACTER 0020000

/* A CPU. */
struct ofc_row {
	__u64 new; /* a thread on the CPU that its process has no row for yet */
	__u64 queued; /* its first wait for a CPU, which is added where the turn ends: names and ids are to be had of the current thread only */
	__u64 displaced; /* departures that gave way to others' */
	__u64 unseen; /* arrivals of threads whose departure was not found */
	struct fine_hist waits[OFC_REASONS];
	__u64 pad[4];
};

/* A cgroup's tasks, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct ofc_group {
	__u64 used; /* whether a program has counted in it */
	__u64 cells[2 * OFC_REASONS]; /* nanoseconds and number of each reason */
	__u64 pad[7];
};

struct ofc_counts {
	__u64 cells[2 * (OFC_REASONS - 1)]; /* the verifier takes the next two words for those of a 16th reason */
	__u64 departure; /* the time, and the reason in the lowest four bits; 0: the thread is on a CPU */
	__u64 pad;
};

/* What a process waited for: another that woke it, or a lock. */
struct ofc_pair {
	__u64 key; /* the process that waited; 0: free */
	__u64 claims;
	__u64 other; /* the process that woke it, 0: an interrupt; or the address of the lock */
	__u64 comm[2];
	__u64 other_comm[2];
	struct span_times times;
	__u64 pad[3];
};

/* Waits at a stack that were ended at another one. */
struct ofc_chain {
	__u64 key; /* 1 more than the row of the stack, in the upper 32 bits; below, who ended the wait; 0: free */
	__u64 claims;
	__u64 ns;
	__u64 pad[5];
};

/* Who ended a wait: by a number in `ofc_wake_places`. */
enum ofc_waker {
	OFC_BY_UNKNOWN,
	OFC_BY_INTERRUPT,
	OFC_BY_STACK, /* and more: the row of the stack */
};

/* The longest wait of an epoch, on a CPU for a reason. */
struct ofc_longest {
	__u64 epoch; /* 1 more than its number; 0: there was none */
	__u64 ns;
	__u64 ended;
	__u64 pid;
	__u64 comm[2]; /* of the thread */
	__u64 call; /* number of its system call; beyond 32 bits: it was in none, or that is not known */
	__u64 bytes; /* of the stack; below zero, an error number */
	__u64 stack[24];
};

struct ofc_stat {
	__u64 run;	 /* the run in which times are counted by stack; 0: there is none */
	__u64 stackless; /* departures whose stack found no row */
	__u64 wakerless; /* wake-ups that found no row */
	__u64 lockless;	 /* departures whose lock found no row */
	__u64 displaced; /* all of these that gave way to others' */
	__u64 epoch; /* number of that for which the longest waits are kept, an even one and an odd one in turns */
	__u64 pad[2];
};

ROWS(ofc_rows, struct ofc_row);
ROWS(ofc_owners, struct place_owner);
ROWS(ofc_groups, struct ofc_group);
ROWS(ofc_marks, struct mark); /* one for each row of a group */
ROWS(ofc_stats, struct ofc_stat);
ROWS(ofc_longest, struct ofc_longest); /* by CPU, reason, and even or odd epoch */
ROWS(ofc_stacks, struct stack_row);
PRIVATE(ofc_scratch, struct stack_row); /* of a CPU */
PRIVATE(ofc_places, struct set_numbers); /* of threads by id: the run and, in the lowest 32 bits, the row of the stack at which the thread left */
ROWS(ofc_chains, struct ofc_chain);
PRIVATE(ofc_wake_places, struct set_numbers); /* of threads by id: the run and, in the lowest 32 bits, who woke the thread */
ROWS(ofc_wakers, struct ofc_pair);
ROWS(ofc_locks, struct ofc_pair);
PRIVATE(ofc_wakings, struct set_numbers); /* of threads by id: the row of who woke it, and the lowest 32 bits of that one's number */
PRIVATE(ofc_futexes, struct set_numbers); /* of threads by id: the same of the lock that it waits for */
PRIVATE(ofc_departures, struct set_numbers); /* of threads by id that have no row, or end: as in the row */

const volatile __u64 ofc_filter;
const volatile bool ofc_by_cgroup;
const volatile __u32 ofc_departure_mask;
const volatile bool ofc_exemplars;
const volatile __u32 ofc_stack_mask; /* rows of stacks, less 1; 0: none are kept */
const volatile bool ofc_waker_stacks; /* stacks are those of waits and of who ends them */
const volatile __u32 ofc_waker_mask; /* rows of wakers, less 1; 0: they are not counted */
const volatile __u32 ofc_lock_mask; /* of locks */
const volatile __u32 ofc_mask; /* places of owners, less 1 */
const volatile __u32 ofc_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool ofc_shared; /* it is more than one */
const volatile __u8 ofc_calls[OFC_CALLS]; /* enum ofc_reason by number of the system call */

#define COUNTS struct ofc_counts
#define STEM offcpu
#include "shared/by_process.bpf.h"

/* Why a task waits that reads from a file, or writes to it. */
static __always_inline __u32 ofc_of_file(const bool raw, struct task_struct *task, __u64 fd)
{
	struct fdtable *table = GET(GET(task, files), fdt);
	struct file **files = GET(table, fd), *file = NULL;
	struct inode *inode;
	__u32 type, major;

	if ((__u32)fd >= GET(table, max_fds))
		return OFC_OTHER;
	bpf_probe_read_kernel(&file, sizeof(file), files + (__u32)fd);
	inode = BPF_CORE_READ(file, f_inode);
	type = BPF_CORE_READ(inode, i_mode) & OFC_TYPE;
	if (type == OFC_SOCKET)
		return OFC_NET;
	if (type == OFC_PIPE_TYPE)
		return OFC_PIPE;
	if (type == OFC_CHARACTER) {
		major = BPF_CORE_READ(inode, i_rdev) >> 20;
		return major == 4 || major == 5 || (major >= 136 && major <= 143) ? OFC_TTY : OFC_OTHER;
	}
	return type ? OFC_FILE : OFC_OTHER;
}

/* Why the current task waits, by its system call; `lock` becomes the address of the lock if it is a futex. */
static __always_inline __u32 ofc_of_call(const bool raw, const bool raw_task, struct task_struct *task, struct pt_regs *regs,
					 bool waits_for_disk, bool uninterruptible, __u64 *lock)
{
	__s64 number = syscall_number(raw, regs);
	bool compat = syscall_is_compat(raw, regs);
	__u32 reason, operation;

	if (number < 0)
		return waits_for_disk || uninterruptible ? OFC_FAULT : OFC_OTHER;
	if (waits_for_disk)
		return OFC_DISK;
	if (compat || number >= OFC_CALLS)
		return OFC_OTHER;
	BOUND(number, 511);
	reason = ofc_calls[number];
	if (reason == OFC_BY_FUTEX) {
		operation = SYSCALL_ARG1(regs, false) & 0x7f;
		if (operation != OFC_FUTEX_WAIT && operation != OFC_FUTEX_LOCK_PI && operation != OFC_FUTEX_LOCK_PI2)
			return OFC_COND;
		*lock = SYSCALL_ARG0(regs, false);
		return OFC_LOCK;
	}
	if (reason == OFC_BY_FILE)
		return uninterruptible ? OFC_FILE : ofc_of_file(raw_task, task, SYSCALL_ARG0(regs, false));
	return reason;
}

/* Why the current task, in this state, leaves its CPU. */
static __always_inline __u32 ofc_reason(const bool raw, struct task_struct *task, __u64 state, __u64 *lock)
{
	bool waits_for_disk, uninterruptible = state & OFC_UNINTERRUPTIBLE;
	struct pt_regs *regs;

	if (GET(task, flags) & OFC_OF_KERNEL)
		return OFC_KERNEL;
	if (state & OFC_STOPPED)
		return OFC_STOP;
	waits_for_disk = raw ? BPF_CORE_READ_BITFIELD_PROBED(task, in_iowait) : BPF_CORE_READ_BITFIELD(task, in_iowait);
	if (HAS_TASK_REGS) {
		regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
		return ofc_of_call(false, raw, task, regs, waits_for_disk, uninterruptible, lock);
	}
	regs = (void *)(GET(task, stack) + STACK_SIZE - bpf_core_type_size(struct pt_regs));
	return ofc_of_call(true, raw, task, regs, waits_for_disk, uninterruptible, lock);
}

/* Keeps a number of a thread until it comes back to a CPU. */
static __always_inline void ofc_keep(void *numbers, __u64 pid, __u64 value, struct ofc_stat *stat)
{
	bool displaced = false;
	__u64 *number = set_number(numbers, ofc_departure_mask, pid, &displaced);

	if (displaced)
		ADD(stat->displaced, 1);
	if (number)
		*number = value;
}

/* Keeps at which stack the current thread waits, during a run. */
static __always_inline void ofc_keep_stack(void *ctx, __u64 pid)
{
	struct stack_row *scratch = cpu_row(&ofc_scratch);
	struct ofc_stat *stat = row(&ofc_stats, 0);
	__s64 place;

	if (!stat || !stat->run || !scratch)
		return;
	place = stack_place(ctx, &ofc_stacks, ofc_stack_mask, scratch);
	if (place < 0)
		ADD(stat->stackless, 1);
	else
		ofc_keep(&ofc_places, pid, stat->run << 32 | place, stat);
}

#define OFC_WAYS 8

/* Keeps at which stack the current thread wakes another one, during a run. */
static __always_inline void ofc_keep_waker_stack(void *ctx, __u64 pid, bool by_interrupt, struct ofc_stat *stat)
{
	struct stack_row *scratch = cpu_row(&ofc_scratch);
	__u64 who = OFC_BY_INTERRUPT;
	__s64 place;

	/* A thread that wakes itself does not wait, and interrupts may be on. */
	if (!scratch || pid == (__u32)bpf_get_current_pid_tgid())
		return;
	if (!by_interrupt) {
		place = stack_place(ctx, &ofc_stacks, ofc_stack_mask, scratch);
		if (place < 0)
			ADD(stat->stackless, 1);
		who = place < 0 ? OFC_BY_UNKNOWN : OFC_BY_STACK + place;
	}
	ofc_keep(&ofc_wake_places, pid, stat->run << 32 | who, stat);
}

/* Adds a time to that of a stack and of who woke the thread. */
static __always_inline void ofc_count_chain(__u64 pid, __u32 stack, __u64 ns, struct ofc_stat *stat)
{
	__u64 number, key = (__u64)(stack + 1) << 32;
	struct ofc_chain *chain;
	__u32 place, hash;

	if (set_take(&ofc_wake_places, ofc_departure_mask, pid, &number) && number >> 32 == stat->run)
		key |= (__u32)number;
	hash = number_hash(key);
	OWNED_ROW(chain, place, &ofc_chains, OFC_WAYS, (hash + nth) & ofc_stack_mask, chain->key == key, claim(&chain->claims),
		  *(volatile __u64 *)&chain->key = key);
	if (chain)
		ADD(chain->ns, ns);
	else
		ADD(stat->stackless, 1);
}

/* Adds a time to that of the stack at which the thread left its CPU. */
static __always_inline void ofc_count_stack(__u64 pid, __u64 ns)
{
	struct ofc_stat *stat = row(&ofc_stats, 0);
	struct stack_row *stack;
	__u64 number;

	if (!stat || !stat->run || !set_take(&ofc_places, ofc_departure_mask, pid, &number) || number >> 32 != stat->run)
		return;
	if (ofc_waker_stacks) {
		ofc_count_chain(pid, number, ns, stat);
		return;
	}
	stack = row(&ofc_stacks, (__u32)number);
	if (stack)
		ADD(stack->ns, ns);
}

/* The number of the row of a process and another one, or a lock; negative: there is none left. */
#define OFC_PAIR(rows, mask, process, what, begin)                                                                    \
	({                                                                                                            \
		__u32 place_, hash_ = number_hash((process) << 32 ^ (what) * 0x9e3779b97f4a7c15);                     \
		struct ofc_pair *pair_;                                                                               \
		OWNED_ROW(pair_, place_, rows, OFC_WAYS, (hash_ + nth) & (mask),                                      \
			  pair_->key == (process) && pair_->other == (what), claim(&pair_->claims), {                 \
				  begin;                                                                              \
				  pair_->other = (what);                                                              \
				  *(volatile __u64 *)&pair_->key = (process);                                         \
			  });                                                                                         \
		pair_ ? (__s64)place_ : -1;                                                                           \
	})

/* What is kept of a row until the wait is over: by then the agent may have given the row to others. */
static __always_inline __u64 ofc_mark_of(__u64 place, __u64 other)
{
	return other << 32 | place;
}

/* Keeps for which lock the current thread waits. */
static __always_inline void ofc_keep_lock(__u64 pid, __u64 address)
{
	__u64 process = bpf_get_current_pid_tgid() >> 32;
	struct ofc_stat *stat = row(&ofc_stats, 0);
	__s64 place;

	if (!stat)
		return;
	place = OFC_PAIR(&ofc_locks, ofc_lock_mask, process, address, process_name(pair_->comm));
	if (place < 0)
		ADD(stat->lockless, 1);
	else
		ofc_keep(&ofc_futexes, pid, ofc_mark_of(place, address), stat);
}

/* Adds a time to that of what the thread waited for. False: its row is another's now. */
static __always_inline bool ofc_count_pair(void *numbers, void *rows, __u64 process, __u64 pid, __u64 ns)
{
	struct ofc_pair *pair;
	__u64 number;

	if (!set_take(numbers, ofc_departure_mask, pid, &number))
		return true;
	pair = row(rows, (__u32)number);
	if (!pair || pair->key != process || (__u32)pair->other != number >> 32)
		return false;
	span_add(&pair->times, ns);
	return true;
}

static __always_inline void ofc_count_waker(__u64 process, __u64 pid, __u64 ns)
{
	struct ofc_stat *stat = row(&ofc_stats, 0);

	if (!ofc_count_pair(&ofc_wakings, &ofc_wakers, process, pid, ns) && stat)
		ADD(stat->wakerless, 1);
}

static __always_inline void ofc_count_lock(__u64 process, __u64 pid, __u64 ns)
{
	struct ofc_stat *stat = row(&ofc_stats, 0);

	if (!ofc_count_pair(&ofc_futexes, &ofc_locks, process, pid, ns) && stat)
		ADD(stat->lockless, 1);
}

/*
 * The system call of a task that is not on a CPU. Kernels with CONFIG_X86_FRED, from 6.9 on, leave room above the registers; those without
 * bpf_task_pt_regs have none.
 */
static __always_inline __u64 ofc_call(const bool raw, struct task_struct *task)
{
	if (GET(task, flags) & OFC_OF_KERNEL)
		return -1;
	if (!HAS_TASK_REGS)
		return syscall_number(true, (void *)(GET(task, stack) + STACK_SIZE - bpf_core_type_size(struct pt_regs)));
	return raw ? -1 : syscall_number(false, (void *)bpf_task_pt_regs(task));
}

/* Keeps a wait that is the longest of its epoch so far. */
static __always_inline void ofc_keep_longest(const bool raw, struct task_struct *task, __u32 reason, __u64 ns, __u64 now)
{
	struct ofc_stat *stat = row(&ofc_stats, 0);
	__u32 cpu = bpf_get_smp_processor_id();
	struct ofc_longest *r;

	if (!stat)
		return;
	r = row(&ofc_longest, (cpu * OFC_REASONS + reason) * 2 + (stat->epoch & 1));
	if (!r || likely(r->epoch == stat->epoch + 1 && r->ns >= ns))
		return;
	r->epoch = stat->epoch + 1;
	r->ns = ns;
	r->ended = now;
	r->pid = GET(task, tgid);
	bpf_core_read(r->comm, sizeof(r->comm), &task->comm);
	r->call = ofc_call(raw, task);
	/* Only of a typed task. */
	r->bytes = raw ? 0 : bpf_get_task_stack(task, r->stack, sizeof(r->stack), 0);
}

/* A task leaves its CPU; `state` is 0 where it stays runnable. Interrupts are off and the run queue is locked: nothing interleaves. */
static __always_inline void ofc_leaves(const bool raw, void *ctx, bool preempt, __u64 state, struct task_struct *task, __u64 now)
{
	struct ofc_row *r = cpu_row(&ofc_rows);
	__u64 pid = (__u32)GET(task, pid), *departure = NULL;
	struct ofc_counts *counts;
	bool displaced = false;
	__u64 lock = 0;
	__u32 reason;

	if (!r || !pid || (ofc_filter && !filter_wants(ofc_filter, GET(task, tgid))))
		return;
	/* The row of a thread that ends is about to be freed. */
	if (!(GET(task, flags) & OFC_EXITING)) {
		counts = OWN(counts_of_thread)();
		if (counts && r->new == pid) {
			counts->cells[2 * OFC_RUNQ] += r->queued;
			counts->cells[2 * OFC_RUNQ + 1]++;
		}
		r->new = 0;
		if (counts)
			departure = &counts->departure;
	}
	if (state & OFC_DEAD)
		return;
	reason = preempt || !state ? OFC_RUNQ : ofc_reason(raw, task, state, &lock);
	if (!departure)
		departure = set_number(&ofc_departures, ofc_departure_mask, pid, &displaced);
	if (displaced)
		r->displaced++;
	if (departure)
		*departure = now << 4 | reason;
	if (ofc_stack_mask && reason != OFC_RUNQ)
		ofc_keep_stack(ctx, pid);
	if (ofc_lock_mask && lock)
		ofc_keep_lock(pid, lock);
}

/* A task comes to a CPU after it has waited for one for so long; a wait below zero is not known. */
static __always_inline void ofc_arrives(const bool raw, struct task_struct *task, __s64 wait, __u64 now)
{
	const bool plain = !ofc_shared;
	struct ofc_row *r = cpu_row(&ofc_rows);
	__u64 pid = (__u32)GET(task, pid), number, gap, queued, blocked = 0;
	struct ofc_counts *counts;
	struct ofc_group *group;
	__u32 reason = OFC_RUNQ, place;
	bool departed;

	if (!r || (ofc_filter && !filter_wants(ofc_filter, GET(task, tgid))))
		return;
	queued = wait > 0 ? wait : 0;
	counts = OWN(known)((__u64)GET(task, tgid) << 32 | pid, &place) ? row(&offcpu_counts, place) : NULL;
	number = counts ? counts->departure : 0;
	if (number) {
		counts->departure = 0; /* never pairs with a later arrival */
		departed = true;
	} else {
		departed = set_take(&ofc_departures, ofc_departure_mask, pid, &number);
	}
	if (departed) {
		reason = number & 15;
		gap = now > number >> 4 ? now - (number >> 4) : 0;
		if (reason == OFC_RUNQ || queued > gap)
			queued = gap;
		blocked = gap - queued;
	}
	BOUND(reason, 15);
	/* The sum is last, as in FINE_COUNT. */
	r->waits[OFC_RUNQ].buckets[fine_bucket(queued)]++;
	r->waits[OFC_RUNQ].sum += queued;
	if (ofc_exemplars)
		ofc_keep_longest(raw, task, OFC_RUNQ, queued, now);
	if (reason != OFC_RUNQ) {
		if (ofc_exemplars)
			ofc_keep_longest(raw, task, reason, blocked, now);
		r->waits[reason].buckets[fine_bucket(blocked)]++;
		r->waits[reason].sum += blocked;
		if (ofc_stack_mask)
			ofc_count_stack(pid, blocked);
		if (ofc_waker_mask)
			ofc_count_waker(GET(task, tgid), pid, blocked);
		if (ofc_lock_mask && reason == OFC_LOCK)
			ofc_count_lock(GET(task, tgid), pid, blocked);
	}
	if (counts) {
		/* It has its row from a departure on. */
		if (!departed)
			r->unseen++;
		counts->cells[2 * OFC_RUNQ] += queued;
		counts->cells[2 * OFC_RUNQ + 1]++;
		if (reason != OFC_RUNQ) {
			counts->cells[2 * reason] += blocked;
			counts->cells[2 * reason + 1]++;
		}
	} else {
		r->new = pid;
		r->queued = queued;
	}
	if (!ofc_by_cgroup)
		return;
	group = place_row(&ofc_groups, &ofc_marks, ofc_mask, ofc_cpu_shift,
			   place_index(&ofc_owners, ofc_mask, GET(GET(GET(GET(task, cgroups), dfl_cgrp), kn), id)));
	if (!group)
		return;
	GROUP_SUM(group->cells[2 * OFC_RUNQ], queued);
	GROUP_SUM(group->cells[2 * OFC_RUNQ + 1], 1);
	if (reason != OFC_RUNQ) {
		GROUP_SUM(group->cells[2 * reason], blocked);
		GROUP_SUM(group->cells[2 * reason + 1], 1);
	}
}

/* Keeps who wakes a thread: where an interrupt does, the current process has no part in it. */
ON(sched_waking, struct task_struct *task)
{
	__u64 process = (__u32)GET(task, tgid), waker = in_interrupt() ? 0 : bpf_get_current_pid_tgid() >> 32;
	struct ofc_stat *stat = row(&ofc_stats, 0);
	__s64 place;

	if (!stat || !process || (ofc_filter && !filter_wants(ofc_filter, process)))
		return;
	if (ofc_waker_stacks && stat->run)
		ofc_keep_waker_stack(ctx, (__u32)GET(task, pid), !waker, stat);
	if (!ofc_waker_mask)
		return;
	place = OFC_PAIR(&ofc_wakers, ofc_waker_mask, process, waker, {
		BPF_CORE_READ_INTO((char(*)[16])pair_->comm, task, group_leader, comm);
		if (waker)
			process_name(pair_->other_comm);
	});
	if (place < 0)
		ADD(stat->wakerless, 1);
	else
		ofc_keep(&ofc_wakings, (__u32)GET(task, pid), ofc_mark_of(place, waker), stat);
}

static __always_inline void runqlat__sched_wakeup(const bool raw, void *ctx, struct task_struct *task);
static __always_inline void runqlat__sched_wakeup_new(const bool raw, void *ctx, struct task_struct *task);
static __always_inline void runqlat__sched_switch(const bool raw, void *ctx, bool preempt, struct task_struct *prev, struct task_struct *next);

ON(sched_wakeup, struct task_struct *task)
{
	if (!runqlat_on && !cgroup_runq_on)
		runqlat__sched_wakeup(raw, ctx, task);
}

ON(sched_wakeup_new, struct task_struct *task)
{
	if (!runqlat_on && !cgroup_runq_on)
		runqlat__sched_wakeup_new(raw, ctx, task);
}

ON(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (!runqlat_on && !cgroup_runq_on)
		runqlat__sched_switch(raw, ctx, preempt, prev, next);
}
