// SPDX-License-Identifier: GPL-2.0-or-later
// Which commands throw C++ exceptions, and which of those are caught? The runtime has USDT probes for both (readelf -n libstdc++.so.6).
// Probes of a library take a kernel from 5.15 on, those of a program do not.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/usdt.bpf.h>
#include "add.bpf.h"

struct exception_key {
	char comm[16];
	__u8 is_caught;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct exception_key);
	__type(value, __u64);
} exceptions_total SEC(".maps");

static __always_inline int count(__u8 is_caught)
{
	struct exception_key key = { .is_caught = is_caught };

	bpf_get_current_comm(key.comm, sizeof(key.comm));
	add(&exceptions_total, &key, 1);
	return 0;
}

SEC("usdt/libstdc++.so.6:libstdcxx:throw")
int exception_thrown(void *ctx)
{
	return count(0);
}

SEC("usdt/libstdc++.so.6:libstdcxx:catch")
int exception_caught(void *ctx)
{
	return count(1);
}

char LICENSE[] SEC("license") = "GPL";
