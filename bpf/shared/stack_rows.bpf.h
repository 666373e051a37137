/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Rows by the stack of the current thread, the kernel's part and the user's (src/modules/shared/stacks.rs has names for the frames). A
 * row is claimed as in owned.bpf.h. The agent clears the rows where a run begins, and no program has one in hand then.
 */
#pragma once

#include "owned.bpf.h"

#define STACK_FRAMES 127 /* PERF_MAX_STACK_DEPTH */
#define STACK_USER 256	 /* BPF_F_USER_STACK */
#define STACK_WAYS 8

struct stack_row {
	__u64 key; /* of all below but the time; 0: free */
	__u64 claims;
	__u64 ns;
	__u64 pid;
	__u64 comm[2]; /* of the thread */
	__u64 kernel_bytes; /* what bpf_get_stack returned: below zero, an error number */
	__u64 user_bytes;
	__u64 kernel[STACK_FRAMES];
	__u64 user[STACK_FRAMES];
	__u64 pad[2];
};

static __always_inline void stack_take(void *ctx, struct stack_row *r)
{
	r->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(r->comm, sizeof(r->comm));
	r->kernel_bytes = bpf_get_stack(ctx, r->kernel, sizeof(r->kernel), 0);
	r->user_bytes = bpf_get_stack(ctx, r->user, sizeof(r->user), STACK_USER);
}

/* Frames end with 0. A loop: unrolled it is 127 times the code. */
static __always_inline __u64 stack_hash(__u64 hash, const __u64 *frames)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < STACK_FRAMES; i++) {
		__u64 frame = frames[i];

		if (!frame)
			break;
		hash = (hash ^ frame) * 0xff51afd7ed558ccd;
		hash ^= hash >> 32;
	}
	return hash;
}

/* The number of the row of the current thread's stack; negative: there is none left. `scratch` is a row for this CPU, with interrupts off. */
static __always_inline __s64 stack_place(void *ctx, void *rows, __u32 mask, struct stack_row *scratch)
{
	struct stack_row *r;
	__u32 place;
	__u64 key;

	stack_take(ctx, scratch);
	key = (scratch->pid ^ scratch->comm[0]) * 0x9e3779b97f4a7c15 ^ scratch->comm[1];
	key = stack_hash(stack_hash(key, scratch->kernel), scratch->user) | 1;
	OWNED_ROW(r, place, rows, STACK_WAYS, ((key >> 40) + nth) & mask, r->key == key, claim(&r->claims), {
		stack_take(ctx, r);
		*(volatile __u64 *)&r->key = key;
	});
	return r ? (__s64)place : -1;
}
