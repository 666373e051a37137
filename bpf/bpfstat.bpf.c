/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The BPF programs, maps and links of the machine, and the processes that hold them. Nothing is attached to what the machine does: the
 * kernel's iterators (kernel/bpf/prog_iter.c and others) run these programs while the agent reads. Each walk writes its rows anew.
 */
#include "shared/kernel_bpf.h"
#include "shared/probe.bpf.h"

#define ANON_INODE_FS 0x09041934 /* s_magic of the files that BPF objects are to their processes (include/uapi/linux/magic.h) */
#define NAME_WORDS 8
#define TARGET_WORDS 12
#define UNKNOWN (1ULL << 63) /* no sum of what CPUs count */

/* Numbers of the kinds of objects for holders. */
enum {
	HELD_PROG,
	HELD_MAP,
	HELD_LINK,
	HELD_BY_LINK, /* the program of a link */
};

#define F_NO_PREALLOC 1 /* of maps: include/uapi/linux/bpf.h */

struct bpfstat_prog {
	__u64 id;
	__u64 kind;
	__u64 tag;
	__u64 loaded; /* in ns since the start of the machine */
	__u64 pages;
	__u64 runs;
	__u64 ns;
	__u64 misses; /* UNKNOWN: the kernel does not count them */
	__u64 name[NAME_WORDS];
};

struct bpfstat_map {
	__u64 id;
	__u64 kind;
	__u64 capacity;
	__u64 used; /* UNKNOWN: the kernel does not count the entries of such a map */
	__u64 bytes;
	__u64 name[2];
	__u64 pad;
};

struct bpfstat_link {
	__u64 id;
	__u64 kind;
	__u64 prog;
	__u64 offset; /* of a probe in user code, in its file */
	__u64 target[TARGET_WORDS];
};

struct bpfstat_holder {
	__u64 object; /* its kind, and in the lower half its id */
	__u64 process;
	__u64 own; /* whether it is the agent */
	__u64 comm[2];
	__u64 pad[3];
};

/* What the latest walks found: numbers of objects, which may be more than there are rows. */
struct bpfstat_walk {
	__u64 progs;
	__u64 maps;
	__u64 links;
	__u64 holders;
	__u64 pages; /* of programs */
	__u64 bytes; /* of maps */
	__u64 pad[2];
};

/* How far the memory of a CPU is from the addresses that the kernel has for variables by CPU. */
struct bpfstat_cpu {
	__u64 known; /* 1, or 0 until it has been measured */
	__u64 offset;
	__u64 here; /* while it is being measured */
	__u64 map;
	__u64 pad[4];
};

ROWS(bpfstat_progs, struct bpfstat_prog);
ROWS(bpfstat_maps, struct bpfstat_map);
ROWS(bpfstat_links, struct bpfstat_link);
ROWS(bpfstat_holders, struct bpfstat_holder);
ROWS(bpfstat_walks, struct bpfstat_walk);
ROWS(bpfstat_cpus, struct bpfstat_cpu);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} bpfstat_here SEC(".maps");

const volatile __u32 bpfstat_cpu_ids; /* the highest possible id of a CPU, and 1 */
const volatile __u32 bpfstat_page;

/*
 * Measures the CPU that it runs on: a value of an array by CPU, as a program gets it, less the address that the kernel has for it. The
 * kernel's own table of these distances is no symbol without CONFIG_KALLSYMS_ALL. Addresses go through memory to become numbers.
 */
ON_CALL(bpf_cpu)
{
	volatile struct bpfstat_cpu *cpu = cpu_row(&bpfstat_cpus);
	void *here = row(&bpfstat_here, 0);
	__u64 common = 0;

	if (!cpu || !here)
		return 0;
	cpu->here = (__u64)here;
	cpu->map = (__u64)&bpfstat_here;
	bpf_probe_read_kernel(&common, sizeof(common), (void *)(cpu->map + bpf_core_field_offset(struct bpf_array, pptrs)));
	cpu->offset = cpu->here - common;
	cpu->known = 1;
	cpu->here = 0;
	cpu->map = 0;
	return 1;
}

