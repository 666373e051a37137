/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Sockets: numbers of the protocols, and who is at the two ends of a TCP connection. */
#pragma once

#include "owned.bpf.h"

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000
#define SHUTDOWN_MASK 3

enum tcp_state {
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT = 2,
	TCP_SYN_RECV = 3,
	TCP_FIN_WAIT1 = 4,
	TCP_CLOSE = 7,
	TCP_LAST_ACK = 9,
	TCP_LISTEN = 10,
	TCP_NEW_SYN_RECV = 12,
};

/* In the order of the bytes on the wire; an IPv4 address is the first four. */
struct ends {
	union {
		__u32 laddr[4];
		__u64 local[2];
	};
	union {
		__u32 raddr[4];
		__u64 remote[2];
	};
	__u32 family;
	__u16 lport;
	__u16 rport;
};

/* False for what is neither IPv4 nor IPv6. Word by word: a typed pointer allows loads of members only. */
static __always_inline bool ends_of(const bool raw, struct sock *sk, struct ends *ends)
{
	ends->family = GET(sk, __sk_common.skc_family);
	ends->lport = GET(sk, __sk_common.skc_num);
	ends->rport = __builtin_bswap16(GET(sk, __sk_common.skc_dport));
	if (!ends->lport) {
		/* A connection that was reset has given its port back, but the number is still in the socket. */
		__be16 sport = 0;

		bpf_core_read(&sport, sizeof(sport), &((struct inet_sock *)sk)->inet_sport);
		ends->lport = __builtin_bswap16(sport);
	}
	if (ends->family == AF_INET) {
		ends->laddr[0] = GET(sk, __sk_common.skc_rcv_saddr);
		ends->raddr[0] = GET(sk, __sk_common.skc_daddr);
		ends->laddr[1] = ends->raddr[1] = 0;
		ends->local[1] = ends->remote[1] = 0;
		return true;
	}
	if (ends->family != AF_INET6)
		return false;
	ends->laddr[0] = GET(sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[0]);
	ends->laddr[1] = GET(sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[1]);
	ends->laddr[2] = GET(sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[2]);
	ends->laddr[3] = GET(sk, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[3]);
	ends->raddr[0] = GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[0]);
	ends->raddr[1] = GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[1]);
	ends->raddr[2] = GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[2]);
	ends->raddr[3] = GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[3]);
	return true;
}

/*
 * A socket's address as a number: what is read from memory is one, where the current task is not typed. `at` is where it stands:
 * ctx for the first argument of a tracepoint.
 */
static __always_inline __u64 sock_number(const bool raw, void *at, struct sock *sk)
{
	__u64 number = 0;

	if (raw)
		return (__u64)sk;
	if (HAS_TYPED_TASK)
		return typed_address(sk);
	bpf_probe_read_kernel(&number, sizeof(number), at);
	return number;
}

/* The socket of inet_sendmsg and its like, in fexit: the first argument's. */
static __always_inline struct sock *sock_of(void *ctx)
{
	struct socket *sock = (void *)((__u64 *)ctx)[0];

	return sock->sk;
}

/* Where the pointer to it stands. */
static __always_inline void *sock_at(void *ctx)
{
	struct socket *sock = (void *)((__u64 *)ctx)[0];

	return __builtin_preserve_access_index(&sock->sk);
}

/* The socket that inet_csk_accept returns, as a number: in fexit it comes after the arguments, which are four before 6.10, then two. */
static __always_inline __u64 sock_accepted(const bool raw, void *ctx, struct sock *sk)
{
	__u64 number = (__u64)sk;

	if (!raw)
		bpf_probe_read_kernel(&number, sizeof(number), bpf_core_field_exists(((struct proto_accept_arg *)0)->flags) ? ctx + 16 : ctx + 32);
	return number;
}

/* The bytes that readers took from a socket, as of the last look; a table of each module that looks. */
struct sock_read {
	__u64 socket;
	__u64 given;
};

const volatile __u32 sock_read_mask;

/*
 * tcp_cleanup_rbuf is called at the end of a receive, of a peek too, and before each wait inside it, always with what the
 * whole call has copied so far (tcp_recvmsg). What is new is what the socket has given away since the last time.
 */
static __always_inline int sock_read_anew(void *reads, struct sock *sk, int copied)
{
	const bool raw = true;
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u64 number = (__u64)sk, socket, received, given, before = 0;
	struct sock_read *read;
	__u32 next;

	if (copied <= 0)
		return 0;
	received = GET(tp, bytes_received);
	next = GET(tp, rcv_nxt);
	given = received - (__u32)(next - GET(tp, copied_seq));
	socket = number << 32 | (__u32)(next - (__u32)received); /* with its first sequence number: addresses are used again */
	read = row(reads, number_hash(number) & sock_read_mask);
	if (!read)
		return 0;
	if (read->socket == socket)
		before = read->given;
	read->socket = socket;
	read->given = given;
	return given - before < copied ? given - before : copied;
}
