// SPDX-License-Identifier: GPL-2.0-or-later
// @NAME@: which commands start, and how often? Put your own question here.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// The labels of @NAME@.yaml take the key apart from its first byte to its last.
struct execs_key {
	char comm[16];
};

// A counter: the map has the metric's name, its values have 8 bytes. Rows of an LRU map that are not used make room for others.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct execs_key);
	__type(value, __u64);
} execs_total SEC(".maps");

// The section says where the program is attached.
SEC("raw_tp/sched_process_exec")
int exec_done(struct bpf_raw_tracepoint_args *ctx)
{
	struct execs_key key = {};
	__u64 one = 1, *value;

	bpf_get_current_comm(key.comm, sizeof(key.comm));
	value = bpf_map_lookup_elem(&execs_total, &key);
	if (value)
		__sync_fetch_and_add(value, 1);
	else
		bpf_map_update_elem(&execs_total, &key, &one, BPF_NOEXIST);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
