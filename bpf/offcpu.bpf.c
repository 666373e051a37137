/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Time of tasks off a CPU, by reason. Where a task leaves a CPU, it says why: by its state, the system call that it is in, and the
 * arguments of that. Where it comes back, the time since then is divided at the moment when it became runnable: before that it waited
 * for the reason, after that for a CPU. The times are those of runqlat.bpf.c, whose program runs for this one where that module is off.
 */
#include "shared/cgroups.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/groups.bpf.h"
#include "shared/set_table.bpf.h"
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
	struct fine_hist waits[OFC_REASONS];
	__u64 pad[5];
};

/* A cgroup's tasks, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct ofc_group {
	__u64 used; /* whether a program has counted in it */
	__u64 cells[2 * OFC_REASONS]; /* nanoseconds and number of each reason */
	__u64 pad[7];
};

struct ofc_counts {
	__u64 cells[2 * OFC_REASONS];
};

ROWS(ofc_rows, struct ofc_row);
ROWS(ofc_owners, struct cgroup_owner);
ROWS(ofc_groups, struct ofc_group);
ROWS(ofc_marks, struct mark); /* one for each row of a group */
PRIVATE(ofc_departures, struct set_numbers); /* of threads by id: the time, and the reason in the lowest four bits */

const volatile __u64 ofc_filter;
const volatile bool ofc_by_cgroup;
const volatile __u32 ofc_departure_mask;
const volatile __u32 ofc_mask; /* places of owners, less 1 */
const volatile __u32 ofc_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool ofc_shared; /* it is more than one */
const volatile __u8 ofc_calls[OFC_CALLS]; /* enum ofc_reason by number of the system call */

#define COUNTS struct ofc_counts
#define STEM offcpu
#include "shared/by_process.bpf.h"

enum bpf_func_id___regs {
	BPF_FUNC_task_pt_regs___regs = 175,
};

/* Whether the registers of the current task are to be had typed: 5.15 and later. */
#define HAS_TASK_REGS bpf_core_enum_value_exists(enum bpf_func_id___regs, BPF_FUNC_task_pt_regs___regs)
#define OFC_STACK 16384 /* THREAD_SIZE, of x86-64 and of arm64 with pages of 4 KB */

/* Why the current task waits that reads from a file, or writes to it. */
static __always_inline __u32 ofc_of_file(__u64 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd), *file = NULL;
	struct inode *inode;
	__u32 type, major;

	if ((__u32)fd >= BPF_CORE_READ(table, max_fds))
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

/* Why the current task waits, by its system call. */
static __always_inline __u32 ofc_of_call(const bool raw, struct pt_regs *regs, bool waits_for_disk, bool uninterruptible)
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
		if (operation == OFC_FUTEX_WAIT || operation == OFC_FUTEX_LOCK_PI || operation == OFC_FUTEX_LOCK_PI2)
			return OFC_LOCK;
		return OFC_COND;
	}
	if (reason == OFC_BY_FILE)
		return uninterruptible ? OFC_FILE : ofc_of_file(SYSCALL_ARG0(regs, false));
	return reason;
}

/* Why the current task, in this state, leaves its CPU. */
static __always_inline __u32 ofc_reason(const bool raw, struct task_struct *task, __u64 state)
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
		return ofc_of_call(false, regs, waits_for_disk, uninterruptible);
	}
	regs = (void *)(GET(task, stack) + OFC_STACK - bpf_core_type_size(struct pt_regs));
	return ofc_of_call(true, regs, waits_for_disk, uninterruptible);
}

/* A task leaves its CPU; `state` is 0 where it stays runnable. Interrupts are off and the run queue is locked: nothing interleaves. */
static __always_inline void ofc_leaves(const bool raw, bool preempt, __u64 state, struct task_struct *task, __u64 now)
{
	struct ofc_row *r = cpu_row(&ofc_rows);
	__u64 pid = (__u32)GET(task, pid), *since;
	struct ofc_counts *counts;
	bool displaced = false;
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
	}
	if (state & OFC_DEAD)
		return;
	reason = preempt || !state ? OFC_RUNQ : ofc_reason(raw, task, state);
	since = set_number(&ofc_departures, ofc_departure_mask, pid, &displaced);
	if (displaced)
		r->displaced++;
	if (since)
		*since = now << 4 | reason;
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

	if (!r || (ofc_filter && !filter_wants(ofc_filter, GET(task, tgid))))
		return;
	queued = wait > 0 ? wait : 0;
	if (set_take(&ofc_departures, ofc_departure_mask, pid, &number)) {
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
	if (reason != OFC_RUNQ) {
		r->waits[reason].buckets[fine_bucket(blocked)]++;
		r->waits[reason].sum += blocked;
	}
	counts = OWN(known)((__u64)GET(task, tgid) << 32 | pid, &place) ? row(&offcpu_counts, place) : NULL;
	if (counts) {
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
	group = cgroup_row(&ofc_groups, &ofc_marks, ofc_mask, ofc_cpu_shift,
			   cgroup_index(&ofc_owners, ofc_mask, GET(GET(GET(GET(task, cgroups), dfl_cgrp), kn), id)));
	if (!group)
		return;
	GROUP_SUM(group->cells[2 * OFC_RUNQ], queued);
	GROUP_SUM(group->cells[2 * OFC_RUNQ + 1], 1);
	if (reason != OFC_RUNQ) {
		GROUP_SUM(group->cells[2 * reason], blocked);
		GROUP_SUM(group->cells[2 * reason + 1], 1);
	}
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
