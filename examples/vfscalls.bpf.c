// SPDX-License-Identifier: GPL-2.0-or-later
// What is asked of file systems, whichever they are? It takes kprobes (CONFIG_KPROBES); a kernel without them refuses each of the
// programs, and the error says so.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum operation { READ, WRITE, OPEN, SYNC, MAKE_DIRECTORY, REMOVE_DIRECTORY, OPERATIONS };

// A value for each CPU, so that none waits for another; the agent adds them up.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OPERATIONS);
	__type(key, __u32);
	__type(value, __u64);
} vfs_calls_total SEC(".maps");

static __always_inline int count(__u32 operation)
{
	__u64 *value = bpf_map_lookup_elem(&vfs_calls_total, &operation);

	if (value)
		*value += 1;
	return 0;
}

#define COUNT(FUNCTION, OPERATION)       \
	SEC("kprobe/" #FUNCTION)         \
	int FUNCTION(void *ctx)          \
	{                                \
		return count(OPERATION); \
	}

COUNT(vfs_read, READ)
COUNT(vfs_write, WRITE)
COUNT(vfs_open, OPEN)
COUNT(vfs_fsync_range, SYNC)
COUNT(vfs_mkdir, MAKE_DIRECTORY)
COUNT(vfs_rmdir, REMOVE_DIRECTORY)

char LICENSE[] SEC("license") = "GPL";
