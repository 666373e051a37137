// == begin
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
char LICENSE[] SEC("license") = "GPL";
#define MAP(NAME, TYPE, ENTRIES, KEY) \
	struct { __uint(type, TYPE); __uint(max_entries, ENTRIES); __type(key, KEY); __type(value, __u64); } NAME SEC(".maps")
#define EVENTS(NAME, TYPE, SIZE) struct { __uint(type, TYPE); SIZE } NAME SEC(".maps")
static __always_inline __attribute__((unused)) void add(void *map, __u64 key, __u64 more)
{
	__u64 *value = bpf_map_lookup_elem(map, &key);
	if (!value) {
		__u64 zero = 0;
		bpf_map_update_elem(map, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(map, &key);
	}
	if (value)
		__sync_fetch_and_add(value, more);
}
static __always_inline __attribute__((unused)) int is_load(void)
{
	char comm[16] = {}, wanted[] = LOAD;
	bpf_get_current_comm(comm, sizeof(comm));
	for (unsigned long i = 0; i < sizeof(wanted); i++)
		if (comm[i] != wanted[i])
			return 0;
	return 1;
}
/* The first argument of raw_tp/sys_enter points to the registers, the second is the number: getppid. */
static __always_inline __attribute__((unused)) int is_call(struct bpf_raw_tracepoint_args *ctx)
{
	return (ctx->args[1] == 110 || ctx->args[1] == 173) && is_load();
}

// == mark
const volatile __u64 kaddr__stext = 0;
const volatile __u64 kaddr__etext = 0;
MAP(start, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("uprobe//proc/self/exe:post_attach_mark") int mark(void *ctx)
{
	add(&start, 0, kaddr__stext);
	add(&start, 1, kaddr__etext);
	add(&start, 2, 1);
	return 0;
}

// == events
EVENTS(perf_total, BPF_MAP_TYPE_PERF_EVENT_ARRAY, __uint(key_size, 4); __uint(value_size, 4););
EVENTS(small_total, BPF_MAP_TYPE_PERF_EVENT_ARRAY, __uint(key_size, 4); __uint(value_size, 4););
EVENTS(ring_total, BPF_MAP_TYPE_RINGBUF, __uint(max_entries, 1 << 20););
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	struct { __u64 number; char more[240]; } event = { .number = ctx->args[1] };
	if (!is_call(ctx))
		return 0;
	bpf_perf_event_output(ctx, &perf_total, BPF_F_CURRENT_CPU, &event, 8);
	bpf_perf_event_output(ctx, &small_total, BPF_F_CURRENT_CPU, &event, sizeof(event));
	bpf_ringbuf_output(&ring_total, &event, 8, 0);
	return 0;
}

// == sections
MAP(samples, BPF_MAP_TYPE_HASH, 4, __u64);
MAP(frames, BPF_MAP_TYPE_HASH, 4, __u64);
MAP(datagrams, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("perf_event/type=0x1,config=0,frequency=99") int sample(void *ctx)
{
	add(&samples, 0, 1);
	return 0;
}
SEC("xdp/INTERFACE") int frame(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;
	if (data + 14 <= (unsigned char *)(long)ctx->data_end && data[12] == 0x88 && data[13] == 0xb5)
		add(&frames, 0, 1);
	return XDP_PASS;
}
SEC("cgroup_skb/egress") int datagram(struct __sk_buff *skb)
{
	unsigned char header[24];
	if (bpf_skb_load_bytes(skb, 0, header, sizeof(header)) == 0 && header[9] == IPPROTO_UDP && header[22] == 0xba &&
	    header[23] == 0xc7)
		add(&datagrams, 0, 1);
	return 1;
}

// == samples
MAP(samples_total, BPF_MAP_TYPE_HASH, 1024, __u64);
SEC("perf_event/type=1,config=0,frequency=99") int sample(void *ctx)
{
	add(&samples_total, bpf_get_smp_processor_id(), 1);
	return 0;
}

// == cgroups
MAP(cgids, BPF_MAP_TYPE_HASH, 1024, __u64);
MAP(calls_total, BPF_MAP_TYPE_HASH, 1024, __u64);
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 id = bpf_get_current_cgroup_id();
	if (is_call(ctx) && bpf_map_lookup_elem(&cgids, &id))
		add(&calls_total, id, 1);
	return 0;
}

// == helpers
MAP(a, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("raw_tp/sched_process_exec") int signals(void *ctx)
{
	if (is_load())
		bpf_send_signal(10);
	add(&a, 0, 1);
	return 0;
}

// == relocated
struct task_struct { int pid; } __attribute__((preserve_access_index));
MAP(a, BPF_MAP_TYPE_HASH, 4, __u64);
SEC("raw_tp/sched_process_exec") int executed(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)ctx->args[0];
	int pid = 0;
	bpf_probe_read_kernel(&pid, sizeof(pid), &task->pid);
	add(&a, 0, pid > 0);
	return 0;
}

// == latency
MAP(latency_seconds, BPF_MAP_TYPE_HASH, 64, __u64);
MAP(many_total, BPF_MAP_TYPE_HASH, 64, __u64);
MAP(queue, BPF_MAP_TYPE_HASH, 64, __u64);
__u64 calls;
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	if (!is_call(ctx))
		return 0;
	/* Of 1,000 calls, 500 in bucket 1, 400 in 2, 90 in 3, 9 in 4 and one in 5. */
	__u64 n = calls++;
	add(&latency_seconds, n < 500 ? 1 : n < 900 ? 2 : n < 990 ? 3 : n < 999 ? 4 : 5, 1);
	add(&many_total, n % 10, 1);
	add(&queue, 0, 1);
	return 0;
}

// == deleting
MAP(rows_total, BPF_MAP_TYPE_HASH, 4096, __u64);
MAP(all_total, BPF_MAP_TYPE_HASH, 4, __u64);
__u64 calls;
SEC("raw_tp/sys_enter") int call(struct bpf_raw_tracepoint_args *ctx)
{
	if (!is_call(ctx))
		return 0;
	__u64 n = calls++, key = n % 1024, old = (n + 512) % 1024;
	/* The total first: it is never behind the rows. */
	add(&all_total, 0, 1);
	add(&rows_total, key, 1);
	bpf_map_delete_elem(&rows_total, &old);
	return 0;
}
