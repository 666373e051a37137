/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP and UDP calls and bytes by cgroup of v2: that of the task which sends or receives, whatever network it uses. */
#include "shared/places.bpf.h"
#include "shared/groups.bpf.h"

/* A cgroup's traffic, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct cgn_row {
	__u64 used; /* whether a program has counted in it */
	__u64 calls[4]; /* by enum net_cell */
	__u64 bytes[4];
	__u64 packets[2]; /* that came, and that went */
	__u64 packet_bytes[2];
	__u64 pad[3];
};

/* Row 0 of each group of CPUs is for tasks of cgroups that found no place. */
ROWS(cgn_owners, struct place_owner);
ROWS(cgn_rows, struct cgn_row);
ROWS(cgn_marks, struct mark); /* one for each row */

const volatile __u32 cgn_mask; /* places of owners, less 1 */
const volatile __u32 cgn_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool cgn_shared; /* it is more than one */
const volatile bool cgn_packets; /* packets count */

static __always_inline void OWN(moved)(__u64 cell, __s64 bytes)
{
	const bool plain = group_plain(cgn_shared);
	__u32 index = place_index(&cgn_owners, cgn_mask, bpf_get_current_cgroup_id());
	struct cgn_row *r = place_row(&cgn_rows, &cgn_marks, cgn_mask, cgn_cpu_shift, index);

	BOUND(cell, 3);
	if (!r)
		return;
	GROUP_SUM(r->calls[cell], 1);
	if (bytes > 0)
		GROUP_SUM(r->bytes[cell], bytes);
}

/* One program may interrupt another here, so adds are locked. A socket that only waits for the end of a connection has no cgroup: 0. */
static __always_inline void OWN(passed)(struct __sk_buff *skb, __u32 way)
{
	struct cgn_row *r;
	__u32 index;

	if (!cgn_packets)
		return;
	index = place_index(&cgn_owners, cgn_mask, bpf_skb_cgroup_id(skb));
	r = place_row(&cgn_rows, &cgn_marks, cgn_mask, cgn_cpu_shift, index);
	if (!r)
		return;
	ADD(r->packets[way], 1);
	ADD(r->packet_bytes[way], skb->len);
}

ON_PACKET(ingress)
{
	OWN(passed)(skb, 0);
}

ON_PACKET(egress)
{
	OWN(passed)(skb, 1);
}

#include "shared/traffic.bpf.h"
