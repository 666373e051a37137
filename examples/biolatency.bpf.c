// SPDX-License-Identifier: GPL-2.0-or-later
// How long does each disk take for reads, writes, discards and flushes, from a request's issue to its completion?
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "add.bpf.h"

#define MAX_BUCKET 26

// Fields of the tracepoints, wherever the running kernel has them.
struct trace_event_raw_block_rq {
	__u32 dev;
	__u64 sector;
} __attribute__((preserve_access_index));

struct trace_event_raw_block_rq_completion {
	__u32 dev;
	__u64 sector;
	char rwbs[2];
} __attribute__((preserve_access_index));

// The same before 5.16.
struct trace_event_raw_block_rq_complete {
	__u32 dev;
	__u64 sector;
	char rwbs[2];
} __attribute__((preserve_access_index));

struct request {
	__u64 sector;
	__u64 dev;
};

struct latency_key {
	__u32 device;
	char operation[4];
	__u32 bucket;
};

// Times of requests that are not complete.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct request);
	__type(value, __u64);
} issued SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct latency_key);
	__type(value, __u64);
} bio_latency_seconds SEC(".maps");

SEC("tp/block/block_rq_issue")
int request_issued(struct trace_event_raw_block_rq *ctx)
{
	struct request request = { .sector = BPF_CORE_READ(ctx, sector), .dev = BPF_CORE_READ(ctx, dev) };
	__u64 now = bpf_ktime_get_ns();

	bpf_map_update_elem(&issued, &request, &now, BPF_ANY);
	return 0;
}

SEC("tp/block/block_rq_complete")
int request_completed(void *ctx)
{
	struct trace_event_raw_block_rq_completion *now = ctx;
	struct trace_event_raw_block_rq_complete *before = ctx;
	struct latency_key key = {};
	struct request request = {};
	__u64 *begin, microseconds;
	char flags[2];

	if (bpf_core_type_exists(struct trace_event_raw_block_rq_completion)) {
		request.sector = BPF_CORE_READ(now, sector);
		request.dev = BPF_CORE_READ(now, dev);
		bpf_core_read(flags, sizeof(flags), &now->rwbs);
	} else {
		request.sector = BPF_CORE_READ(before, sector);
		request.dev = BPF_CORE_READ(before, dev);
		bpf_core_read(flags, sizeof(flags), &before->rwbs);
	}
	begin = bpf_map_lookup_elem(&issued, &request);
	if (!begin)
		return 0;
	microseconds = (bpf_ktime_get_ns() - *begin) / 1000;
	bpf_map_delete_elem(&issued, &request);
	// An F before the letter of the operation asks for a flush before it.
	key.operation[0] = flags[0] == 'F' && flags[1] == 'W' ? 'W' : flags[0];
	// From the kernel's own layout of a device number (20 bits of minor) to that of stat(2), which `majorminor` reads.
	key.device = (request.dev & 0xff) | (request.dev >> 20) << 8 | (request.dev & 0xfff00) << 12;
	key.bucket = exp2_bucket(microseconds, MAX_BUCKET);
	add(&bio_latency_seconds, &key, 1);
	key.bucket = MAX_BUCKET + 1;
	add(&bio_latency_seconds, &key, microseconds);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
