/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Logins: the first program that a new audit session executes (pam_loginuid begins one), and the first that the leader of a session
 * executes on a terminal. Sessions of audit are numbered in their order.
 */
#include "shared/latest.bpf.h"
#include "shared/places.bpf.h"

#define NOBODY 0xffffffff /* no session of audit, no login user */
#define LOGIN_SEEN 1024
struct login_event {
	struct event_head head;
	__u32 pid;
	__u32 uid;
	__u32 loginuid;
	__u32 session;
	__u8 tty[32];
	__u8 comm[16];
	__u8 parent[16];
	__u8 remote[48];
};

struct login_counts {
	__u64 used; /* whether a program has counted in it */
	__u64 tty;
	__u64 other;
	__u64 pad[5];
};

struct login_seen {
	__u64 session; /* the latest with this place */
	__u64 opening; /* the latest that sshd opens, or has opened */
	__u64 leader;  /* when the process began that leads a session on a terminal */
	__u64 pad;
};

LATEST(login)
PRIVATE(login_seen, struct login_seen);
ROWS(login_users, struct place_owner);
ROWS(login_counts, struct login_counts);
ROWS(login_marks, struct mark);
EXPORT(struct login_event);

const volatile __u32 login_mask;    /* places of owners, less 1 */
const volatile __u32 login_session; /* the latest session of audit before the agent came */
const volatile __u64 login_since;   /* when the agent came, in ns since boot */

/*
 * Whether a program begins a session of audit. What PAM executes while sshd opens one, as the scripts of the message of the day, does not:
 * the session's own program leads a session of processes, with a terminal or without.
 */
static __always_inline bool login_begins_session(const bool raw, __u32 session, struct task_struct *task, struct signal_struct *signal, bool tty)
{
	struct login_seen *seen = row(&login_seen, session & (LOGIN_SEEN - 1));
	__u64 comm[2] = {};

	if (session == NOBODY || session <= login_session || !seen || session <= seen->session)
		return false;
	if (!tty && !GET(signal, leader)) {
		BPF_CORE_READ_INTO((char(*)[16])comm, task, real_parent, comm);
		if ((__u32)comm[0] == 0x64687373) /* sshd, or sshd-session */
			seen->opening = session;
		if (seen->opening == session)
			return false;
	}
	seen->session = session;
	return true;
}

static __always_inline bool login_begins_on_terminal(const bool raw, struct task_struct *task, struct signal_struct *signal)
{
	__u64 began = GET(task, start_boottime);
	struct login_seen *seen;

	if (!GET(signal, leader) || began < login_since)
		return false;
	seen = row(&login_seen, number_hash(GET(task, tgid)) & (LOGIN_SEEN - 1));
	if (!seen || seen->leader == began)
		return false;
	seen->leader = began;
	return true;
}

/* The address of the client, which sshd leaves in the environment. Strings longer than a chunk are read in several. */
static __always_inline void login_remote(const bool raw, struct login_event *e, struct mm_struct *mm)
{
	__u64 chunk[8] = {}, at = GET(mm, env_start), end = GET(mm, env_end);
	bool begins = true;
	__s64 n;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 128; i++) {
		if (at >= end)
			return;
		n = bpf_probe_read_user_str(chunk, sizeof(chunk), (void *)at);
		if (n < 0)
			return;
		/* SSH_CONNECTION= */
		if (begins && chunk[0] == 0x4e4e4f435f485353 && (chunk[1] & 0xffffffffffffff) == 0x3d4e4f49544345) {
			bpf_probe_read_user_str(e->remote, sizeof(e->remote), (void *)at + 15);
			return;
		}
		begins = n < (__s64)sizeof(chunk);
		at += begins ? (n ? n : 1) : n - 1; /* older kernels take the NUL of an empty string for nothing */
	}
}

ON(sched_process_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	struct signal_struct *signal = GET(task, signal);
	struct tty_struct *tty = GET(signal, tty);
	__u32 session = NOBODY, loginuid = NOBODY, uid = bpf_get_current_uid_gid();
	bool begins, on_terminal;
	struct login_counts *counts;
	struct task_struct *parent;
	struct login_event *e;

	if (bpf_core_field_exists(task->sessionid)) {
		session = GET(task, sessionid);
		loginuid = GET(task, loginuid.val);
	}
	begins = login_begins_session(raw, session, task, signal, tty);
	on_terminal = tty && login_begins_on_terminal(raw, task, signal);
	if (!begins && !on_terminal)
		return;
	parent = GET(task, real_parent);
	if (!begins && loginuid == NOBODY && GET(parent, tgid) == 1)
		return; /* a getty, which waits for somebody to log in */
	counts = place_row(&login_counts, &login_marks, login_mask, ALL_CPUS, place_index(&login_users, login_mask, uid + 1ULL));
	if (counts && tty)
		ADD(counts->tty, 1);
	else if (counts)
		ADD(counts->other, 1);
	e = EVENT(login, struct login_event, uid + 1ULL);
	if (!e)
		return;
	e->pid = bpf_get_current_pid_tgid() >> 32;
	e->uid = uid;
	e->loginuid = loginuid;
	e->session = session;
	e->tty[0] = e->remote[0] = 0;
	if (tty)
		bpf_probe_read_kernel_str(e->tty, sizeof(e->tty), __builtin_preserve_access_index(&tty->name));
	bpf_get_current_comm(e->comm, sizeof(e->comm));
	BPF_CORE_READ_INTO(&e->parent, parent, comm);
	login_remote(raw, e, GET(task, mm));
	login_done(e);
}
