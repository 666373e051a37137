/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Processes that end. A process ends with its last thread, which need not be its main thread; its status is the one that its parent
 * waits for (wait_task_zombie in kernel/exit.c).
 */
#include "shared/places.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/groups.bpf.h"
#include "shared/latest.bpf.h"

#define EXIT_SIGNALS 64
#define SIGNAL_GROUP_EXIT 4
#define COREDUMPED 0x80

/* signals that end no process by default: SIGCHLD, SIGCONT, SIGURG, SIGWINCH */
#define HARMLESS (1ULL << 17 | 1ULL << 18 | 1ULL << 23 | 1ULL << 28)

struct exit_event {
	struct event_head head;
	__u64 age;
	__u64 cpu;
	__u32 pid;
	__u32 tid;
	__u32 ppid;
	__u32 uid;
	__u32 killer;
	__u32 status; /* as wait4() has it */
	__u8 comm[16];
	__u8 killer_comm[16];
};

struct exit_row {
	__u64 all;
	__u64 failed;
	__u64 signalled;
	__u64 coredumped;
	__u64 threads;
	__u64 pad[3];
	__u64 signals[EXIT_SIGNALS]; /* by number, less 1 */
};

/* The processes of a cgroup that ended on one CPU or several. */
struct exit_group {
	__u64 used; /* whether a program has counted in it */
	__u64 all;
	__u64 failed;
	__u64 signalled;
	__u64 cpu;
	__u64 pad[3];
};

/* The last signal that a process got from another, or itself. */
struct exit_signal {
	__u64 to; /* process << 32 | signal */
	__u32 from;
	__u32 pad;
	__u64 comm[2];
};

/* The process that was last counted of those with the same lower bits of their ids. */
struct exit_counted {
	__u64 pid;
	__u64 born;
};

#define EXIT_PLACES 1024

LATEST(exit)
ROWS(exit_rows, struct exit_row);
ROWS(exit_owners, struct place_owner);
ROWS(exit_groups, struct exit_group);
ROWS(exit_marks, struct mark);
PRIVATE(exit_signals, struct exit_signal);
PRIVATE(exit_counted, struct exit_counted);
EXPORT(struct exit_event);

const volatile __u64 exit_filter;
const volatile bool exit_failed; /* no rows of processes that end with 0 */
const volatile bool exit_by_cgroup;
const volatile __u32 exit_mask; /* places of owners, less 1 */
const volatile __u32 exit_shift; /* 1 << this many CPUs share their rows by cgroup */
const volatile bool exit_shared; /* it is more than one */

FEATURE(group_dead, bpf_core_type_exists(struct trace_event_raw_sched_process_exit))

/*
 * Whether the process ends. Before 6.16 two threads that end at once may both see that none is left: it ends with the first of them to
 * come here.
 */
static __always_inline bool exit_is_last(const bool raw, const __u64 *ctx, struct signal_struct *signal, __u32 pid, __u64 born)
{
	struct exit_counted *counted;

	if (feature__group_dead())
		return ctx[1] & 1;
	if (GET(signal, live.counter))
		return false;
	counted = row(&exit_counted, pid & (EXIT_PLACES - 1));
	if (!counted || (counted->pid == pid && counted->born == born))
		return false;
	counted->born = born;
	counted->pid = pid;
	return true;
}

static __always_inline void exit_group(__u32 status, __u64 cpu)
{
	const bool plain = group_plain(exit_shared);
	__u32 index = place_index(&exit_owners, exit_mask, bpf_get_current_cgroup_id());
	struct exit_group *group = place_row(&exit_groups, &exit_marks, exit_mask, exit_shift, index);

	if (!group)
		return;
	GROUP_SUM(group->all, 1);
	if (status & 0x7f)
		GROUP_SUM(group->signalled, 1);
	else if (status)
		GROUP_SUM(group->failed, 1);
	GROUP_SUM(group->cpu, cpu);
}

static __always_inline void exit_count(struct exit_row *r, __u32 status)
{
	__u64 signal = (status & 0x7f) - 1;

	COUNT(r->all);
	if (!(status & 0x7f)) {
		if (status)
			COUNT(r->failed);
		return;
	}
	COUNT(r->signalled);
	if (status & COREDUMPED)
		COUNT(r->coredumped);
	if (signal < EXIT_SIGNALS) {
		BOUND(signal, 63);
		COUNT(r->signals[signal]);
	}
}

ON(sched_process_exit, struct task_struct *task)
{
	struct task_struct *leader = GET(task, group_leader);
	struct signal_struct *signal = GET(task, signal);
	__u64 id = bpf_get_current_pid_tgid(), born = GET(leader, start_time), cpu;
	struct exit_row *r = cpu_row(&exit_rows);
	struct exit_signal *sent;
	struct exit_event *e;
	__u32 pid = id >> 32, ppid, status;

	if (!filter_wants(exit_filter, pid))
		return;
	if (r)
		COUNT(r->threads);
	if (!exit_is_last(raw, ctx, signal, pid, born))
		return;
	status = GET(signal, flags) & SIGNAL_GROUP_EXIT ? GET(signal, group_exit_code) : GET(leader, exit_code);
	/* That of threads which were reaped, of the main thread, which is reaped last, and of this one. */
	cpu = GET(signal, sum_sched_runtime) + GET(leader, se.sum_exec_runtime);
	if (pid != (__u32)id)
		cpu += GET(task, se.sum_exec_runtime);
	if (r)
		exit_count(r, status);
	if (exit_by_cgroup)
		exit_group(status, cpu);
	if (exit_failed && !status)
		return;
	ppid = GET(GET(leader, real_parent), tgid);
	/* It takes its parent's share: who starts many processes has many that end. */
	e = EVENT(exit, struct exit_event, ppid);
	if (!e)
		return;
	e->age = e->head.ns - born;
	e->cpu = cpu;
	e->pid = pid;
	e->tid = id;
	e->ppid = ppid;
	e->uid = bpf_get_current_uid_gid();
	e->killer = 0;
	e->status = status;
	process_name((__u64 *)e->comm);
	e->killer_comm[0] = 0;
	sent = status & 0x7f ? row(&exit_signals, pid & (EXIT_PLACES - 1)) : NULL;
	if (sent && sent->to == ((__u64)pid << 32 | (status & 0x7f))) {
		e->killer = sent->from;
		__builtin_memcpy(e->killer_comm, sent->comm, sizeof(sent->comm));
	}
	exit_done(e);
}

/* Who sends a signal. Those of the kernel have no sender; 0 in place of their details is a process's. */
ON(signal_generate, int sig, struct kernel_siginfo *info, struct task_struct *task, int group, int result)
{
	struct exit_signal *sent;
	int code = 0;
	__u32 to;

	if (result || (sig < 64 && HARMLESS >> sig & 1))
		return;
	if ((__u64)info == 1)
		code = 1;
	else if (info)
		bpf_core_read(&code, sizeof(code), &info->si_code);
	to = GET(task, tgid);
	sent = row(&exit_signals, to & (EXIT_PLACES - 1));
	if (!sent)
		return;
	sent->to = 0;
	sent->from = code > 0 ? 0 : bpf_get_current_pid_tgid() >> 32;
	sent->comm[0] = sent->comm[1] = 0;
	if (code <= 0)
		process_name(sent->comm);
	sent->to = (__u64)to << 32 | (__u32)sig;
}
