/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Exits of the virtual processors of KVM, by virtual machine, which is the process that runs it: how long until the guest runs again, and
 * which exits go to that process.
 */
#include "shared/groups.bpf.h"
#include "shared/places.bpf.h"
#include "shared/set_table.bpf.h"

#define EINTR 4
/* Numbers above all reasons of include/uapi/linux/kvm.h: a signal came, or the call failed. */
#define KVM_RESTART 254
#define KVM_ERROR 255

/* A virtual machine, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct kvm_row {
	__u64 used; /* whether a program has counted in it */
	__u64 exits;
	__u64 exit_ns;
	__u64 user;
	__u64 user_ns;
	__u64 pad[3];
};

/* A reason for which a virtual machine exits to its process. */
struct kvm_reason {
	__u64 used;
	__u64 count;
	__u64 pad[6];
};

/* Virtual processors that are out of their guests, by thread. */
struct kvm_outside {
	__u64 keys[SET_WAYS];
	__u64 since[SET_WAYS];
	__u64 user[SET_WAYS]; /* since when it is with the process; 0: it is not */
};

struct kvm_stat {
	__u64 displaced; /* exits that gave way to another's */
	__u64 pad[7];
};

ROWS(kvm_vms, struct place_owner);
ROWS(kvm_rows, struct kvm_row);
ROWS(kvm_marks, struct mark); /* one for each row of a group */
ROWS(kvm_reasons, struct place_owner);
ROWS(kvm_reason_rows, struct kvm_reason);
ROWS(kvm_reason_mrk, struct mark);
PRIVATE(kvm_outside, struct kvm_outside);
ROWS(kvm_stats, struct kvm_stat);

const volatile __u32 kvm_mask;      /* places of virtual machines, less 1 */
const volatile __u32 kvm_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool kvm_shared;     /* it is more than one */
const volatile __u32 kvm_reason_mask;
const volatile __u32 kvm_outside_mask; /* sets, less 1 */

static __always_inline struct kvm_row *kvm_row_of(__u64 process)
{
	return place_row(&kvm_rows, &kvm_marks, kvm_mask, kvm_cpu_shift, place_index(&kvm_vms, kvm_mask, process));
}

ON(kvm_exit)
{
	const bool plain = group_plain(kvm_shared);
	__u64 id = bpf_get_current_pid_tgid();
	struct kvm_outside *set;
	struct kvm_row *r;
	bool displaced = false;
	__u32 way = 0;

	set = set_way(&kvm_outside, kvm_outside_mask, id, &way, &displaced);
	if (displaced)
		LOSE(kvm_stats, displaced);
	if (set) {
		set->user[way] = 0;
		set->since[way] = bpf_ktime_get_ns();
	}
	r = kvm_row_of(id >> 32);
	if (r)
		GROUP_SUM(r->exits, 1);
}

ON(kvm_userspace_exit, unsigned int reason, int error)
{
	__u64 id = bpf_get_current_pid_tgid(), number = reason < KVM_RESTART ? reason : KVM_ERROR;
	const bool plain = group_plain(kvm_shared);
	struct kvm_outside *set;
	struct kvm_reason *of;
	struct kvm_row *r;
	__u32 way = 0;

	if (error < 0)
		number = error == -EINTR ? KVM_RESTART : KVM_ERROR;
	set = way_find(&kvm_outside, kvm_outside_mask, id, &way);
	if (set)
		set->user[way] = bpf_ktime_get_ns();
	r = kvm_row_of(id >> 32);
	if (r)
		GROUP_SUM(r->user, 1);
	of = place_row(&kvm_reason_rows, &kvm_reason_mrk, kvm_reason_mask, ALL_CPUS,
		       place_index(&kvm_reasons, kvm_reason_mask, id >> 32 << 8 | number));
	if (of)
		ADD(of->count, 1);
}

ON(kvm_entry)
{
	__u64 id = bpf_get_current_pid_tgid(), now, since, user;
	const bool plain = group_plain(kvm_shared);
	struct kvm_outside *set;
	struct kvm_row *r;
	__u32 way = 0;

	set = way_find(&kvm_outside, kvm_outside_mask, id, &way);
	if (!set)
		return; /* it enters for the first time */
	since = set->since[way];
	user = set->user[way];
	way_free(set, way, id);
	now = bpf_ktime_get_ns();
	r = kvm_row_of(id >> 32);
	if (!r)
		return;
	GROUP_SUM(r->exit_ns, now - since);
	if (user)
		GROUP_SUM(r->user_ns, now - user);
}
