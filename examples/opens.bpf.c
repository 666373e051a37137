// SPDX-License-Identifier: GPL-2.0-or-later
// Which commands open files, and which of them in vain?
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "add.bpf.h"

struct trace_event_raw_sys_exit {
	long ret;
} __attribute__((preserve_access_index));

struct opens_key {
	char comm[16];
	__u8 has_failed;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct opens_key);
	__type(value, __u64);
} opens_total SEC(".maps");

static __always_inline int opened(struct trace_event_raw_sys_exit *ctx)
{
	struct opens_key key = { .has_failed = BPF_CORE_READ(ctx, ret) < 0 };

	bpf_get_current_comm(key.comm, sizeof(key.comm));
	add(&opens_total, &key, 1);
	return 0;
}

// arm64 has no `open`: there the state is `partly attached`.
SEC("tp/syscalls/sys_exit_open")
int open_returned(struct trace_event_raw_sys_exit *ctx)
{
	return opened(ctx);
}

SEC("tp/syscalls/sys_exit_openat")
int openat_returned(struct trace_event_raw_sys_exit *ctx)
{
	return opened(ctx);
}

SEC("tp/syscalls/sys_exit_openat2")
int openat2_returned(struct trace_event_raw_sys_exit *ctx)
{
	return opened(ctx);
}

char LICENSE[] SEC("license") = "GPL";
