/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Each exec as one ring record. When sched_process_exec fires the new image is in place and its arguments are one block of
 * its memory. An exec that failed left the caller's registers as they were: they are followed at the return of the call.
 */
#include "shared/latest.bpf.h"
#include "shared/syscall.bpf.h"

#define PATH_SIZE 256
#define FEW_ARGS 256 /* bytes: most execs; a small record keeps the ring from filling up */
#define MANY_ARGS 4096
#define FAILED_ARGS 1024 /* failures come in bursts, one for each directory of a search path */
#define ARG_SIZE 256
#define ARG_COUNT 32

struct exec_event {
	struct event_head head;
	__u32 pid;
	__u32 ppid;
	__s32 ret;
	__u32 length;      /* bytes of arguments behind this head, each ended by a NUL */
	__u32 interpreted; /* an interpreter and its arguments precede the path among the arguments */
	__u32 cut;         /* there are more arguments than these */
	__u32 uid;
	__u32 pad;
	__u8 comm[16];
	__u8 path[PATH_SIZE];
};

struct few_event {
	struct exec_event of;
	char args[FEW_ARGS];
};

struct many_event {
	struct exec_event of;
	char args[MANY_ARGS];
};

struct failed_event {
	struct exec_event of;
	char args[FAILED_ARGS];
};

LATEST(exec)
EXPORT(struct exec_event);

const volatile bool snoop_failed;

/* The process that runs the current one. */
static __always_inline __u32 snoop_parent(void)
{
	struct task_struct *task;

	if (HAS_TYPED_TASK)
		return bpf_get_current_task_btf()->real_parent->tgid;
	task = (void *)bpf_get_current_task();
	return BPF_CORE_READ(task, real_parent, tgid);
}

/* Room for a record. Rows are the latest execs, whoever's they are, as in the Python agent: they are all one owner's. */
#define SNOOP(type) EVENT_OF(exec, type, 0, bpf_get_current_pid_tgid() >> 32)

/* What success and failure have in common. */
static __always_inline void snoop_head(struct exec_event *e, __s32 ret)
{
	e->pid = bpf_get_current_pid_tgid() >> 32;
	e->ppid = snoop_parent();
	e->uid = bpf_get_current_uid_gid();
	e->ret = ret;
	bpf_get_current_comm(e->comm, sizeof(e->comm));
}

static __always_inline void snoop_exec(const bool raw, struct exec_event *e, struct linux_binprm *bprm)
{
	const char *path = GET(bprm, filename);

	snoop_head(e, 0);
	e->interpreted = GET(bprm, interp) != path;
	e->path[0] = 0;
	bpf_probe_read_kernel_str(e->path, PATH_SIZE, path);
}

ON(sched_process_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	struct mm_struct *mm = GET(task, mm);
	unsigned long start = GET(mm, arg_start);
	__u64 length = GET(mm, arg_end) - start;

	if (length < FEW_ARGS) {
		struct few_event *few = SNOOP(struct few_event);

		if (!few)
			return;
		snoop_exec(raw, &few->of, bprm);
		BOUND(length, 255);
		few->of.cut = 0;
		few->of.length = bpf_probe_read_user(few->args, length, (void *)start) ? 0 : length;
		exec_done(few);
	} else {
		struct many_event *many = SNOOP(struct many_event);

		if (!many)
			return;
		snoop_exec(raw, &many->of, bprm);
		many->of.cut = length > MANY_ARGS - 1;
		if (length > MANY_ARGS - 1)
			length = MANY_ARGS - 1;
		BOUND(length, 4095);
		many->of.length = bpf_probe_read_user(many->args, length, (void *)start) ? 0 : length;
		exec_done(many);
	}
}

/* The arguments of a failed exec: an array of pointers, as wide as those of the caller. */
static __always_inline void snoop_arguments(struct failed_event *failed, __u64 argv, __u32 width)
{
	__u64 at = 0, pointer;
	__s64 n;

	failed->of.cut = 1;
	for (int i = 0; i < ARG_COUNT && at <= FAILED_ARGS - ARG_SIZE; i++, argv += width) {
		pointer = 0;
		BOUND(width, 15);
		if (bpf_probe_read_user(&pointer, width > 8 ? 8 : width, (void *)argv) || !pointer) {
			failed->of.cut = 0;
			break;
		}
		n = bpf_probe_read_user_str(failed->args + at, ARG_SIZE, (void *)pointer);
		if (n < 0)
			break;
		at += n ? n : 1; /* older kernels take the NUL of an empty string for nothing */
	}
	failed->of.length = at;
}

ON(sys_exit, struct pt_regs *regs, long ret)
{
	bool compat, at;
	__u64 path, argv;
	__s64 number;
	struct failed_event *failed;

	if (!snoop_failed || ret >= 0 || ret < -MAX_ERRNO)
		return;
	number = syscall_number(raw, regs);
	if (number != NR_execve && number != NR_execveat && number != NR_compat_execve && number != NR_compat_execveat)
		return;
	compat = syscall_is_compat(raw, regs);
	if (number != (compat ? NR_compat_execve : NR_execve) && number != (compat ? NR_compat_execveat : NR_execveat))
		return;
	at = number == (compat ? NR_compat_execveat : NR_execveat);
	path = at ? SYSCALL_ARG1(regs, compat) : SYSCALL_ARG0(regs, compat);
	argv = at ? SYSCALL_ARG2(regs, compat) : SYSCALL_ARG1(regs, compat);

	failed = SNOOP(struct failed_event);
	if (!failed)
		return;
	snoop_head(&failed->of, ret);
	failed->of.interpreted = 0;
	failed->of.path[0] = 0;
	bpf_probe_read_user_str(failed->of.path, PATH_SIZE, (void *)path);
	snoop_arguments(failed, argv, compat ? 4 : 8);
	exec_done(failed);
}
