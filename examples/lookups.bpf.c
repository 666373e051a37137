// SPDX-License-Identifier: GPL-2.0-or-later
// How long do commands wait for the addresses of names? It measures a function of a library, from its call to its return; put another
// one in its place.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "add.bpf.h"

#define MAX_BUCKET 26

struct latency_key {
	char comm[16];
	__u32 bucket;
};

// Times of calls that have not returned, by thread.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u64);
} called SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct latency_key);
	__type(value, __u64);
} lookup_duration_seconds SEC(".maps");

SEC("uprobe/libc.so.6:getaddrinfo")
int lookup_begins(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();

	bpf_map_update_elem(&called, &thread, &now, BPF_ANY);
	return 0;
}

SEC("uretprobe/libc.so.6:getaddrinfo")
int lookup_ends(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), microseconds;
	__u64 *begin = bpf_map_lookup_elem(&called, &thread);
	struct latency_key key = {};

	if (!begin)
		return 0;
	microseconds = (bpf_ktime_get_ns() - *begin) / 1000;
	bpf_map_delete_elem(&called, &thread);
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	key.bucket = exp2_bucket(microseconds, MAX_BUCKET);
	add(&lookup_duration_seconds, &key, 1);
	key.bucket = MAX_BUCKET + 1;
	add(&lookup_duration_seconds, &key, microseconds);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
