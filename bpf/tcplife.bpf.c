/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Finished TCP sessions. The birth of a session is kept by the socket's address; the counts come from the socket itself when it
 * closes.
 */
#include "shared/filter.bpf.h"
#include "shared/sock.bpf.h"
#include "shared/set_table.bpf.h"

struct tcp_birth {
	__u64 ns;
	__u32 owner;  /* process; 0: not seen in the owner's context yet */
	__u32 wanted; /* the owner was seen to be in the filter */
	__u8 comm[16];
};

struct tcp_births {
	__u64 keys[SET_WAYS];
	struct tcp_birth births[SET_WAYS];
};

struct tcp_session {
	__u64 tx;
	__u64 rx;
	__u64 duration_ns;
	__u8 laddr[16];
	__u8 raddr[16];
	__u8 comm[16];
	__u32 pid;
	__u16 family;
	__u16 lport;
	__u16 rport;
	__u16 pad[3];
};

struct tcp_stat {
	__u64 unborn;	 /* closed, but opened before the agent came or displaced */
	__u64 dropped;	 /* the ring was full */
	__u64 displaced; /* births that gave way to another session's */
	__u64 accepts;	 /* in the first row: who accepts is seen */
	__u64 pad[4];
};

RING(tcp_sessions);
PRIVATE(tcp_births, struct tcp_births);
ROWS(tcp_stats, struct tcp_stat);
EXPORT(struct tcp_session);

const volatile __u32 tcp_birth_mask; /* sets - 1 */
const volatile __u64 tcp_filter;
const volatile __u64 tcp_wake_at; /* bytes waiting in the ring from which a record wakes the agent */

static __always_inline void tcp_owned(struct tcp_birth *birth)
{
	birth->owner = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(birth->comm, sizeof(birth->comm));
}

/* The owner may come into the filter after it connected, and be gone before its session. */
static __always_inline bool tcp_wanted(struct tcp_birth *birth)
{
	if (!birth->wanted)
		birth->wanted = filter_wants(tcp_filter, birth->owner);
	return birth->wanted;
}

static __always_inline void tcp_report(const bool raw, struct sock *sk, struct tcp_birth *birth)
{
	struct tcp_sock *tp = raw ? (struct tcp_sock *)sk : bpf_skc_to_tcp_sock(sk);
	struct tcp_session *session;

	if (!tp)
		return;
	session = bpf_ringbuf_reserve(&tcp_sessions, sizeof(*session), 0);
	if (!session) {
		LOSE(tcp_stats, dropped);
		return;
	}
	session->tx = GET(tp, bytes_acked);
	session->rx = GET(tp, bytes_received);
	session->duration_ns = bpf_ktime_get_ns() - birth->ns;
	session->pid = birth->owner;
	__builtin_memcpy(session->comm, birth->comm, sizeof(session->comm));
	session->family = GET(sk, __sk_common.skc_family);
	/* skc_num is gone by now: the port was given back. */
	session->lport = __builtin_bswap16(GET(tp, inet_conn.icsk_inet.inet_sport));
	session->rport = __builtin_bswap16(GET(sk, __sk_common.skc_dport));
	if (session->family == AF_INET) {
		*(__u32 *)session->laddr = GET(sk, __sk_common.skc_rcv_saddr);
		*(__u32 *)session->raddr = GET(sk, __sk_common.skc_daddr);
	} else {
		bpf_probe_read_kernel(session->laddr, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_probe_read_kernel(session->raddr, 16, &sk->__sk_common.skc_v6_daddr);
	}
	ring_submit(&tcp_sessions, session, tcp_wake_at);
}

ON(inet_sock_set_state, struct sock *sk, int from, int to)
{
	bool known, displaced = false;
	struct tcp_births *set;
	struct tcp_birth *birth;
	__u32 way = 0;
	__u64 address;

	if (GET(sk, sk_protocol) != IPPROTO_TCP || to == TCP_LISTEN || from == TCP_LISTEN)
		return;
	address = sock_number(raw, ctx, sk);
	set = way_find(&tcp_births, tcp_birth_mask, address, &way);
	known = set;
	if (!known && to >= TCP_FIN_WAIT1) {
		if (to == TCP_CLOSE)
			LOSE(tcp_stats, unborn);
		return;
	}
	if (!known)
		set = set_claim(&tcp_births, tcp_birth_mask, address, &way, &displaced);
	if (!set)
		return;
	if (displaced)
		LOSE(tcp_stats, displaced);
	birth = &set->births[way];
	/* A session counts from when it was established; until then each step begins it again. */
	if (to < TCP_FIN_WAIT1) {
		if (!known || to == TCP_SYN_SENT) {
			birth->owner = 0;
			birth->comm[0] = 0;
			birth->wanted = 0;
		}
		birth->ns = bpf_ktime_get_ns();
		if (to == TCP_SYN_SENT)
			tcp_owned(birth);
		tcp_wanted(birth);
		return;
	}
	/*
	 * Where nobody was seen to accept it: an accepted session changes state in interrupts of strangers, but the steps of a
	 * close are taken by the closing process: the half-closed states, and the reset of a close that left data unread (both
	 * directions shut down).
	 */
	if (!birth->owner) {
		if (to == TCP_FIN_WAIT1 || to == TCP_LAST_ACK ||
		    (to == TCP_CLOSE && GET(sk, sk_shutdown) == SHUTDOWN_MASK && from == TCP_ESTABLISHED))
			tcp_owned(birth);
	}
	if (tcp_wanted(birth) && to == TCP_CLOSE)
		tcp_report(raw, sk, birth);
	if (to == TCP_CLOSE)
		way_free(set, way, address);
}

/* The current process has the socket in its hands. */
static __always_inline void tcp_in_hands(__u64 address)
{
	__u32 way = 0;
	struct tcp_births *set = way_find(&tcp_births, tcp_birth_mask, address, &way);
	struct tcp_birth *birth;

	if (!set)
		return;
	birth = &set->births[way];
	if (birth->owner)
		return;
	tcp_owned(birth);
	tcp_wanted(birth);
}

ON_RETURN(inet_csk_accept, 0, struct sock *sk)
{
	struct tcp_stat *first = row(&tcp_stats, 0);
	__u64 address = sock_accepted(raw, ctx, sk);

	if (first && !first->accepts)
		first->accepts = 1; /* once: all CPUs read it */
	if (address)
		tcp_in_hands(address);
}

/* Where nobody can be seen to accept, whoever first sends or receives. */
static __always_inline void tcp_used(const bool raw, void *ctx, struct sock *sk)
{
	struct tcp_stat *first = row(&tcp_stats, 0);

	if (first && !first->accepts && GET(sk, sk_protocol) == IPPROTO_TCP)
		tcp_in_hands(sock_number(raw, ctx, sk));
}

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	tcp_used(raw, ctx, sk);
}

ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	tcp_used(raw, ctx, sk);
}
