/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Successful execs by the new program's command name. */
#include "shared/owned.bpf.h"
#include "shared/siphash.bpf.h"

#define EXEC_PLACES 16

struct exec_row {
	__u64 comm[2];
	__u64 claims;
	__u64 count;
};

struct exec_stat {
	__u64 lost; /* execs whose name found no place */
	__u64 pad[7];
};

ROWS(exec_rows, struct exec_row);
ROWS(exec_stats, struct exec_stat);

/* Of the rows that programs take; those behind them are the agent's. */
const volatile __u32 exec_mask;

static __always_inline bool is_named(struct exec_row *r, __u64 comm[2])
{
	return r->comm[0] == comm[0] && r->comm[1] == comm[1];
}

static __always_inline struct exec_row *exec_named(__u64 comm[2], __u32 hash)
{
	struct exec_row *r;
	__u32 place;

	OWNED_ROW(r, place, &exec_rows, EXEC_PLACES, (hash + nth) & exec_mask, is_named(r, comm), claim(&r->claims), {
		r->comm[1] = comm[1];
		r->comm[0] = comm[0];
	});
	return r;
}

ON(sched_process_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	__u64 comm[2] = {};
	struct exec_row *r;
	struct sip sip;

	bpf_get_current_comm(comm, sizeof(comm));
	sip_begin(&sip);
	sip_add(&sip, comm[0]);
	sip_add(&sip, comm[1]);
	r = exec_named(comm, sip_end(&sip));
	if (r)
		ADD(r->count, 1);
	else
		LOSE(exec_stats, lost);
}