/*
 * The sum of a variable by CPU with this address, of 4 or 8 bytes. With few branches: the verifier keeps the other side of each until the
 * end of the program, 8192 of them at most. A read that fails leaves 0.
 */
static __always_inline __u64 per_cpu_sum(__u64 address, const __u32 size)
{
	__u64 sum = 0;
	__u32 id;

	for (id = 0; id < bpfstat_cpu_ids; id++) {
		struct bpfstat_cpu *cpu = row(&bpfstat_cpus, id);
		__u64 value = 0;

		if (!cpu)
			break;
		bpf_probe_read_kernel(&value, size, (void *)(address + cpu->offset));
		sum += cpu->known * (size == sizeof(__s32) ? (__s64)(__s32)value : (__s64)value);
	}
	return sum;
}

static __always_inline struct bpfstat_walk *walk(void)
{
	return row(&bpfstat_walks, 0);
}

#define STATISTIC(field)                                                                                              \
	(bpf_core_field_exists(struct bpf_prog_stats, field) ? bpf_core_field_offset(struct bpf_prog_stats, field)      \
							     : bpf_core_field_offset(struct bpf_prog_stats___plain, field))

/* The name in the program's types, which is whole; the kernel has 15 bytes of it. */
static __always_inline void prog_name(struct bpf_prog_aux *aux, __u64 name[NAME_WORDS])
{
	struct bpf_func_info *function = BPF_CORE_READ(aux, func_info);
	struct btf *btf = BPF_CORE_READ(aux, btf);
	long length = 0;

	__builtin_memset(name, 0, NAME_WORDS * 8);
	if (function && btf) {
		struct btf_type **types = BPF_CORE_READ(btf, types), *type = NULL;
		const char *strings = BPF_CORE_READ(btf, strings);

		bpf_probe_read_kernel(&type, sizeof(type), &types[BPF_CORE_READ(function, type_id)]);
		if (type)
			length = bpf_probe_read_kernel_str(name, NAME_WORDS * 8, strings + BPF_CORE_READ(type, name_off));
	}
	if (length <= 1)
		bpf_core_read_str(name, 16, &aux->name);
}

ON_WALK(bpf_prog, struct bpf_iter_meta *meta, struct bpf_prog *prog)
{
	__u64 index = meta->seq_num, stats = 0;
	struct bpfstat_walk *total = walk();
	struct bpfstat_prog *r;

	if (!total)
		return;
	if (!index)
		total->progs = total->pages = 0;
	if (!prog)
		return;
	total->progs++;
	total->pages += prog->pages;
	r = row(&bpfstat_progs, index);
	if (!r)
		return;
	r->id = prog->aux->id;
	r->kind = prog->type;
	bpf_core_read(&r->tag, sizeof(r->tag), &prog->tag);
	r->loaded = prog->aux->load_time;
	r->pages = prog->pages;
	/* As a number: where the kernel's types say that it is by CPU, it could not be read otherwise. */
	if (bpf_core_field_exists(prog->stats))
		bpf_core_read(&stats, sizeof(stats), &prog->stats);
	else
		bpf_core_read(&stats, sizeof(stats), &((struct bpf_prog_aux___stats *)prog->aux)->stats);
	r->runs = stats ? per_cpu_sum(stats + STATISTIC(cnt), 8) : 0;
	r->ns = stats ? per_cpu_sum(stats + STATISTIC(nsecs), 8) : 0;
	if (bpf_core_field_exists(struct bpf_prog_stats, misses) || bpf_core_field_exists(struct bpf_prog_stats___plain, misses))
		r->misses = stats ? per_cpu_sum(stats + STATISTIC(misses), 8) : 0;
	else
		r->misses = UNKNOWN;
	prog_name(prog->aux, r->name);
}

#define MAP_FIELD(map, kind, ...) BPF_CORE_READ((struct kind *)(map), __VA_ARGS__)

static __always_inline bool map_by_cpu(int type)
{
	return type == BPF_MAP_TYPE_PERCPU_HASH || type == BPF_MAP_TYPE_PERCPU_ARRAY || type == BPF_MAP_TYPE_LRU_PERCPU_HASH ||
	       type == BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE;
}

static __always_inline __u64 pages_of(__u64 bytes)
{
	return (bytes + bpfstat_page - 1) & -(__u64)bpfstat_page;
}

