// SPDX-License-Identifier: GPL-2.0-or-later
// Where in the kernel do commands wait, how often, and how long? A thread that is preempted does not wait: it could go on.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "add.bpf.h"

#define FRAMES 16

struct task_struct {
	int pid;
	unsigned int __state;
} __attribute__((preserve_access_index));

// The same before 5.14; what follows ___ is not part of the name.
struct task_struct___before {
	long state;
} __attribute__((preserve_access_index));

struct wait_key {
	char comm[16];
	__u64 stack[FRAMES];
};

struct wait {
	__u64 begin;
	struct wait_key key;
};

// Threads that wait.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct wait);
} waiting SEC(".maps");

#define BY_STACK(NAME)                               \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_LRU_HASH); \
		__uint(max_entries, 4096);           \
		__type(key, struct wait_key);        \
		__type(value, __u64);                \
	} NAME SEC(".maps")

BY_STACK(waits_total);
BY_STACK(wait_nanoseconds_total);

// What a thread waits for, or 0 for one that could go on.
static __always_inline long state_of(struct task_struct *task)
{
	struct task_struct___before *before = (void *)task;

	return bpf_core_field_exists(before->state) ? BPF_CORE_READ(before, state) : BPF_CORE_READ(task, __state);
}

static __always_inline void begin_to_wait(void *ctx)
{
	__u32 thread = bpf_get_current_pid_tgid();
	struct wait wait = {};

	// All CPUs idle as thread 0.
	if (!thread)
		return;
	wait.begin = bpf_ktime_get_ns();
	bpf_get_current_comm(wait.key.comm, sizeof(wait.key.comm));
	bpf_get_stack(ctx, wait.key.stack, sizeof(wait.key.stack), 0);
	bpf_map_update_elem(&waiting, &thread, &wait, BPF_ANY);
	add(&waits_total, &wait.key, 1);
}

static __always_inline void end_to_wait(struct task_struct *task)
{
	__u32 thread = BPF_CORE_READ(task, pid);
	struct wait *wait = bpf_map_lookup_elem(&waiting, &thread);
	struct wait_key key;

	if (!wait)
		return;
	key = wait->key;
	add(&wait_nanoseconds_total, &key, bpf_ktime_get_ns() - wait->begin);
	bpf_map_delete_elem(&waiting, &thread);
}

// Arguments: whether it is preempted, the thread that leaves the CPU, the one that comes.
SEC("raw_tp/sched_switch")
int switched(struct bpf_raw_tracepoint_args *ctx)
{
	if (!ctx->args[0] && state_of((struct task_struct *)ctx->args[1]))
		begin_to_wait(ctx);
	end_to_wait((struct task_struct *)ctx->args[2]);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
