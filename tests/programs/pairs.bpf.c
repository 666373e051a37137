// == mixed
/*
 * Counters of forks: in all, by CPU, and in a map whose values are too short; with a program for a tracepoint that does not exist, and one
 * that the verifier refuses.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#define COUNTER(NAME, TYPE, VALUE) \
	struct { __uint(type, TYPE); __uint(max_entries, 1); __type(key, __u32); __type(value, VALUE); } NAME SEC(".maps")
COUNTER(forks_total, BPF_MAP_TYPE_ARRAY, __u64);
COUNTER(forks_by_cpu_total, BPF_MAP_TYPE_PERCPU_ARRAY, __u64);
COUNTER(short_total, BPF_MAP_TYPE_ARRAY, __u32);
static __always_inline void add(void *map)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(map, &zero);
	if (value)
		__sync_fetch_and_add(value, 1);
}
SEC("raw_tp/sched_process_fork") int forked(void *ctx)
{
	add(&forks_total);
	add(&forks_by_cpu_total);
	return 0;
}
SEC("raw_tp/no_such_tracepoint") int missing(void *ctx)
{
	add(&forks_total);
	return 0;
}
SEC("raw_tp/sched_switch") int refused(void *ctx)
{
	long anywhere = bpf_get_prandom_u32();
	return *(volatile int *)anywhere;
}
char LICENSE[] SEC("license") = "GPL";

// == writer
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } a SEC(".maps");
static __attribute__((noinline)) int change(void *to)
{
	int zero = 0;
	return bpf_probe_write_user(to, &zero, sizeof(zero));
}
SEC("raw_tp/sys_enter") int writer(struct bpf_raw_tracepoint_args *ctx)
{
	return change((void *)ctx->args[0]) + (bpf_map_lookup_elem(&a, &(int){0}) != 0);
}
char LICENSE[] SEC("license") = "GPL";

// == many
/* A row for each getppid of the test's load, more than are served. The program of another pair runs nowhere, and the map of a third is too large. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8192); __type(key, __u64); __type(value, __u64); } many SEC(".maps");
__u64 number;
SEC("raw_tp/sys_enter") int entered(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 key, one = 1;
	char comm[16] = {};
	if (ctx->args[1] != GETPPID)
		return 0;
	bpf_get_current_comm(comm, sizeof(comm));
	if (comm[0] != 'm' || comm[4] != '-' || comm[5] != 'l')
		return 0;
	key = __sync_fetch_and_add(&number, 1);
	bpf_map_update_elem(&many, &key, &one, BPF_ANY);
	return 0;
}
char LICENSE[] SEC("license") = "GPL";

// == nowhere
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } a SEC(".maps");
SEC("raw_tp/no_such_tracepoint") int runs_nowhere(void *ctx)
{
	return bpf_map_lookup_elem(&a, &(int){0}) != 0;
}
char LICENSE[] SEC("license") = "GPL";
