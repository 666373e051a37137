/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Samples of what the CPUs run: the stacks as addresses, one ring record each; the agent counts and names them. */
#include "shared/probe.bpf.h"

#define FRAMES 127 /* PERF_MAX_STACK_DEPTH */
#define USER_STACK 256 /* BPF_F_USER_STACK */

struct prof_sample {
	__u32 pid;
	__s32 kernel_bytes; /* negative: no kernel stack */
	__s32 user_bytes;
	__u32 pad;
	__u8 comm[16];
	__u64 kernel[FRAMES];
	__u64 user[FRAMES];
};

struct prof_stat {
	__u64 process; /* set by the agent: only this process; 0: all */
	__u64 dropped; /* the ring was full */
	__u64 pad[6];
};

RING(prof_samples);
ROWS(prof_stats, struct prof_stat);
EXPORT(struct prof_sample);

const volatile bool prof_no_kernel;
const volatile bool prof_no_user;
const volatile __u64 prof_wake_at;

ON_SAMPLE(profile)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct prof_stat *stat = row(&prof_stats, 0);
	struct prof_sample *sample;

	if (!(__u32)id || !stat) /* the idle task */
		return;
	if (stat->process && stat->process != id >> 32)
		return;
	sample = bpf_ringbuf_reserve(&prof_samples, sizeof(*sample), 0);
	if (!sample) {
		ADD(stat->dropped, 1);
		return;
	}
	sample->pid = id >> 32;
	bpf_get_current_comm(sample->comm, sizeof(sample->comm));
	sample->kernel_bytes = prof_no_kernel ? 0 : bpf_get_stack(ctx, sample->kernel, sizeof(sample->kernel), 0);
	sample->user_bytes = prof_no_user ? 0 : bpf_get_stack(ctx, sample->user, sizeof(sample->user), USER_STACK);
	ring_submit(&prof_samples, sample, prof_wake_at);
}
