/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Calls that mount and unmount, the older ones and those of file descriptors. The functions of the calls, which have other names on other
 * architectures, are targets of one pair of programs; the arguments are in the registers of the call, also when it returns.
 */
#include "shared/filter.bpf.h"
#include "shared/latest.bpf.h"
#include "shared/set_table.bpf.h"
#include "shared/syscall.bpf.h"

#define NAME_SIZE 256
#define TYPE_SIZE 64
#define DATA_SIZE 512

/* The calls, by target (src/modules/mountsnoop.rs). */
enum mount_call {
	MOUNT_MOUNT,
	MOUNT_UMOUNT,
	MOUNT_FSOPEN,
	MOUNT_FSCONFIG,
	MOUNT_FSMOUNT,
	MOUNT_MOVE_MOUNT,
	MOUNT_OPEN_TREE,
	MOUNT_PIVOT_ROOT,
	MOUNT_FSPICK,
	MOUNT_SETATTR,
};

/* include/uapi/linux/mount.h: what the value of fsconfig is a string for */
#define FSCONFIG_SET_STRING 1
#define FSCONFIG_SET_PATH 3
#define FSCONFIG_SET_PATH_EMPTY 4

#define AT_RECURSIVE 0x8000 /* include/uapi/linux/fcntl.h */

struct mount_event {
	struct event_head head;
	__u64 ns; /* how long it took */
	__s64 ret;
	__u64 flags;
	__u32 call;
	__u32 pid;
	__u32 tid;
	__u32 uid;
	__u32 mnt_ns; /* number of the mount name space */
	__u32 pad;
	__u8 comm[16];
	__u8 fstype[TYPE_SIZE];
	__u8 source[NAME_SIZE];
	__u8 target[NAME_SIZE];
	__u8 data[DATA_SIZE];
};

struct mount_row {
	__u64 all;
	__u64 failed;
	__u64 unseen; /* returns whose call was not seen */
	__u64 pad[5];
};

LATEST(mount)
ROWS(mount_rows, struct mount_row);
PRIVATE(mount_starts, struct set_numbers); /* by thread */
EXPORT(struct mount_event);

const volatile __u64 mount_filter;
const volatile __u32 mount_starts_mask;

static __always_inline void mount_read(__u8 *text, __u32 size, __u64 from)
{
	if (!from || bpf_probe_read_user_str(text, size, (void *)from) < 0)
		text[0] = 0;
}

static __always_inline void mount_arguments(struct mount_event *e, __u32 call)
{
	const bool raw = true;
	struct pt_regs *regs = current_regs();
	__u64 a = SYSCALL_ARG0(regs, false), b = SYSCALL_ARG1(regs, false), c = SYSCALL_ARG2(regs, false);
	__u64 d = SYSCALL_ARG3(regs), last = SYSCALL_ARG4(regs), type = 0, source = 0, target = 0, data = 0;
	__u64 attributes[2] = {};

	switch (call) {
	case MOUNT_MOUNT:
		source = a, target = b, type = c, e->flags = d, data = last;
		break;
	case MOUNT_UMOUNT:
		target = a, e->flags = b;
		break;
	case MOUNT_FSOPEN:
		type = a, e->flags = b;
		break;
	case MOUNT_FSCONFIG:
		/* A key, and its value. */
		source = c, e->flags = b;
		if (b == FSCONFIG_SET_STRING || b == FSCONFIG_SET_PATH || b == FSCONFIG_SET_PATH_EMPTY)
			data = d;
		break;
	case MOUNT_FSMOUNT:
		e->flags = c;
		break;
	case MOUNT_MOVE_MOUNT:
		source = b, target = d, e->flags = last;
		break;
	case MOUNT_OPEN_TREE:
		source = b, e->flags = c;
		break;
	case MOUNT_PIVOT_ROOT:
		source = a, target = b;
		break;
	case MOUNT_FSPICK:
		target = b, e->flags = c;
		break;
	case MOUNT_SETATTR:
		/* Attributes to set and to clear, of 32 bits so far; the flag for all mounts below has a bit of its own among them. */
		bpf_probe_read_user(attributes, sizeof(attributes), (void *)d);
		target = b, e->flags = (__u32)attributes[0] | (c & AT_RECURSIVE) | attributes[1] << 32;
		break;
	}
	mount_read(e->fstype, TYPE_SIZE, type);
	mount_read(e->source, NAME_SIZE, source);
	mount_read(e->target, NAME_SIZE, target);
	mount_read(e->data, DATA_SIZE, data);
}

ON_EACH_ENTRY(target, frame)
{
	if (filter_wants_current(mount_filter) && set_begins(&mount_starts, mount_starts_mask, bpf_get_current_pid_tgid()))
		LOSE(mount_rows, unseen);
}

ON_EACH_RETURN(target, bits, ret, frame)
{
	__u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns(), since;
	struct mount_row *r = cpu_row(&mount_rows);
	struct task_struct *task;
	struct mount_event *e;

	if (!r)
		return;
	if (!set_take(&mount_starts, mount_starts_mask, id, &since)) {
		if (!mount_filter)
			ADD(r->unseen, 1);
		return;
	}
	ADD(r->all, 1);
	if ((__s64)ret < 0)
		ADD(r->failed, 1);
	e = EVENT(mount, struct mount_event, id >> 32);
	if (!e)
		return;
	task = (void *)bpf_get_current_task();
	e->ns = now - since;
	e->ret = ret;
	e->flags = 0;
	e->call = target;
	e->pid = id >> 32;
	e->tid = id;
	e->uid = bpf_get_current_uid_gid();
	e->mnt_ns = BPF_CORE_READ(task, nsproxy, mnt_ns, ns.inum);
	e->pad = 0;
	process_name((__u64 *)e->comm);
	mount_arguments(e, target);
	mount_done(e);
}
