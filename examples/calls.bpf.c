// SPDX-License-Identifier: GPL-2.0-or-later
// System calls by command: how many of each, and how long they took. docs/programs.md explains it line by line.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "add.bpf.h"

#define COMM 16
#define MAX_BUCKET 26

struct call {
	__u64 begin;
	__u64 number;
};

struct call_key {
	char comm[COMM];
	__u64 number;
};

struct duration_key {
	char comm[COMM];
	__u32 bucket;
};

// Calls that have not returned, by thread.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct call);
} begun SEC(".maps");

// A counter: the map has the metric's name, its key is the labels, its value 8 bytes.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct call_key);
	__type(value, __u64);
} calls_total SEC(".maps");

// A histogram: the last part of the key is the bucket. The key above the last bucket is the sum.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct duration_key);
	__type(value, __u64);
} call_duration_seconds SEC(".maps");

SEC("raw_tp/sys_enter")
int call_begins(struct bpf_raw_tracepoint_args *ctx)
{
	struct call call = { .begin = bpf_ktime_get_ns(), .number = ctx->args[1] };
	__u32 thread = bpf_get_current_pid_tgid();

	bpf_map_update_elem(&begun, &thread, &call, BPF_ANY);
	return 0;
}

SEC("raw_tp/sys_exit")
int call_ends(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 thread = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&begun, &thread);
	struct duration_key duration = {};
	struct call_key key = {};
	__u64 microseconds;

	if (!call)
		return 0;
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	bpf_get_current_comm(duration.comm, sizeof(duration.comm));
	key.number = call->number;
	microseconds = (bpf_ktime_get_ns() - call->begin) / 1000;
	bpf_map_delete_elem(&begun, &thread);
	add(&calls_total, &key, 1);
	duration.bucket = exp2_bucket(microseconds, MAX_BUCKET);
	add(&call_duration_seconds, &duration, 1);
	duration.bucket = MAX_BUCKET + 1;
	add(&call_duration_seconds, &duration, microseconds);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
