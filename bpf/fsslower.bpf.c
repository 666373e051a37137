/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Opens, reads, writes and fsyncs of files that take long, by the functions of their file systems. */
#include "shared/filter.bpf.h"
#include "shared/latest.bpf.h"
#include "shared/set_table.bpf.h"

#define NAME_LEN 256
#define EIOCBQUEUED 529 /* the call begins what ends without it */
#define IS_DENTRY 1 /* in the address of an object: it is not a file, which has none yet, but a dentry */

/* As letters in rows. */
enum slow_op {
	SLOW_OPEN = 'O',
	SLOW_READ = 'R',
	SLOW_WRITE = 'W',
	SLOW_FSYNC = 'F',
};

struct slow_file_event {
	struct event_head head;
	__u64 lat;
	__s64 offset;
	__u64 bytes;
	__u32 pid;
	__s32 err;
	__u8 comm[16];
	__u8 fs[16];
	__u8 op[8];
	__u8 name[NAME_LEN];
};

struct slow_file_row {
	__u64 all;       /* operations that took long */
	__u64 displaced; /* beginnings that gave way to others */
	__u64 pad[6];
};

/* Operations that have begun, by thread and kind: a synchronous write has an fsync inside. */
struct slow_starts {
	__u64 keys[SET_WAYS];
	__u64 since[SET_WAYS];
	__u64 objects[SET_WAYS]; /* the file, or the kiocb of reads and writes, or a dentry */
};

LATEST(fsslow)
ROWS(fsslow_rows, struct slow_file_row);
PRIVATE(fsslow_starts, struct slow_starts);
EXPORT(struct slow_file_event);

const volatile __u64 fsslow_filter;
const volatile __u64 fsslow_min; /* in nanoseconds */
const volatile __u32 fsslow_mask;

static __always_inline __u64 slow_key(enum slow_op op)
{
	return bpf_get_current_pid_tgid() << 32 | op;
}

/* The mark is added in the map: the verifier allows no arithmetic on a typed pointer. */
static __always_inline void slow_enter_marked(enum slow_op op, __u64 object, __u64 mark)
{
	bool displaced = false;
	struct slow_starts *set;
	__u32 way;

	if (!filter_wants_current(fsslow_filter))
		return;
	set = set_way(&fsslow_starts, fsslow_mask, slow_key(op), &way, &displaced);
	if (!set)
		return;
	if (displaced)
		LOSE(fsslow_rows, displaced);
	*(volatile __u64 *)&set->objects[way] = object;
	if (mark)
		ADD(set->objects[way], mark);
	set->since[way] = bpf_ktime_get_ns();
}

static __always_inline void slow_enter(enum slow_op op, __u64 object)
{
	slow_enter_marked(op, object, 0);
}

/* What is read here is read for slow operations only. The caller of the function holds the file, and has the kiocb on its stack. */
static __always_inline void slow_show(enum slow_op op, __u64 object, __u64 lat, __s64 ret)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct slow_file_event *e = EVENT(fsslow, struct slow_file_event, pid);
	struct file *file = (void *)object;
	struct dentry *dentry;
	const void *name;
	__s64 at = 0;

	if (!e)
		return;
	if (op == SLOW_READ || op == SLOW_WRITE) {
		struct kiocb *iocb = (void *)object;

		file = BPF_CORE_READ(iocb, ki_filp);
		at = BPF_CORE_READ(iocb, ki_pos);
	}
	e->lat = lat;
	e->bytes = op != SLOW_OPEN && ret > 0 ? ret : 0;
	/* The position is behind what was moved: of a file that is appended to, only then where it went. */
	e->offset = at - (__s64)e->bytes;
	e->pid = pid;
	e->err = ret < 0 ? -ret : 0;
	*(__u64 *)e->op = op;
	process_name((__u64 *)e->comm);
	if (object & IS_DENTRY)
		dentry = (void *)(object & ~IS_DENTRY);
	else
		dentry = BPF_CORE_READ(file, f_path.dentry);
	name = BPF_CORE_READ(dentry, d_sb, s_type, name);
	if (bpf_probe_read_kernel_str(e->fs, sizeof(e->fs), name) < 0)
		e->fs[0] = 0;
	name = BPF_CORE_READ(dentry, d_name.name);
	if (bpf_probe_read_kernel_str(e->name, sizeof(e->name), name) < 0)
		e->name[0] = 0;
	fsslow_done(e);
}

static __always_inline void slow_leave(enum slow_op op, __s64 ret)
{
	__u64 key = slow_key(op), object, lat;
	struct slow_starts *set;
	struct slow_file_row *r;
	__u32 way;

	set = way_find(&fsslow_starts, fsslow_mask, key, &way);
	if (!set)
		return;
	lat = bpf_ktime_get_ns() - set->since[way];
	object = set->objects[way];
	way_free(set, way, key);
	if (lat < fsslow_min || ret == -EIOCBQUEUED)
		return;
	r = cpu_row(&fsslow_rows);
	if (r)
		ADD(r->all, 1);
	slow_show(op, object, lat, ret);
}

