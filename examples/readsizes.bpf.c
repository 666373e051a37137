// SPDX-License-Identifier: GPL-2.0-or-later
// In which pieces does each command read? Many small ones ask for a buffer.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "add.bpf.h"

#define MAX_BUCKET 31

struct trace_event_raw_sys_exit {
	long ret;
} __attribute__((preserve_access_index));

struct size_key {
	char comm[16];
	__u32 bucket;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct size_key);
	__type(value, __u64);
} read_size_bytes SEC(".maps");

static __always_inline int returned(struct trace_event_raw_sys_exit *ctx)
{
	long bytes = BPF_CORE_READ(ctx, ret);
	struct size_key key = {};

	if (bytes < 0)
		return 0;
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	// `exp2zero`: bucket 0 is for 0, the end of a file, and all others come one later.
	key.bucket = bytes ? 1 + exp2_bucket(bytes, MAX_BUCKET - 1) : 0;
	add(&read_size_bytes, &key, 1);
	key.bucket = MAX_BUCKET + 1;
	add(&read_size_bytes, &key, bytes);
	return 0;
}

SEC("tp/syscalls/sys_exit_read")
int read_returned(struct trace_event_raw_sys_exit *ctx)
{
	return returned(ctx);
}

SEC("tp/syscalls/sys_exit_pread64")
int pread_returned(struct trace_event_raw_sys_exit *ctx)
{
	return returned(ctx);
}

SEC("tp/syscalls/sys_exit_readv")
int readv_returned(struct trace_event_raw_sys_exit *ctx)
{
	return returned(ctx);
}

char LICENSE[] SEC("license") = "GPL";