/* As bpf_map_memory_footprint of kernel/bpf/syscall.c before 6.4. */
static __always_inline __u64 map_estimate(struct bpf_map *map)
{
	__u64 value = map->value_size;
	int type = map->map_type;

	if (map_by_cpu(type))
		value = ((value + 7) & ~7ULL) * bpfstat_cpu_ids;
	else if (type == BPF_MAP_TYPE_PROG_ARRAY || type == BPF_MAP_TYPE_PERF_EVENT_ARRAY || type == BPF_MAP_TYPE_CGROUP_ARRAY ||
		 type == BPF_MAP_TYPE_ARRAY_OF_MAPS || type == BPF_MAP_TYPE_HASH_OF_MAPS)
		value = 4;
	return pages_of(map->max_entries * ((map->key_size + value + 7) & ~7ULL));
}

/* As htab_map_mem_usage of kernel/bpf/hashtab.c. */
static __always_inline __u64 hash_bytes(struct bpf_map *map, __u64 cpus)
{
	__u64 element = MAP_FIELD(map, bpf_htab, elem_size), value = (map->value_size + 7) & ~7U;
	__u64 bytes = bpf_core_type_size(struct bpf_htab), entries = map->max_entries;
	int type = map->map_type;
	bool lru = type == BPF_MAP_TYPE_LRU_HASH || type == BPF_MAP_TYPE_LRU_PERCPU_HASH;

	bytes += (__u64)MAP_FIELD(map, bpf_htab, n_buckets) * bpf_core_type_size(struct bucket);
	/*
	 * Locks by CPU. Kernels since 6.15 have none and count them all the same, until 7.2: its new struct is what BTF can be asked for. Stable
	 * releases of kernels with locks have that struct, too.
	 */
	if (bpf_core_field_exists(struct bpf_htab, map_locked) || !bpf_core_type_exists(struct htab_btf_record))
		bytes += 4 * cpus * 8;
	if (map->map_flags & F_NO_PREALLOC) {
		entries = MAP_FIELD(map, bpf_htab, count.counter);
		if (MAP_FIELD(map, bpf_htab, use_percpu_counter)) {
			__u64 counters = 0;

			bpf_core_read(&counters, sizeof(counters), &((struct percpu_counter___percpu *)&((struct bpf_htab *)map)->pcount)->counters);
			entries = MAP_FIELD(map, bpf_htab, pcount.count) + per_cpu_sum(counters, 4);
		}
		bytes += (element + sizeof(void *)) * entries;
		if (map_by_cpu(type))
			bytes += (2 * sizeof(void *) + value * cpus) * entries;
		return bytes;
	}
	if (!map_by_cpu(type) && !lru)
		entries += cpus; /* each has a spare one */
	bytes += element * entries;
	if (map_by_cpu(type))
		return bytes + value * cpus * entries;
	return lru ? bytes : bytes + sizeof(void *) * cpus;
}

/* The size of a struct that a kernel without networking by BPF has not, nor a map of its kind. */
#define SIZE_OF(type) (bpf_core_type_exists(type) ? bpf_core_type_size(type) : 0)

/* Maps of devices, processors and sockets. */
static __always_inline __u64 network_map_bytes(struct bpf_map *map)
{
	__u64 entries = map->max_entries;

	switch (map->map_type) {
	case BPF_MAP_TYPE_DEVMAP:
	case BPF_MAP_TYPE_DEVMAP_HASH:
		if (map->map_type == BPF_MAP_TYPE_DEVMAP_HASH)
			entries = MAP_FIELD(map, bpf_dtab, n_buckets);
		return SIZE_OF(struct bpf_dtab) + entries * sizeof(void *) + SIZE_OF(struct bpf_dtab_netdev) * MAP_FIELD(map, bpf_dtab, items);
	case BPF_MAP_TYPE_CPUMAP:
		return SIZE_OF(struct bpf_cpu_map) + entries * sizeof(void *);
	case BPF_MAP_TYPE_REUSEPORT_SOCKARRAY:
		return SIZE_OF(struct reuseport_array) + entries * sizeof(void *);
	case BPF_MAP_TYPE_SOCKMAP:
		return SIZE_OF(struct bpf_stab) + entries * sizeof(void *);
	case BPF_MAP_TYPE_SOCKHASH:
		return SIZE_OF(struct bpf_shtab) + MAP_FIELD(map, bpf_shtab, buckets_num) * SIZE_OF(struct bpf_shtab_bucket) +
		       (__u64)MAP_FIELD(map, bpf_shtab, count.counter) * MAP_FIELD(map, bpf_shtab, elem_size);
	default: /* BPF_MAP_TYPE_XSKMAP */
		return SIZE_OF(struct xsk_map) + entries * sizeof(void *) + MAP_FIELD(map, xsk_map, count.counter) * SIZE_OF(struct xsk_map_node);
	}
}

