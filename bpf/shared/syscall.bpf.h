/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What system call the current thread is in, and by which of the kernel's entries it came. */
#pragma once

#include "probe.bpf.h"

#define MAX_ERRNO 4095 /* include/linux/err.h */

#define NO_CALL 65535 /* the number of a call that an architecture has not */

/* the same in several tables */
#define NR_openat2 437
#define NR_compat_open 5
#define NR_compat_creat 8
#define NR_compat_execve 11

enum bpf_func_id___regs {
	BPF_FUNC_task_pt_regs___regs = 175,
};

/* Whether the registers of the current task are to be had typed: 5.15 and later. */
#define HAS_TASK_REGS bpf_core_enum_value_exists(enum bpf_func_id___regs, BPF_FUNC_task_pt_regs___regs)
#define STACK_SIZE 16384 /* THREAD_SIZE, of x86-64 and of arm64 with pages of 4 KB */

/* The registers with which the current task entered the kernel, for probe reads. */
static __always_inline struct pt_regs *current_regs(void)
{
	struct task_struct *task;

	if (HAS_TASK_REGS)
		return (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	task = (void *)bpf_get_current_task();
	return (void *)(BPF_CORE_READ(task, stack) + STACK_SIZE - bpf_core_type_size(struct pt_regs));
}

#if defined(__TARGET_ARCH_x86)
#define NR_open 2
#define NR_rt_sigreturn 15
#define NR_execve 59
#define NR_exit 60
#define NR_creat 85
#define NR_exit_group 231
#define NR_openat 257
#define NR_execveat 322
#define NR_compat_openat 295
#define NR_compat_execveat 358
#define TS_COMPAT 2 /* arch/x86/include/asm/thread_info.h */

/* Entered through the 32-bit entry: the number is one of another table. */
static __always_inline bool syscall_is_compat(const bool raw, struct pt_regs *regs)
{
	struct task_struct *task;
	__u32 status;

	/* Typed from 5.11 on, which saves a probe read. */
	if (HAS_TYPED_TASK) {
		task = bpf_get_current_task_btf();
		status = task->thread_info.status;
	} else {
		task = (void *)bpf_get_current_task();
		status = BPF_CORE_READ(task, thread_info.status);
	}
	return status & TS_COMPAT;
}

static __always_inline __s64 syscall_number(const bool raw, struct pt_regs *regs)
{
	return (__s64)GET(regs, orig_ax);
}

/* The arguments, as they still are when the call returns. */
#define SYSCALL_ARG0(regs, compat) ((compat) ? GET(regs, bx) : GET(regs, di))
#define SYSCALL_ARG1(regs, compat) ((compat) ? GET(regs, cx) : GET(regs, si))
#define SYSCALL_ARG2(regs, compat) GET(regs, dx)
#define SYSCALL_ARG3(regs) GET(regs, r10) /* of calls of 64 bits, like the next */
#define SYSCALL_ARG4(regs) GET(regs, r8)

#elif defined(__TARGET_ARCH_arm64)
#define NR_open NO_CALL
#define NR_creat NO_CALL
#define NR_openat 56
#define NR_rt_sigreturn 139
#define NR_execve 221
#define NR_exit 93
#define NR_exit_group 94
#define NR_execveat 281
#define NR_compat_openat 322
#define NR_compat_execveat 387
#define PSR_MODE32_BIT 0x10 /* arch/arm64/include/uapi/asm/ptrace.h */

static __always_inline bool syscall_is_compat(const bool raw, struct pt_regs *regs)
{
	return GET(regs, user_regs.pstate) & PSR_MODE32_BIT;
}

static __always_inline __s64 syscall_number(const bool raw, struct pt_regs *regs)
{
	return GET(regs, syscallno);
}

#define SYSCALL_ARG0(regs, compat) GET(regs, orig_x0)
#define SYSCALL_ARG1(regs, compat) GET(regs, user_regs.regs[1])
#define SYSCALL_ARG2(regs, compat) GET(regs, user_regs.regs[2])
#define SYSCALL_ARG3(regs) GET(regs, user_regs.regs[3])
#define SYSCALL_ARG4(regs) GET(regs, user_regs.regs[4])
#endif
