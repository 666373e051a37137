/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Processes that the kernel kills for want of memory. */
#include "shared/places.bpf.h"
#include "shared/latest.bpf.h"

struct oom_event {
	struct event_head head; /* the cgroup is that of the victim */
	__u64 pages;
	__u64 rss; /* in pages */
	__u32 limited;
	__u32 known; /* pages and limited are */
	__u32 fpid;
	__u32 tpid;
	__u32 uid;
	__u32 has_task; /* name, user and size of the victim are known */
	__u8 fcomm[16];
	__u8 tcomm[16];
};

struct oom_row {
	__u64 kills;
	__u64 pad[7];
};

struct oom_group {
	__u64 used; /* whether a program has counted in it */
	__u64 kills;
	__u64 pad[6];
};

/* What the current process is short of. A lock of the kernel (oom_lock) lets one process at a time look for a victim. */
struct oom_domain {
	__u64 task; /* the thread that looks for a victim */
	__u64 pages;
	__u64 limited;
};

LATEST(oom)
ROWS(oom_rows, struct oom_row);
ROWS(oom_owners, struct place_owner);
ROWS(oom_groups, struct oom_group);
ROWS(oom_marks, struct mark);
PRIVATE(oom_domain, struct oom_domain);
EXPORT(struct oom_event);

const volatile __u32 oom_mask; /* places of owners, less 1 */

/* The kinds of pages that a process has in memory: of files, anonymous and shared ones. */
#define MM_FILEPAGES 0
#define MM_ANONPAGES 1
#define MM_SHMEMPAGES 3

#define OOM_RESIDENT(mm, kind)                                                                                        \
	({                                                                                                            \
		__s64 pages_;                                                                                         \
		if (bpf_core_field_exists(((struct mm_struct___percpu *)0)->rss_stat[0].count))                       \
			pages_ = BPF_CORE_READ((struct mm_struct___percpu *)(mm), rss_stat[kind].count);              \
		else                                                                                                  \
			pages_ = BPF_CORE_READ(mm, rss_stat.count[kind].counter);                                     \
		pages_ > 0 ? pages_ : 0;                                                                              \
	})

static __always_inline void oom_count(__u64 cgroup)
{
	struct oom_row *r = cpu_row(&oom_rows);
	struct oom_group *group =
		place_row(&oom_groups, &oom_marks, oom_mask, ALL_CPUS, place_index(&oom_owners, oom_mask, cgroup));

	if (r)
		ADD(r->kills, 1);
	if (group)
		ADD(group->kills, 1);
}

ON_ENTRY(oom_kill_process, struct oom_control *oc)
{
	struct oom_domain *domain = row(&oom_domain, 0);

	if (!domain)
		return;
	domain->pages = GET(oc, totalpages);
	domain->limited = !!GET(oc, memcg);
	domain->task = bpf_get_current_pid_tgid();
}

/* The victim comes as a task since 6.8, and in older kernels of distributions; else as an id, and its cgroup is not known. */
FEATURE(oom_task, bpf_core_field_exists(((struct trace_event_raw_mark_victim *)0)->uid))

ON(mark_victim, struct task_struct *task)
{
	struct oom_domain *domain = row(&oom_domain, 0);
	__u64 me = bpf_get_current_pid_tgid(), cgroup = 0;
	struct oom_event *e;
	struct mm_struct *mm;

	if (feature__oom_task())
		cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	oom_count(cgroup);
	e = EVENT(oom, struct oom_event, cgroup);
	if (!e)
		return;
	e->head.cgroup = cgroup;
	e->fpid = me >> 32;
	process_name((__u64 *)e->fcomm);
	e->known = domain && domain->task == me;
	e->pages = e->known ? domain->pages : 0;
	e->limited = e->known && domain->limited;
	e->tcomm[0] = 0;
	e->rss = 0;
	e->uid = 0;
	e->has_task = feature__oom_task();
	if (feature__oom_task()) {
		e->tpid = BPF_CORE_READ(task, tgid);
		e->uid = BPF_CORE_READ(task, cred, uid.val);
		BPF_CORE_READ_INTO(&e->tcomm, task, group_leader, comm);
		mm = BPF_CORE_READ(task, mm);
		e->rss = OOM_RESIDENT(mm, MM_FILEPAGES) + OOM_RESIDENT(mm, MM_ANONPAGES) + OOM_RESIDENT(mm, MM_SHMEMPAGES);
	} else {
		e->tpid = (__u64)task;
	}
	if (domain)
		domain->task = 0;
	oom_done(e);
}