/* As the map_mem_usage of each kind; of others an estimate. */
static __always_inline __u64 map_bytes(struct bpf_map *map)
{
	__u64 entries = map->max_entries, cpus = bpfstat_cpu_ids, bytes;

	switch (map->map_type) {
	case BPF_MAP_TYPE_HASH:
	case BPF_MAP_TYPE_PERCPU_HASH:
	case BPF_MAP_TYPE_LRU_HASH:
	case BPF_MAP_TYPE_LRU_PERCPU_HASH:
	case BPF_MAP_TYPE_HASH_OF_MAPS:
		return hash_bytes(map, cpus);
	case BPF_MAP_TYPE_ARRAY:
	case BPF_MAP_TYPE_PROG_ARRAY:
	case BPF_MAP_TYPE_PERF_EVENT_ARRAY:
	case BPF_MAP_TYPE_CGROUP_ARRAY:
	case BPF_MAP_TYPE_ARRAY_OF_MAPS:
		bytes = entries * MAP_FIELD(map, bpf_array, elem_size);
		if (map->map_flags & BPF_F_MMAPABLE)
			return pages_of(bpf_core_type_size(struct bpf_array)) + pages_of(bytes);
		return bpf_core_type_size(struct bpf_array) + bytes;
	case BPF_MAP_TYPE_PERCPU_ARRAY:
		return bpf_core_type_size(struct bpf_array) + entries * (sizeof(void *) + MAP_FIELD(map, bpf_array, elem_size) * cpus);
	case BPF_MAP_TYPE_STACK_TRACE:
		return bpf_core_type_size(struct bpf_stack_map) + (__u64)MAP_FIELD(map, bpf_stack_map, n_buckets) * sizeof(void *) +
		       entries * (bpf_core_type_size(struct stack_map_bucket) + map->value_size);
	case BPF_MAP_TYPE_QUEUE:
	case BPF_MAP_TYPE_STACK:
		return bpf_core_type_size(struct bpf_queue_stack) + (entries + 1) * map->value_size;
	case BPF_MAP_TYPE_RINGBUF:
		/* Its pages, and pointers to them: the data is mapped twice. */
		return bpf_core_type_size(struct bpf_ringbuf_map) + (__u64)MAP_FIELD(map, bpf_ringbuf_map, rb, nr_pages) * bpfstat_page +
		       (MAP_FIELD(map, bpf_ringbuf_map, rb, nr_pages) + entries / bpfstat_page) * sizeof(void *);
	case BPF_MAP_TYPE_LPM_TRIE:
		return MAP_FIELD(map, lpm_trie, n_entries) *
		       (bpf_core_type_size(struct lpm_trie_node) + MAP_FIELD(map, lpm_trie, data_size) + map->value_size);
	case BPF_MAP_TYPE_BLOOM_FILTER:
		return bpf_core_type_size(struct bpf_bloom_filter) + (((__u64)MAP_FIELD(map, bpf_bloom_filter, bitset_mask) / 8 + 8) & ~7ULL);
	case BPF_MAP_TYPE_CGROUP_STORAGE:
	case BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE:
		return SIZE_OF(struct bpf_cgroup_storage_map);
	case BPF_MAP_TYPE_DEVMAP:
	case BPF_MAP_TYPE_DEVMAP_HASH:
	case BPF_MAP_TYPE_CPUMAP:
	case BPF_MAP_TYPE_REUSEPORT_SOCKARRAY:
	case BPF_MAP_TYPE_SOCKMAP:
	case BPF_MAP_TYPE_SOCKHASH:
	case BPF_MAP_TYPE_XSKMAP:
		return network_map_bytes(map);
	case BPF_MAP_TYPE_SK_STORAGE:
	case BPF_MAP_TYPE_INODE_STORAGE:
	case BPF_MAP_TYPE_TASK_STORAGE:
	case BPF_MAP_TYPE_CGRP_STORAGE:
		return bpf_core_type_size(struct bpf_local_storage_map) +
		       ((__u64)bpf_core_type_size(struct bpf_local_storage_map_bucket) << (MAP_FIELD(map, bpf_local_storage_map, bucket_log) & 31));
	default:
		return map_estimate(map);
	}
}

