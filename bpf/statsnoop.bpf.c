/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What processes ask of files by name: stat, lstat, fstatat and statx, and statfs of file systems. */
#include "shared/filter.bpf.h"
#include "shared/latest.bpf.h"
#include "shared/set_table.bpf.h"

#define NAME_SIZE 256

struct stat_event {
	struct event_head head;
	__u32 pid;
	__u32 uid;
	__s32 ret; /* 0 or a negative error */
	__u32 pad;
	__u8 comm[16];
	__u8 name[NAME_SIZE];
};

struct stat_row {
	__u64 all;
	__u64 failed;
	__u64 unseen; /* returns whose call was not seen */
	__u64 pad[5];
};

LATEST(stat)
ROWS(stat_rows, struct stat_row);
PRIVATE(stat_calls, struct set_numbers); /* where a probe is told of no arguments at the return: names by thread */
EXPORT(struct stat_event);

const volatile __u64 stat_filter;
const volatile bool stat_failed; /* calls that succeed have no rows */
const volatile __u32 stat_calls_mask;

/* A name in user space, or since 5.18 the kernel's own copy. */
static __always_inline void stat_read_name(struct stat_event *e, __u64 name)
{
	__s64 length;

	if ((__s64)name < 0)
		length = bpf_probe_read_kernel_str(e->name, NAME_SIZE, BPF_CORE_READ((struct filename *)name, name));
	else
		length = bpf_probe_read_user_str(e->name, NAME_SIZE, (void *)name);
	if (length < 0)
		e->name[0] = 0;
}

static __always_inline void stat_called(__u64 name)
{
	bool displaced = false;
	__u64 *called;

	if (!filter_wants_current(stat_filter))
		return;
	called = set_number(&stat_calls, stat_calls_mask, bpf_get_current_pid_tgid(), &displaced);
	if (displaced)
		LOSE(stat_rows, unseen);
	if (called)
		*called = name;
}

static __always_inline void stat_returned(__u64 name, __s32 ret)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct stat_row *r = cpu_row(&stat_rows);
	struct stat_event *e;

	if (r) {
		COUNT(r->all);
		if (ret < 0)
			COUNT(r->failed);
	}
	if (ret >= 0 && stat_failed)
		return;
	e = EVENT(stat, struct stat_event, pid);
	if (!e)
		return;
	e->pid = pid;
	e->uid = bpf_get_current_uid_gid();
	e->ret = ret;
	e->pad = 0;
	process_name((__u64 *)e->comm);
	stat_read_name(e, name);
	stat_done(e);
}

/* By fexit the argument, which stands at `at`, is there at the return. */
static __always_inline void stat_return(const bool raw, void *at, __s32 ret)
{
	__u64 name = 0;

	if (!raw) {
		if (!filter_wants_current(stat_filter))
			return;
		bpf_probe_read_kernel(&name, sizeof(name), at);
	} else if (!set_take(&stat_calls, stat_calls_mask, bpf_get_current_pid_tgid(), &name)) {
		if (!stat_filter)
			LOSE(stat_rows, unseen);
		return;
	}
	stat_returned(name, ret);
}

ON_ENTRY(vfs_statx, int directory, void *name)
{
	stat_called((__u64)name);
}

ON_RETURN(vfs_statx, 5, int ret)
{
	stat_return(raw, ctx + 8, ret);
}

ON_ENTRY(user_statfs, void *name)
{
	stat_called((__u64)name);
}

ON_RETURN(user_statfs, 2, int ret)
{
	stat_return(raw, ctx, ret);
}
