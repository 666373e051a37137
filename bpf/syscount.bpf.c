/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * System calls by number. Calls are counted when they begin, since only then each is seen once: a fork returns twice,
 * exit_group never. Calls that fail, and the time calls take, are known when they return.
 */
#include "shared/filter.bpf.h"
#include "shared/syscall.bpf.h"
#include "shared/set_table.bpf.h"

#define CALLS 512

struct syscall_row {
	struct {
		__u64 calls;
		__u64 timed; /* calls in ns */
		__u64 ns;
	} cells[CALLS];
};

struct syscall_stat {
	__u64 foreign;   /* calls with the numbers of another architecture, or beyond the table */
	__u64 displaced; /* calls whose start gave way to that of another thread */
	__u64 pad[6];
};

ROWS(syscall_rows, struct syscall_row);  /* by CPU */
ROWS(syscall_procs, struct syscall_row); /* by the slot of the process */
ROWS(syscall_stats, struct syscall_stat);
PRIVATE(syscall_starts, struct set_numbers);

const volatile __u64 syscall_filter;
const volatile bool syscall_details;
const volatile bool syscall_timed;
const volatile bool syscall_failed; /* only calls that return an error */
const volatile __u32 syscall_errno; /* only this error; 0: any */
const volatile __u32 syscall_start_mask;

/* With the number: a thread that was killed in a call, and whose id is used again, returns from another one first. */
static __always_inline __u64 syscall_key(__u32 tid, __u64 number)
{
	return (__u64)tid << 16 | number;
}

/* Whether the current process counts. */
static __always_inline bool syscall_wanted(__u32 *slot)
{
	struct filter_member *member;

	if (!syscall_filter)
		return true;
	member = filter_member(syscall_filter, bpf_get_current_pid_tgid() >> 32);
	if (!member)
		return false;
	*slot = member->slot - 1;
	return true;
}

static __always_inline bool syscall_is_foreign(const bool raw, struct pt_regs *regs, __s64 number)
{
	return number < 0 || number >= CALLS || syscall_is_compat(raw, regs);
}

static __always_inline void syscall_foreign(void)
{
	struct syscall_stat *stat = cpu_row(&syscall_stats);

	if (stat)
		COUNT(stat->foreign);
}

static __always_inline void syscall_count(__u64 number, __u32 slot)
{
	struct syscall_row *r = cpu_row(&syscall_rows);

	BOUND(number, 511);
	if (r)
		COUNT(r->cells[number].calls);
	if (!syscall_details)
		return;
	r = row(&syscall_procs, slot);
	if (r)
		ADD(r->cells[number].calls, 1);
}

static __always_inline void syscall_add_time(__u64 number, __u32 slot, __u64 ns)
{
	struct syscall_row *r = cpu_row(&syscall_rows);

	BOUND(number, 511);
	if (r) {
		COUNT(r->cells[number].timed);
		SUM(r->cells[number].ns, ns);
	}
	if (!syscall_details)
		return;
	r = row(&syscall_procs, slot);
	if (r) {
		ADD(r->cells[number].timed, 1);
		ADD(r->cells[number].ns, ns);
	}
}

ON(sys_enter, struct pt_regs *regs, long id)
{
	struct syscall_stat *stat;
	__u32 slot = ~0;

	if (!syscall_wanted(&slot))
		return;
	if (syscall_is_foreign(raw, regs, id)) {
		syscall_foreign();
		return;
	}
	if (!syscall_failed)
		syscall_count(id, slot);
	if (!syscall_timed || id == NR_exit || id == NR_exit_group)
		return;
	if (!set_begins(&syscall_starts, syscall_start_mask, syscall_key(bpf_get_current_pid_tgid(), id)))
		return;
	stat = cpu_row(&syscall_stats);
	if (stat)
		COUNT(stat->displaced);
}

/* The time since the current thread began this call; negative if that was not seen. */
static __always_inline __s64 syscall_time(__u32 tid, __s64 *number)
{
	__u64 now = bpf_ktime_get_ns(), since;

	/* The return from a signal handler shows no number, since the thread goes on where it was interrupted. */
	if (*number < 0)
		*number = NR_rt_sigreturn;
	if (!set_take(&syscall_starts, syscall_start_mask, syscall_key(tid, *number), &since))
		return -1;
	return now - since;
}

ON(sys_exit, struct pt_regs *regs, long ret)
{
	__s64 number, ns = -1;
	__u32 slot = ~0;

	if (!syscall_timed && !syscall_failed)
		return; /* attached for another module */
	number = syscall_number(raw, regs);
	if (syscall_timed)
		ns = syscall_time(bpf_get_current_pid_tgid(), &number);
	if (syscall_failed && (syscall_errno ? ret != -(long)syscall_errno : ret >= 0 || ret < -MAX_ERRNO))
		return;
	if (!syscall_failed && ns < 0)
		return;
	if ((syscall_details || ns < 0) && !syscall_wanted(&slot))
		return;
	if (ns < 0 && syscall_is_foreign(raw, regs, number)) {
		if (!syscall_timed)
			syscall_foreign();
		return;
	}
	if (syscall_failed)
		syscall_count(number, slot);
	if (ns >= 0)
		syscall_add_time(number, slot, ns);
}