ON_WALK(bpf_map, struct bpf_iter_meta *meta, struct bpf_map *map)
{
	__u64 index = meta->seq_num, bytes, counters = 0;
	struct bpfstat_walk *total = walk();
	struct bpfstat_map *r;

	if (!total)
		return;
	if (!index)
		total->maps = total->bytes = 0;
	if (!map)
		return;
	if (bpf_core_field_exists(struct bpf_map___memory, memory))
		bytes = (__u64)BPF_CORE_READ((struct bpf_map___memory *)map, memory.pages) * bpfstat_page;
	else if (bpf_core_field_exists(struct bpf_map_ops, map_mem_usage))
		bytes = map_bytes(map);
	else
		bytes = map_estimate(map);
	total->maps++;
	total->bytes += bytes;
	r = row(&bpfstat_maps, index);
	if (!r)
		return;
	r->id = map->id;
	r->kind = map->map_type;
	r->capacity = map->max_entries;
	r->bytes = bytes;
	if (bpf_core_field_exists(map->elem_count))
		bpf_core_read(&counters, sizeof(counters), &map->elem_count);
	r->used = counters ? per_cpu_sum(counters, 8) : UNKNOWN;
	bpf_core_read(&r->name, sizeof(r->name), &map->name);
}

#define PMU_NAME 0xffffffffffffffULL /* seven bytes: six letters and the NUL */
#define PMU_KPROBE 0x65626f72706bULL
#define PMU_UPROBE 0x65626f727075ULL

/* The struct that a field is part of. */
#define CONTAINER(field_address, type, field)                                                                         \
	((struct type *)((void *)(field_address)-bpf_core_field_offset(struct type, field)))

/* A probe of perf_event_open(2), or an event of tracefs. */
static __always_inline const char *perf_target(struct bpf_link *link, struct bpfstat_link *r)
{
	struct file *file = BPF_CORE_READ((struct bpf_perf_link *)link, perf_file);
	struct perf_event *event = BPF_CORE_READ(file, private_data);
	struct trace_event_call *call = BPF_CORE_READ(event, tp_event);
	struct trace_probe *probe;
	__u64 pmu = 0;

	if (!call)
		return NULL; /* a counter */
	bpf_probe_read_kernel(&pmu, sizeof(pmu), BPF_CORE_READ(event, pmu, name));
	pmu &= PMU_NAME;
	if (pmu == PMU_KPROBE || pmu == PMU_UPROBE) {
		if (!bpf_core_type_exists(struct trace_probe_event))
			return NULL;
		probe = CONTAINER(BPF_CORE_READ(CONTAINER(call, trace_probe_event, call), probes.next), trace_probe, list);
		if (pmu == PMU_KPROBE)
			return bpf_core_type_exists(struct trace_kprobe) ? BPF_CORE_READ(CONTAINER(probe, trace_kprobe, tp), symbol) : NULL;
		if (!bpf_core_type_exists(struct trace_uprobe))
			return NULL;
		r->offset = BPF_CORE_READ(CONTAINER(probe, trace_uprobe, tp), offset);
		return BPF_CORE_READ(CONTAINER(probe, trace_uprobe, tp), filename);
	}
	/* What is no tracepoint has its name in that place: letters are no address. */
	if (bpf_probe_read_kernel_str(&r->target, sizeof(r->target), BPF_CORE_READ(call, tp, name)) > 0)
		return NULL;
	return BPF_CORE_READ(call, name);
}

