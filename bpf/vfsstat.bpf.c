/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Operations of the virtual file system. A thread is in one read, write or open at a time, and in an fsync inside of a synchronous write:
 * the beginnings of both are with its counters.
 */
#include "shared/filter.bpf.h"
#include "shared/fine.bpf.h"

/* include/linux/fs.h */
#define FMODE_CREATED 0x100000
#define FMODE_BACKING 0x2000000 /* a file below one of overlayfs or fuse (6.5), whose operation counts */

enum vfs_op {
	VFS_READ,
	VFS_WRITE,
	VFS_FSYNC,
	VFS_OPEN,
	VFS_OPS,
};

struct vfs_row {
	__u64 created;
	__u64 unlinked;
	__u64 mkdirs;
	__u64 rmdirs;
	__u64 unseen;     /* ends without a beginning */
	__u64 unreturned; /* beginnings whose end was not seen before the thread's next */
	__u64 bytes[2];
	__u64 sizes[2][HIST_BUCKETS]; /* of reads and writes by powers of two of bytes */
	struct fine_hist times[VFS_OPS];
	__u64 pad[4];
};

/* Of a thread: what the agent adds up comes first. */
struct vfs_counts {
	struct {
		__u64 count;
		__u64 bytes;
		__u64 ns;
	} moved[2];
	__u64 since[2]; /* when its fsync began, or its other operation; 0: it is in none. BY_CALL: it is in the system call */
};

/*
 * Kernels have vfs_fsync_range inlined in the system calls, as 5.10 in fdatasync and 7.2 in both. So these are hooked as well, and what is
 * called inside of them is theirs.
 */
#define BY_CALL 1
#define EBADF 9

ROWS(vfs_rows, struct vfs_row);

const volatile __u64 vfs_filter;

#define COUNTS struct vfs_counts
#define STEM vfs
#include "shared/by_process.bpf.h"

static __always_inline void vfs_begin(enum vfs_op op, __u64 by_call)
{
	struct vfs_counts *counts;
	__u64 *since;

	if (!filter_wants_current(vfs_filter))
		return;
	counts = OWN(counts_of_thread)();
	if (!counts)
		return;
	since = &counts->since[op != VFS_FSYNC];
	if (op == VFS_FSYNC && !by_call && *since & BY_CALL)
		return;
	if (*since)
		LOSE(vfs_rows, unreturned);
	*since = op == VFS_FSYNC ? (bpf_ktime_get_ns() & ~BY_CALL) | by_call : bpf_ktime_get_ns();
}

static __always_inline void vfs_end(enum vfs_op op, __u64 by_call, __s64 ret)
{
	__u64 id = bpf_get_current_pid_tgid(), ns, *since;
	struct vfs_row *r = cpu_row(&vfs_rows);
	struct vfs_counts *counts;
	__u32 place;

	if (!r || !OWN(known)(id, &place))
		return;
	counts = row(&vfs_counts, place);
	if (!counts)
		return;
	since = &counts->since[op != VFS_FSYNC];
	if (!*since) {
		if (!vfs_filter)
			ADD(r->unseen, 1);
		return;
	}
	if (op == VFS_FSYNC && (*since & BY_CALL) != by_call)
		return;
	ns = bpf_ktime_get_ns() - *since;
	*since = 0;
	if (by_call && ret == -EBADF)
		return;
	FINE_COUNT(r->times[op], ns);
	if (op > VFS_WRITE)
		return;
	counts->moved[op].count++;
	counts->moved[op].ns += ns;
	if (ret >= 0) {
		__u64 bucket = log2_bucket(ret, ns);

		counts->moved[op].bytes += ret;
		SUM(r->bytes[op], ret);
		COUNT(r->sizes[op][bucket]);
	}
}

#define VFS_COUNT(what)                                                                                               \
	do {                                                                                                          \
		struct vfs_row *r_ = cpu_row(&vfs_rows);                                                              \
                                                                                                                       \
		if (r_ && filter_wants_current(vfs_filter))                                                           \
			COUNT(r_->what);                                                                              \
	} while (0)

ON_SPAN(vfs_read, 4, struct file *file, long ret, vfs_begin(VFS_READ, 0), vfs_end(VFS_READ, 0, ret))
ON_SPAN(vfs_write, 4, struct file *file, long ret, vfs_begin(VFS_WRITE, 0), vfs_end(VFS_WRITE, 0, ret))

ON_ENTRY(vfs_fsync_range, struct file *file)
{
	if (!(GET(file, f_mode) & FMODE_BACKING))
		vfs_begin(VFS_FSYNC, 0);
}

ON_RETURN(vfs_fsync_range, 4, int ret)
{
	if (raw || !(((struct file *)((__u64 *)ctx)[0])->f_mode & FMODE_BACKING))
		vfs_end(VFS_FSYNC, 0, ret);
}

ON_SPAN(__x64_sys_fsync, 1, struct pt_regs *regs, long ret, vfs_begin(VFS_FSYNC, BY_CALL), vfs_end(VFS_FSYNC, BY_CALL, ret))
ON_SPAN(__x64_sys_fdatasync, 1, struct pt_regs *regs, long ret, vfs_begin(VFS_FSYNC, BY_CALL), vfs_end(VFS_FSYNC, BY_CALL, ret))
ON_SPAN(__arm64_sys_fsync, 1, struct pt_regs *regs, long ret, vfs_begin(VFS_FSYNC, BY_CALL), vfs_end(VFS_FSYNC, BY_CALL, ret))
ON_SPAN(__arm64_sys_fdatasync, 1, struct pt_regs *regs, long ret, vfs_begin(VFS_FSYNC, BY_CALL), vfs_end(VFS_FSYNC, BY_CALL, ret))

/* A file that open makes is marked before it is opened here. */
ON_ENTRY(vfs_open, const struct path *path, struct file *file)
{
	__u32 mode = GET(file, f_mode);

	if (mode & FMODE_BACKING)
		return;
	if (mode & FMODE_CREATED)
		VFS_COUNT(created);
	vfs_begin(VFS_OPEN, 0);
}

ON_RETURN(vfs_open, 2, int ret)
{
	if (raw || !(((struct file *)((__u64 *)ctx)[1])->f_mode & FMODE_BACKING))
		vfs_end(VFS_OPEN, 0, ret);
}

/* In vfs_unlink and the like, which the compiler may place in the system calls, as 5.10's does with vfs_rmdir. */
ON_ENTRY(security_inode_unlink, void *first)
{
	VFS_COUNT(unlinked);
}

ON_ENTRY(security_inode_mkdir, void *first)
{
	VFS_COUNT(mkdirs);
}

ON_ENTRY(security_inode_rmdir, void *first)
{
	VFS_COUNT(rmdirs);
}
