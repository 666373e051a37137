// SPDX-License-Identifier: GPL-2.0-or-later
// How often does each CPU look into its last level cache, and how often in vain? It takes hardware counters (a PMU), which few virtual
// machines have: without them the state is `failed`, and the error says so.
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include "add.bpf.h"

#define BY_CPU(NAME)                                  \
	struct {                                      \
		__uint(type, BPF_MAP_TYPE_HASH);      \
		__uint(max_entries, 1024);            \
		__type(key, __u32);                   \
		__type(value, __u64);                 \
	} NAME SEC(".maps")

BY_CPU(llc_references_total);
BY_CPU(llc_misses_total);

// A sample stands for all events since the one before it.
static __always_inline void count(void *map, struct bpf_perf_event_data *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();

	add(map, &cpu, ctx->sample_period);
}

// Type 0 is hardware; 2 and 3 are PERF_COUNT_HW_CACHE_REFERENCES and PERF_COUNT_HW_CACHE_MISSES.
SEC("perf_event/type=0,config=2,frequency=99")
int cache_reference(struct bpf_perf_event_data *ctx)
{
	count(&llc_references_total, ctx);
	return 0;
}

SEC("perf_event/type=0,config=3,frequency=99")
int cache_miss(struct bpf_perf_event_data *ctx)
{
	count(&llc_misses_total, ctx);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