ON_WALK(bpf_link, struct bpf_iter_meta *meta, struct bpf_link *link)
{
	__u64 index = meta->seq_num;
	struct bpfstat_walk *total = walk();
	struct bpf_prog *prog;
	struct bpfstat_link *r;
	const char *target = NULL;

	if (!total)
		return;
	if (!index)
		total->links = 0;
	if (!link)
		return;
	total->links++;
	r = row(&bpfstat_links, index);
	if (!r)
		return;
	__builtin_memset(r, 0, sizeof(*r));
	r->id = link->id;
	r->kind = link->type;
	prog = BPF_CORE_READ(link, prog);
	r->prog = prog ? BPF_CORE_READ(prog, aux, id) : 0;
	switch (link->type) {
	case BPF_LINK_TYPE_RAW_TRACEPOINT:
		target = BPF_CORE_READ((struct bpf_raw_tp_link *)link, btp, tp, name);
		break;
	case BPF_LINK_TYPE_TRACING:
		target = prog ? BPF_CORE_READ(prog, aux, attach_func_name) : NULL;
		break;
	case BPF_LINK_TYPE_CGROUP:
		target = BPF_CORE_READ((struct bpf_cgroup_link *)link, cgroup, kn, name);
		break;
	case BPF_LINK_TYPE_ITER:
		target = BPF_CORE_READ((struct bpf_iter_link *)link, tinfo, reg_info, target);
		break;
	case BPF_LINK_TYPE_XDP:
		target = (void *)BPF_CORE_READ((struct bpf_xdp_link *)link, dev) + bpf_core_field_offset(struct net_device, name);
		break;
	case BPF_LINK_TYPE_TCX:
	case BPF_LINK_TYPE_NETKIT:
		if (bpf_core_type_exists(struct tcx_link))
			target = (void *)BPF_CORE_READ((struct tcx_link *)link, dev) + bpf_core_field_offset(struct net_device, name);
		break;
	case BPF_LINK_TYPE_PERF_EVENT:
		target = perf_target(link, r);
		break;
	default:
		break;
	}
	if (target)
		bpf_probe_read_kernel_str(&r->target, sizeof(r->target), target);
}

static __always_inline void hold(struct bpfstat_walk *total, struct task_struct *task, __u64 kind, __u32 id)
{
	struct bpfstat_holder *last = row(&bpfstat_holders, total->holders - 1), *r;
	__u64 object = kind << 32 | id, process = task->tgid;
	struct task_struct *leader;

	/* Copies of one descriptor must not take the rows of others. */
	if (last && last->object == object && last->process == process)
		return;
	r = row(&bpfstat_holders, total->holders++);
	if (!r)
		return;
	r->object = object;
	r->process = process;
	r->own = task->tgid == bpf_get_current_pid_tgid() >> 32;
	leader = BPF_CORE_READ(task, group_leader);
	bpf_core_read(&r->comm, sizeof(r->comm), &leader->comm);
}

ON_WALK(task_file, struct bpf_iter_meta *meta, struct task_struct *task, __u32 fd, struct file *file)
{
	struct bpfstat_walk *total = walk();
	struct bpf_prog *prog;
	__u64 name = 0;
	void *object;

	if (!total)
		return;
	if (!meta->seq_num)
		total->holders = 0;
	if (!task || !file || file->f_inode->i_sb->s_magic != ANON_INODE_FS)
		return;
	bpf_probe_read_kernel(&name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
	object = BPF_CORE_READ(file, private_data);
	switch (name) {
	case 0x676f72702d667062: /* bpf-prog */
		hold(total, task, HELD_PROG, BPF_CORE_READ((struct bpf_prog *)object, aux, id));
		break;
	case 0x70616d2d667062: /* bpf-map */
		hold(total, task, HELD_MAP, BPF_CORE_READ((struct bpf_map *)object, id));
		break;
	case 0x6b6e696c5f667062: /* bpf_link */
		hold(total, task, HELD_LINK, BPF_CORE_READ((struct bpf_link *)object, id));
		prog = BPF_CORE_READ((struct bpf_link *)object, prog);
		if (prog)
			hold(total, task, HELD_BY_LINK, BPF_CORE_READ(prog, aux, id));
		break;
	}
}
