/* SPDX-License-Identifier: GPL-2.0-or-later */
/* In which context a program runs. */
#pragma once

#include "probe.bpf.h"

#define IN_INTERRUPT 0xff0100 /* NMI_MASK, HARDIRQ_MASK, and of the soft interrupts one that runs: SOFTIRQ_OFFSET (include/linux/preempt.h) */

#ifdef __TARGET_ARCH_x86
struct pcpu_hot {
	int preempt_count;
} __attribute__((preserve_access_index));

/*
 * Bytes from a CPU's run queue to its variable that has the count (src/host/per_cpu.rs): __preempt_count, or pcpu_hot from 6.2 to
 * 6.14. bpf_this_cpu_ptr would need the kernel's symbols of variables (CONFIG_KALLSYMS_ALL).
 */
const volatile __u64 preempt_count_at;

static __always_inline __u64 preempt_count(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	char *at = (char *)BPF_CORE_READ(task, se.cfs_rq, rq) + preempt_count_at;
	__u32 count = 0;

	if (bpf_core_type_exists(struct pcpu_hot))
		at += bpf_core_field_offset(struct pcpu_hot, preempt_count);
	bpf_probe_read_kernel(&count, sizeof(count), at);
	return count;
}
#else
struct thread_info___count {
	__u64 preempt_count;
} __attribute__((preserve_access_index));

/* The first member of a task (CONFIG_THREAD_INFO_IN_TASK). */
static __always_inline __u64 preempt_count(void)
{
	struct thread_info___count *info = (void *)bpf_get_current_task();

	return (__u32)BPF_CORE_READ(info, preempt_count);
}
#endif

static __always_inline bool in_interrupt(void)
{
	return preempt_count() & IN_INTERRUPT;
}
