// SPDX-License-Identifier: GPL-2.0-or-later
// Which signals are sent? A value for each CPU costs the least that a counter can cost.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 65);
	__type(key, __u32);
	__type(value, __u64);
} signals_total SEC(".maps");

// Its first argument is the number of the signal.
SEC("raw_tp/signal_generate")
int signal_sent(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 number = ctx->args[0];
	__u64 *value = bpf_map_lookup_elem(&signals_total, &number);

	if (value)
		*value += 1;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
