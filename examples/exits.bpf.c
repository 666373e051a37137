// SPDX-License-Identifier: GPL-2.0-or-later
// Which commands end, and how? Each end is an event in a ring buffer, which the agent counts: the kernel keeps no row for it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct task_struct {
	int pid, tgid, exit_code;
} __attribute__((preserve_access_index));

struct exit_event {
	char comm[16];
	__u32 status;
	__u32 signal;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} exits_total SEC(".maps");

// What finds no room, the kernel does not count.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} exits_lost_total SEC(".maps");

SEC("raw_tp/sched_process_exit")
int process_ended(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	struct exit_event event = {};
	__u32 zero = 0, code;
	__u64 *lost;

	// Of the threads of a process, its first one.
	if (BPF_CORE_READ(task, pid) != BPF_CORE_READ(task, tgid))
		return 0;
	// As wait(2) has it.
	code = BPF_CORE_READ(task, exit_code);
	event.status = code >> 8 & 0xff;
	event.signal = code & 0x7f;
	bpf_get_current_comm(event.comm, sizeof(event.comm));
	if (bpf_ringbuf_output(&exits_total, &event, sizeof(event), 0)) {
		lost = bpf_map_lookup_elem(&exits_lost_total, &zero);
		if (lost)
			__sync_fetch_and_add(lost, 1);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