/* An argument of the function that was entered. */
#define ARGUMENT(nth) (raw ? (__u64)PT_REGS_PARM##nth((struct pt_regs *)ctx) : ((__u64 *)ctx)[nth - 1])

ON_SPAN(ext4_file_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(ext4_file_read_iter, 2, void *first, long ret, slow_enter(SLOW_READ, ARGUMENT(1)), slow_leave(SLOW_READ, ret))
ON_SPAN(ext4_file_write_iter, 2, void *first, long ret, slow_enter(SLOW_WRITE, ARGUMENT(1)), slow_leave(SLOW_WRITE, ret))
ON_SPAN(ext4_sync_file, 4, void *first, int ret, slow_enter(SLOW_FSYNC, ARGUMENT(1)), slow_leave(SLOW_FSYNC, ret))
ON_SPAN(xfs_file_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(xfs_file_read_iter, 2, void *first, long ret, slow_enter(SLOW_READ, ARGUMENT(1)), slow_leave(SLOW_READ, ret))
ON_SPAN(xfs_file_write_iter, 2, void *first, long ret, slow_enter(SLOW_WRITE, ARGUMENT(1)), slow_leave(SLOW_WRITE, ret))
ON_SPAN(xfs_file_fsync, 4, void *first, int ret, slow_enter(SLOW_FSYNC, ARGUMENT(1)), slow_leave(SLOW_FSYNC, ret))
ON_SPAN(btrfs_file_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(btrfs_file_read_iter, 2, void *first, long ret, slow_enter(SLOW_READ, ARGUMENT(1)), slow_leave(SLOW_READ, ret))
ON_SPAN(btrfs_file_write_iter, 2, void *first, long ret, slow_enter(SLOW_WRITE, ARGUMENT(1)), slow_leave(SLOW_WRITE, ret))
ON_SPAN(btrfs_sync_file, 4, void *first, int ret, slow_enter(SLOW_FSYNC, ARGUMENT(1)), slow_leave(SLOW_FSYNC, ret))
ON_SPAN(zpl_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(zpl_iter_read, 2, void *first, long ret, slow_enter(SLOW_READ, ARGUMENT(1)), slow_leave(SLOW_READ, ret))
ON_SPAN(zpl_iter_write, 2, void *first, long ret, slow_enter(SLOW_WRITE, ARGUMENT(1)), slow_leave(SLOW_WRITE, ret))
ON_SPAN(zpl_fsync, 4, void *first, int ret, slow_enter(SLOW_FSYNC, ARGUMENT(1)), slow_leave(SLOW_FSYNC, ret))
ON_SPAN(nfs_file_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(nfs4_file_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(nfs_atomic_open, 5, void *first, int ret, slow_enter_marked(SLOW_OPEN, ARGUMENT(2), IS_DENTRY), slow_leave(SLOW_OPEN, ret))
ON_SPAN(nfs_file_read, 2, void *first, long ret, slow_enter(SLOW_READ, ARGUMENT(1)), slow_leave(SLOW_READ, ret))
ON_SPAN(nfs_file_write, 2, void *first, long ret, slow_enter(SLOW_WRITE, ARGUMENT(1)), slow_leave(SLOW_WRITE, ret))
ON_SPAN(nfs_file_fsync, 4, void *first, int ret, slow_enter(SLOW_FSYNC, ARGUMENT(1)), slow_leave(SLOW_FSYNC, ret))
ON_SPAN(f2fs_file_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(f2fs_file_read_iter, 2, void *first, long ret, slow_enter(SLOW_READ, ARGUMENT(1)), slow_leave(SLOW_READ, ret))
ON_SPAN(f2fs_file_write_iter, 2, void *first, long ret, slow_enter(SLOW_WRITE, ARGUMENT(1)), slow_leave(SLOW_WRITE, ret))
ON_SPAN(f2fs_sync_file, 4, void *first, int ret, slow_enter(SLOW_FSYNC, ARGUMENT(1)), slow_leave(SLOW_FSYNC, ret))
ON_SPAN(fuse_open, 2, void *first, int ret, slow_enter(SLOW_OPEN, ARGUMENT(2)), slow_leave(SLOW_OPEN, ret))
ON_SPAN(fuse_atomic_open, 5, void *first, int ret, slow_enter_marked(SLOW_OPEN, ARGUMENT(2), IS_DENTRY), slow_leave(SLOW_OPEN, ret))
ON_SPAN(fuse_file_read_iter, 2, void *first, long ret, slow_enter(SLOW_READ, ARGUMENT(1)), slow_leave(SLOW_READ, ret))
ON_SPAN(fuse_file_write_iter, 2, void *first, long ret, slow_enter(SLOW_WRITE, ARGUMENT(1)), slow_leave(SLOW_WRITE, ret))
ON_SPAN(fuse_fsync, 4, void *first, int ret, slow_enter(SLOW_FSYNC, ARGUMENT(1)), slow_leave(SLOW_FSYNC, ret))
