/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The kernel types of BPF objects and of what they are attached to, as kernel.h has the others.
 */
#pragma once

#include "kernel.h"

enum bpf_prog_type {
	BPF_PROG_TYPE_UNSPEC = 0,
};

enum bpf_link_type {
	BPF_LINK_TYPE_RAW_TRACEPOINT = 1,
	BPF_LINK_TYPE_TRACING = 2,
	BPF_LINK_TYPE_CGROUP = 3,
	BPF_LINK_TYPE_ITER = 4,
	BPF_LINK_TYPE_XDP = 6,
	BPF_LINK_TYPE_PERF_EVENT = 7,
	BPF_LINK_TYPE_TCX = 11,
	BPF_LINK_TYPE_NETKIT = 13,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* BPF programs; counts and sums of 64 bits are structs from 5.16 on */
typedef struct {
	__u64 v;
} u64_stats_t;

struct bpf_prog_stats {
	u64_stats_t cnt;
	u64_stats_t nsecs;
	u64_stats_t misses;
};

struct bpf_prog_stats___plain {
	__u64 cnt;
	__u64 nsecs;
	__u64 misses; /* 5.12 and later */
};

struct btf_type {
	__u32 name_off;
};

struct btf {
	struct btf_type **types;
	const char *strings;
};

struct bpf_func_info {
	__u32 insn_off;
	__u32 type_id;
};

struct bpf_prog_aux {
	__u32 id;
	const char *attach_func_name;
	__u64 load_time; /* in ns since the start of the machine */
	char name[16];
	struct btf *btf;
	struct bpf_func_info *func_info;
};

/* before 5.12 */
struct bpf_prog_aux___stats {
	struct bpf_prog_stats *stats;
};

struct bpf_prog {
	__u16 pages;
	enum bpf_prog_type type;
	__u8 tag[8];
	struct bpf_prog_stats *stats;
	struct bpf_prog_aux *aux;
};

/* maps */
struct bpf_map_ops {
	void *map_mem_usage; /* 6.4 and later */
};

struct bpf_map {
	const struct bpf_map_ops *ops;
	enum bpf_map_type map_type;
	__u32 key_size;
	__u32 value_size;
	__u32 max_entries;
	__u32 map_flags;
	__u32 id;
	char name[16];
	__s64 *elem_count; /* by CPU */
};

struct bpf_map_memory {
	__u32 pages;
};

/* before 5.11 */
struct bpf_map___memory {
	struct bpf_map_memory memory;
};

struct bpf_array {
	struct bpf_map map;
	__u32 elem_size;
	void *pptrs[];
};

struct llist_node;
struct htab_elem;
struct bucket {};

struct percpu_counter___percpu {
	__s64 count;
	__s32 *counters; /* by CPU */
};

struct bpf_htab {
	struct bpf_map map;
	struct percpu_counter pcount;
	atomic_t count;
	__u8 use_percpu_counter;
	int *map_locked[8]; /* before 6.15 */
	__u32 n_buckets;
	__u32 elem_size;
};

/* 7.2 and later, and of earlier ones stable releases such as 6.12.117 */
struct htab_btf_record {};

struct stack_map_bucket {};

struct bpf_stack_map {
	struct bpf_map map;
	__u32 n_buckets;
};

struct bpf_queue_stack {};

struct bpf_ringbuf {
	int nr_pages;
};

struct bpf_ringbuf_map {
	struct bpf_map map;
	struct bpf_ringbuf *rb;
};

struct lpm_trie_node {};

struct lpm_trie {
	struct bpf_map map;
	unsigned long n_entries;
	unsigned long data_size;
};

struct bpf_dtab_netdev {};

struct bpf_dtab {
	unsigned int items;
	__u32 n_buckets;
};

struct bpf_cpu_map {};

struct bpf_stab {};

struct bpf_shtab_bucket {};

struct bpf_shtab {
	__u32 buckets_num;
	__u32 elem_size;
	atomic_t count;
};

struct xsk_map_node {};

struct xsk_map {
	atomic_t count;
};

struct bpf_bloom_filter {
	__u32 bitset_mask;
};

struct reuseport_array {};

struct bpf_cgroup_storage_map {};

struct bpf_local_storage_map_bucket {};

struct bpf_local_storage_map {
	struct bpf_map map;
	__u32 bucket_log;
};

/* links: each kind begins with one */
struct bpf_link {
	__u32 id;
	enum bpf_link_type type;
	struct bpf_prog *prog;
};

struct tracepoint {
	const char *name;
};

struct bpf_raw_event_map {
	struct tracepoint *tp;
};

struct bpf_raw_tp_link {
	struct bpf_raw_event_map *btp;
};

struct bpf_cgroup_link {
	struct cgroup *cgroup;
};

struct bpf_iter_reg {
	const char *target;
};

struct bpf_iter_target_info {
	const struct bpf_iter_reg *reg_info;
};

struct bpf_iter_link {
	struct bpf_iter_target_info *tinfo;
};

struct net_device {
	char name[16];
};

struct bpf_xdp_link {
	struct net_device *dev;
};

struct tcx_link {
	struct net_device *dev;
};

struct bpf_perf_link {
	struct file *perf_file;
};

struct list_head {
	struct list_head *next;
};

struct trace_event_call {
	union {
		char *name;
		struct tracepoint *tp;
	};
};

struct trace_probe_event {
	struct trace_event_call call;
	struct list_head probes;
};

struct trace_probe {
	struct list_head list;
};

struct trace_kprobe {
	const char *symbol;
	struct trace_probe tp;
};

struct trace_uprobe {
	char *filename;
	unsigned long offset;
	struct trace_probe tp;
};

struct pmu {
	const char *name;
};

struct perf_event {
	struct pmu *pmu;
	struct trace_event_call *tp_event;
};

struct bpf_iter_meta {
	__u64 seq_num;
};

#pragma clang attribute pop
