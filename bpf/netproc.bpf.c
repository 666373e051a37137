/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * TCP and UDP calls and bytes of each thread. From 6.3 two tracepoints sit behind every send and receive, with the length
 * returned. Before that, the functions they were later put around, by fexit; and where only kprobes are to be had, which do
 * not see arguments and return value together, functions of each protocol.
 */
#include "threads.bpf.h"

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000

enum net_cell { TCP_SEND, TCP_RECV, UDP_SEND, UDP_RECV };

struct net_row {
	struct {
		__u64 calls;
		__u64 bytes;
	} cells[4];
};

ROWS(net_rows, struct net_row);

/* The bytes that readers took from a socket, as of the last look. */
struct net_read {
	__u64 socket;
	__u64 given;
};

SLOTS(net_reads, struct net_read);

const volatile __u32 net_read_mask;

static __always_inline void net_add(enum net_cell cell, __s64 bytes)
{
	__s64 place = thread_place();
	struct net_row *r = place < 0 ? NULL : row(&net_rows, place);
	struct thread_stat *stat;

	if (r) {
		r->cells[cell].calls++;
		if (bytes > 0)
			r->cells[cell].bytes += bytes;
		return;
	}
	stat = cpu_row(&thread_stats);
	if (stat)
		ADD(stat->lost, 1);
}

static __always_inline void net_sock(const bool raw, struct sock *sk, enum net_cell tcp, __s64 bytes)
{
	__u16 family = GET(sk, __sk_common.skc_family);
	__u16 protocol = GET(sk, sk_protocol);

	if (family != AF_INET && family != AF_INET6)
		return;
	if (protocol == IPPROTO_TCP)
		net_add(tcp, bytes);
	else if (protocol == IPPROTO_UDP)
		net_add(tcp + UDP_SEND, bytes);
}

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	net_sock(raw, sk, TCP_SEND, ret);
}

/* A receive counts when it delivered something; an empty datagram is something, the end of a stream is not. */
ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	if (ret < 0 || flags & (MSG_PEEK | MSG_ERRQUEUE))
		return;
	if (ret || GET(sk, sk_protocol) == IPPROTO_UDP)
		net_sock(raw, sk, TCP_RECV, ret);
}

/* The socket of inet_sendmsg and its like, in fexit: the first argument. */
static __always_inline struct sock *net_socket(void *ctx)
{
	struct socket *sock = (void *)((__u64 *)ctx)[0];

	return sock->sk;
}

static __always_inline void net_received(struct sock *sk, int flags, int ret)
{
	if (ret < 0 || flags & (MSG_PEEK | MSG_ERRQUEUE))
		return;
	if (ret || sk->sk_protocol == IPPROTO_UDP)
		net_sock(false, sk, TCP_RECV, ret);
}

ON_RETURN(inet_sendmsg, 3, int ret)
{
	if (!raw)
		net_sock(raw, net_socket(ctx), TCP_SEND, ret);
}

ON_RETURN(inet6_sendmsg, 3, int ret)
{
	if (!raw)
		net_sock(raw, net_socket(ctx), TCP_SEND, ret);
}

ON_RETURN(inet_recvmsg, 4, int ret)
{
	if (!raw)
		net_received(net_socket(ctx), ((__u64 *)ctx)[3], ret);
}

ON_RETURN(inet6_recvmsg, 4, int ret)
{
	if (!raw)
		net_received(net_socket(ctx), ((__u64 *)ctx)[3], ret);
}

ON_RETURN(tcp_sendmsg, 3, int ret)
{
	net_add(TCP_SEND, ret);
}

ON_RETURN(udp_sendmsg, 3, int ret)
{
	net_add(UDP_SEND, ret);
}

ON_RETURN(udpv6_sendmsg, 3, int ret)
{
	net_add(UDP_SEND, ret);
}

/*
 * Called at the end of a receive, of a peek too, and before each wait inside it, always with what the whole call has copied
 * so far (tcp_recvmsg). What is new is what the socket has given away since the last time.
 */
ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u64 address = (__u64)sk, socket, received, given, before = 0;
	struct net_read *read;
	__u32 next;

	if (!raw || copied <= 0)
		return;
	received = GET(tp, bytes_received);
	next = GET(tp, rcv_nxt);
	given = received - (__u32)(next - GET(tp, copied_seq));
	socket = address << 32 | (__u32)(next - (__u32)received); /* with its first sequence number: addresses are used again */
	read = row(&net_reads, (address >> 6) * 0x9e3779b97f4a7c15 >> 40 & net_read_mask);
	if (!read)
		return;
	if (read->socket == socket)
		before = read->given;
	read->socket = socket;
	read->given = given;
	if (given - before < copied)
		copied = given - before;
	if (copied)
		net_add(TCP_RECV, copied);
}

ON_ENTRY(skb_consume_udp, struct sock *sk, struct sk_buff *skb, int len)
{
	if (len >= 0)
		net_add(UDP_RECV, len);
}

ON(sched_process_exit, struct task_struct *task)
{
	struct thread *t = thread_known(bpf_get_current_pid_tgid());

	if (t)
		t->state |= 1;
}

/*
 * A thread that execs takes over its process's id, and with it the place of the thread that had it, which is not ended then;
 * its own old place is no longer found by anybody.
 */
ON(sched_process_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct thread *t = thread_known(id);

	if (t)
		t->state = thread_state();
	if ((__u32)id != (__u32)old_pid) {
		t = thread_known(id >> 32 << 32 | (__u32)old_pid);
		if (t)
			t->state |= 1;
	}
}
