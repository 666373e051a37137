/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The kernel types the programs read, with only the fields they read: offsets come from the running kernel's BTF (CO-RE),
 * so no vmlinux.h of the build machine is involved. A field that moved has a flavour (struct name___suffix) beside it.
 */
#pragma once

/* bpf_tracing.h: use the kernel's names of the registers, not those of user space headers */
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
typedef int pid_t;

#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_CGROUP_ARRAY = 8,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LRU_PERCPU_HASH = 10,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_DEVMAP = 14,
	BPF_MAP_TYPE_SOCKMAP = 15,
	BPF_MAP_TYPE_CPUMAP = 16,
	BPF_MAP_TYPE_XSKMAP = 17,
	BPF_MAP_TYPE_SOCKHASH = 18,
	BPF_MAP_TYPE_CGROUP_STORAGE = 19,
	BPF_MAP_TYPE_REUSEPORT_SOCKARRAY = 20,
	BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE = 21,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_STACK = 23,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_DEVMAP_HASH = 25,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_INODE_STORAGE = 28,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_MAP_TYPE_BLOOM_FILTER = 30,
	BPF_MAP_TYPE_CGRP_STORAGE = 32,
};

/* include/uapi/linux/bpf.h */
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_MMAPABLE = 1U << 10,
	BPF_RB_NO_WAKEUP = 1U << 0,
	BPF_RB_FORCE_WAKEUP = 1U << 1,
	BPF_RB_AVAIL_DATA = 0,
};

/* include/uapi/linux/sched.h */
#define CLONE_VM 0x100
#define CLONE_THREAD 0x10000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* arch/<arch>/include/asm/ptrace.h, for kprobes; bpf_tracing.h names the registers */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31], sp, pc, pstate;
};
struct pt_regs {
	struct user_pt_regs user_regs;
	__u64 orig_x0;
	__s32 syscallno;
};
#endif

/* block layer */
struct gendisk {
	int major;
	int first_minor;
	struct request_queue *queue;
	__u64 diskseq; /* 5.15 and later: no other disk has had it */
};

struct request_queue {
	struct gendisk *disk;
	int id;
	const void *mq_ops;
};

struct blk_mq_hw_ctx {
	unsigned int queue_num;
};

struct request {
	struct request_queue *q;
	struct bio *bio;
	struct blk_mq_hw_ctx *mq_hctx;
	unsigned int cmd_flags;
	unsigned int rq_flags;
	int tag;
	int internal_tag;
	unsigned int __data_len;
	__u64 __sector;
	__u64 start_time_ns;
	__u64 io_start_time_ns;
};

/* numbers of the bits of cmd_flags */
enum req_flag_bits {
	__REQ_SYNC = 11,
	__REQ_META = 12,
	__REQ_FUA = 17,
	__REQ_PREFLUSH = 18,
	__REQ_RAHEAD = 19,
};

struct block_device {
	struct gendisk *bd_disk;
};

struct bvec_iter {
	unsigned int bi_size;
};

struct bio {
	struct block_device *bi_bdev;
	unsigned int bi_opf;
	struct bvec_iter bi_iter;
	struct blkcg_gq *bi_blkg; /* with CONFIG_BLK_CGROUP */
};

/* cgroups; the number of a kernfs node is that of its directory in cgroup2 */
struct kernfs_node {
	const char *name;
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct blkcg {
	struct cgroup_subsys_state css;
};

struct blkcg_gq {
	struct blkcg *blkcg;
};

/* before 5.12 the disk hangs off the bio */
struct bio___disk {
	struct gendisk *bi_disk;
};

/* before 5.17 the disk hangs off the request */
struct request___disk {
	struct gendisk *rq_disk;
};

/* 6.9 and later: the clock is cached for everything submitted under one plug */
struct blk_plug {
	__u64 cur_ktime;
};

/* page cache; before 6.18 flags is a number, then a struct (memdesc_flags_t) */
enum pageflags {
	PG_head = 6,
};

struct folio {
	unsigned long flags;
	unsigned long _flags_1;
};

struct folio___memdesc {
	struct {
		unsigned long f;
	} flags;
};

/* before 6.6 */
struct folio___order {
	unsigned char _folio_order;
};

struct address_space;
struct buffer_head;

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	__s64 counter;
} atomic_long_t;

/* scheduler */
struct sched_info {
	unsigned long pcount;
	unsigned long long run_delay;
	unsigned long long last_queued;
};

struct rq {
	__u64 clock;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
	__u64 sum_exec_runtime;
};

struct upid {
	int nr;
};

/* numbers: in each namespace, the outermost first */
struct pid {
	struct upid numbers[1];
};

