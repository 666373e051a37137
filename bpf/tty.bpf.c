/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Bytes that processes read from terminals and write to them, by terminal and session; never what they are. */
#include "shared/places.bpf.h"
#include "shared/set_table.bpf.h"

/* include/uapi/linux/major.h */
#define PTY_MASTER_MAJOR 2
#define UNIX98_PTY_MASTER_MAJOR 128
#define UNIX98_PTY_SLAVE_MAJOR 136

/* The number of a terminal and session (src/modules/tty.rs). */
#define SESSION_SHIFT 41 /* of the process that leads it */
#define UPPER_SHIFT 21   /* of the instance of devpts, or of the major number */
#define LOWER_SHIFT 1    /* of the index there, or of the minor number */
#define MINORS 0xfffff
#define IN_DEVPTS 1

enum tty_op {
	TTY_READ,
	TTY_WRITE,
	TTY_OPS,
};

struct tty_counts {
	__u64 used; /* whether a program has counted in it */
	__u64 calls[TTY_OPS];
	__u64 bytes[TTY_OPS];
	__u64 pad[3];
};

struct tty_stat {
	__u64 unreturned; /* calls whose return was not seen */
	__u64 pad[7];
};

ROWS(tty_owners, struct place_owner);
ROWS(tty_counts, struct tty_counts);
ROWS(tty_marks, struct mark);
ROWS(tty_stats, struct tty_stat);
PRIVATE(tty_calls, struct set_numbers); /* where a probe is told of no arguments at the return: terminals by thread */

const volatile __u32 tty_mask;       /* places of owners, less 1 */
const volatile __u32 tty_calls_mask; /* sets, less 1 */

/* Until 5.15. */
struct tty_struct___session {
	struct pid *session;
} __attribute__((preserve_access_index));

/* 0 for the other side of a pseudo-terminal, where what is read is what others have written. The caller holds the file. */
static __always_inline __u64 tty_number(struct kiocb *iocb)
{
	struct tty_file_private *opened = BPF_CORE_READ(iocb, ki_filp, private_data);
	struct tty_struct *tty = BPF_CORE_READ(opened, tty);
	struct tty_driver *driver = BPF_CORE_READ(tty, driver);
	__u64 index = BPF_CORE_READ(tty, index), major = BPF_CORE_READ(driver, major), number;
	struct pid *session;

	if (!driver || major == PTY_MASTER_MAJOR || major == UNIX98_PTY_MASTER_MAJOR)
		return 0;
	if (major == UNIX98_PTY_SLAVE_MAJOR) {
		struct dentry *dentry = BPF_CORE_READ(tty, driver_data);
		__u64 instance = BPF_CORE_READ(dentry, d_sb, s_dev) & MINORS;

		number = instance << UPPER_SHIFT | (index & MINORS) << LOWER_SHIFT | IN_DEVPTS;
	} else {
		number = major << UPPER_SHIFT | ((BPF_CORE_READ(driver, minor_start) + index) & MINORS) << LOWER_SHIFT;
	}
	if (bpf_core_field_exists(tty->ctrl.session))
		session = BPF_CORE_READ(tty, ctrl.session);
	else
		session = BPF_CORE_READ((struct tty_struct___session *)tty, session);
	if (session)
		number |= (__u64)BPF_CORE_READ(session, numbers[0].nr) << SESSION_SHIFT;
	return number;
}

static __always_inline void tty_call(struct kiocb *iocb)
{
	__u64 thread = bpf_get_current_pid_tgid(), number = tty_number(iocb), *called;
	bool displaced = false;
	__u32 way;

	if (!number)
		return;
	if (way_find(&tty_calls, tty_calls_mask, thread, &way))
		LOSE(tty_stats, unreturned);
	called = set_number(&tty_calls, tty_calls_mask, thread, &displaced);
	if (displaced)
		LOSE(tty_stats, unreturned);
	if (called)
		*called = number;
}

static __always_inline void tty_moved(enum tty_op op, __u64 number, __s64 ret)
{
	struct tty_counts *counts;

	if (!number || ret < 0)
		return;
	counts = place_row(&tty_counts, &tty_marks, tty_mask, ALL_CPUS, place_index(&tty_owners, tty_mask, number));
	if (!counts)
		return;
	ADD(counts->calls[op], 1);
	ADD(counts->bytes[op], ret);
}

static __always_inline void tty_return(const bool raw, void *ctx, enum tty_op op, __s64 ret)
{
	__u64 number;

	if (!raw)
		tty_moved(op, tty_number((struct kiocb *)((__u64 *)ctx)[0]), ret);
	else if (set_take(&tty_calls, tty_calls_mask, bpf_get_current_pid_tgid(), &number))
		tty_moved(op, number, ret);
}

ON_SPAN(tty_read, 2, struct kiocb *iocb, long ret, tty_call(iocb), tty_return(raw, ctx, TTY_READ, ret))
ON_SPAN(tty_write, 2, struct kiocb *iocb, long ret, tty_call(iocb), tty_return(raw, ctx, TTY_WRITE, ret))
