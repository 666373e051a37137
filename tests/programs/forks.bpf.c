#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } forks_total SEC(".maps");
SEC("raw_tp/sched_process_fork") int forked(void *ctx)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&forks_total, &zero);
	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}
char LICENSE[] SEC("license") = "GPL";
