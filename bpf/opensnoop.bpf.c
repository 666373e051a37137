/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Opens of files by open, openat, openat2 and creat. Everything is known when the call returns: its arguments are still there, and the
 * page with the name is in memory, since the kernel has just read it.
 */
#include "shared/filter.bpf.h"
#include "shared/latest.bpf.h"
#include "shared/syscall.bpf.h"

#define NAME_SIZE 256
#define CREAT_FLAGS 01101 /* O_WRONLY | O_CREAT | O_TRUNC */

/* The kernel sets it in calls of programs of 64 bits. */
#if defined(__TARGET_ARCH_arm64)
#define O_LARGEFILE 0400000
#else
#define O_LARGEFILE 0100000
#endif

struct open_event {
	struct event_head head;
	__u32 pid;
	__u32 uid;
	__s32 ret; /* descriptor, or a negative error */
	__u32 flags;
	__u8 comm[16];
	__u8 name[NAME_SIZE];
};

struct open_row {
	__u64 all;
	__u64 failed;
	__u64 pad[6];
};

/* Opens of a thread. */
struct open_counts {
	__u64 all;
	__u64 failed;
};

LATEST(open)
ROWS(open_rows, struct open_row);
EXPORT(struct open_event);

const volatile __u64 open_filter;
const volatile bool open_shown;  /* opens have rows */
const volatile bool open_failed; /* opens that succeed have none */
const volatile bool open_by_uid; /* only those of open_uid count */
const volatile __u32 open_uid;

#define COUNTS struct open_counts
#define STEM open
#include "shared/by_process.bpf.h"

static __always_inline bool open_wanted(void)
{
	return filter_wants_current(open_filter) && (!open_by_uid || (__u32)bpf_get_current_uid_gid() == open_uid);
}

static __always_inline void open_show(__u64 name, __u64 flags, int ret)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct open_event *e = EVENT(open, struct open_event, pid);

	if (!e)
		return;
	e->pid = pid;
	e->uid = bpf_get_current_uid_gid();
	e->ret = ret;
	e->flags = flags & ~O_LARGEFILE;
	process_name((__u64 *)e->comm);
	if (bpf_probe_read_user_str(e->name, NAME_SIZE, (void *)name) < 0)
		e->name[0] = 0;
	open_done(e);
}

static __always_inline void open_count(__u64 name, __u64 flags, int ret)
{
	struct open_row *r = cpu_row(&open_rows);
	struct open_counts *counts;

	if (r) {
		COUNT(r->all);
		if (ret < 0)
			COUNT(r->failed);
	}
	counts = OWN(counts_of_thread)();
	if (counts) {
		counts->all++;
		if (ret < 0)
			counts->failed++;
	}
	if (open_shown && (ret < 0 || !open_failed))
		open_show(name, flags, ret);
}

/* By fexit: a kretprobe loses calls that are preempted or block, where more are in the function than it has places for. */
ON_RETURN(do_sys_openat2, 3, int ret)
{
	__u64 *arguments = ctx;
	struct open_how *how;

	if (raw || !open_wanted())
		return;
	how = (void *)arguments[2];
	open_count(arguments[1], how->flags, ret);
}

/* Where functions cannot be hooked. */
ON(sys_exit___opens, struct pt_regs *regs, long ret)
{
	__s64 number = syscall_number(raw, regs);
	__u64 name, flags = CREAT_FLAGS;
	bool compat, at;

	if (number != NR_open && number != NR_creat && number != NR_openat && number != NR_openat2 && number != NR_compat_open &&
	    number != NR_compat_creat && number != NR_compat_openat)
		return;
	compat = syscall_is_compat(raw, regs);
	if (number == (compat ? NR_compat_openat : NR_openat) || number == NR_openat2)
		at = true;
	else if (number == (compat ? NR_compat_open : NR_open) || number == (compat ? NR_compat_creat : NR_creat))
		at = false;
	else
		return;
	if (!open_wanted())
		return;
	name = at ? SYSCALL_ARG1(regs, compat) : SYSCALL_ARG0(regs, compat);
	if (number == NR_openat2) {
		__u64 how = SYSCALL_ARG2(regs, compat);

		flags = 0;
		bpf_probe_read_user(&flags, sizeof(flags), (void *)how);
	} else if (at || number == (compat ? NR_compat_open : NR_open)) {
		flags = at ? SYSCALL_ARG2(regs, compat) : SYSCALL_ARG1(regs, compat);
	}
	open_count(name, flags, ret);
}
