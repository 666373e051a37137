/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Calls of NFS and other services of RPC, by operation, with the times that the kernel has measured. The structures of the module sunrpc
 * are in its own types, which the agent reads: where the name of an operation is comes as constants.
 */
#include "shared/groups.bpf.h"
#include "shared/places.bpf.h"

/* An operation, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct nfs_row {
	__u64 used; /* whether a program has counted in it */
	struct fine_hist total;
	struct fine_hist rtt;
	struct fine_hist backlog;
	__u64 pad[4];
};

ROWS(nfs_operations, struct place_owner);
ROWS(nfs_calls, struct nfs_row);
ROWS(nfs_marks, struct mark); /* one for each row of a group */

const volatile __u32 nfs_mask;      /* places of operations, less 1 */
const volatile __u32 nfs_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool nfs_shared;     /* it is more than one */
const volatile bool nfs_named;      /* the next two are known */
const volatile __u32 nfs_procedure; /* offset in struct rpc_task of the pointer to the procedure */
const volatile __u32 nfs_name;      /* offset there of the pointer to its name */

/* Operations without a name are one. */
static __always_inline __u64 nfs_operation(__u64 task)
{
	__u64 procedure = 0;
	const char *name = NULL;

	if (!nfs_named)
		return 1ULL << 32;
	bpf_probe_read_kernel(&procedure, sizeof(procedure), (void *)(task + nfs_procedure));
	bpf_probe_read_kernel(&name, sizeof(name), (void *)(procedure + nfs_name));
	return 1ULL << 32 | name_hash(name);
}

/* Times are of the kernel's clock, in nanoseconds; one that it has not taken is 0 or below. */
ON(rpc_stats_latency, void *task, long backlog, long rtt, long execute)
{
	const bool plain = group_plain(nfs_shared);
	__u64 number = 0, waited = backlog > 0 ? backlog : 0, under_way = rtt > 0 ? rtt : 0, all = execute > 0 ? execute : 0;
	struct nfs_row *r;

	bpf_probe_read_kernel(&number, sizeof(number), ctx);
	r = place_row(&nfs_calls, &nfs_marks, nfs_mask, nfs_cpu_shift, place_index(&nfs_operations, nfs_mask, nfs_operation(number)));
	if (!r)
		return;
	GROUP_TIME(r->total, all);
	GROUP_TIME(r->rtt, under_way);
	GROUP_TIME(r->backlog, waited);
}