struct tty_driver {
	int major;
	int minor_start;
};

/* driver_data: of a pseudo-terminal its dentry in devpts */
struct tty_struct {
	struct tty_driver *driver;
	int index;
	struct {
		struct pid *session;
	} ctrl;
	void *driver_data;
	char name[64];
};

struct tty_file_private {
	struct tty_struct *tty;
};

/* what the threads of a process share; live: how many have not begun to end */
struct signal_struct {
	atomic_t live;
	int leader; /* of a session */
	struct tty_struct *tty;
	int group_exit_code;
	unsigned int flags;
	unsigned long long sum_sched_runtime; /* of threads that were reaped */
};

struct kernel_siginfo {
	int si_code;
};

/* 6.16 and later: the tracepoint says whether a thread is the last of its process */
struct trace_event_raw_sched_process_exit {
	__u8 group_dead;
};

/* x86: whether the system call came by the 32-bit entry */
struct thread_info {
	__u32 status;
};

struct mm_rss_stat {
	atomic_long_t count[4];
};

/* where the arguments and the environment of the program are in its memory, and how many pages it has by kind */
struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
	unsigned long env_start;
	unsigned long env_end;
	struct mm_rss_stat rss_stat;
};

struct percpu_counter {
	__s64 count;
};

/* 6.2 and later */
struct mm_struct___percpu {
	struct percpu_counter rss_stat[4];
};

typedef struct {
	__u32 val;
} kuid_t;

struct cred {
	kuid_t uid;
};

struct oom_control {
	struct mem_cgroup *memcg;
	unsigned long totalpages;
};

struct trace_event_raw_mark_victim {
	__u32 uid;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	struct mm_struct *mm;
	pid_t pid;
	pid_t tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	__u64 start_time;
	__u64 self_exec_id; /* u32 before 5.7 */
	char comm[16];
	struct sched_info sched_info;
	struct sched_entity se;
	struct css_set *cgroups;
	struct signal_struct *signal;
	kuid_t loginuid;	/* CONFIG_AUDIT */
	unsigned int sessionid; /* CONFIG_AUDIT */
	__u64 start_boottime;
	const struct cred *cred;
	int exit_code;
	unsigned int flags;
	void *stack;
	struct nsproxy *nsproxy;
	struct files_struct *files;
	unsigned int in_iowait : 1;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

/* before 5.14 */
struct task_struct___state {
	long state;
};

/* sockets */
struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
	__u8 sk_shutdown;
	int sk_err;
};

struct socket {
	struct sock *sk;
};

struct inet_sock {
	__be16 inet_sport;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u8 icsk_ca_state : 5;
	__u8 icsk_pending;
};

struct minmax {
	struct {
		__u32 v;
	} s[3];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 srtt_us; /* in eighths */
	struct minmax rtt_min;
	__u32 total_retrans;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u64 bytes_received;
	__u64 bytes_acked;
};

/* name spaces */
struct ns_common {
	unsigned int inum;
};

struct mnt_namespace {
	struct ns_common ns;
};

struct nsproxy {
	struct mnt_namespace *mnt_ns;
};

/* a name that the kernel has copied from a process */
struct filename {
	const char *name;
};

/* include/linux/interrupt.h */
struct irqaction {
	const char *name;
};

/* exec: interp is another string than filename where an interpreter runs the file */
struct linux_binprm {
	const char *filename;
	const char *interp;
};

struct file_system_type {
	const char *name;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
	struct file_system_type *s_type;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
	struct super_block *d_sb;
};

struct path {
	struct dentry *dentry;
};

struct inode {
	struct super_block *i_sb;
	__u16 i_mode;
	__u32 i_rdev;
};

struct file {
	__u32 f_mode;
	void *private_data;
	struct inode *f_inode;
	struct path f_path;
};

struct kiocb {
	struct file *ki_filp;
	__s64 ki_pos;
};

/* arguments of openat2 */
struct open_how {
	__u64 flags;
};

/* with a third argument, the error, the tracepoint fires for failed retransmissions too */
struct trace_event_raw_tcp_retransmit_skb {
	int err;
};

/* 6.10 and later: the arguments of accept in one */
struct proto_accept_arg {
	int flags;
};

struct sk_buff;

#pragma clang attribute pop

/* include/uapi/linux/bpf.h: the context of a packet, the same on all kernels */
struct __sk_buff {
	__u32 len; /* from the header of IP on */
	__u32 others[3];
	__u32 protocol;
	__u32 more[14];
	__u32 data; /* where the header of IP is, and where the part ends that is in one piece */
	__u32 data_end;
};
