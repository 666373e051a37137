/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * TCP and UDP calls and bytes of each thread, by shared/sock_calls.bpf.h; where only kprobes are to be had, by functions of
 * each protocol.
 */
#include "shared/sock.bpf.h"

enum net_cell { TCP_SEND, TCP_RECV, UDP_SEND, UDP_RECV };

struct net_row {
	struct {
		__u64 calls;
		__u64 bytes;
	} cells[4];
};

PRIVATE(net_reads, struct sock_read);

#define COUNTS struct net_row
#include "shared/by_process.bpf.h"

static __always_inline void net_add(__u64 cell, __s64 bytes)
{
	struct net_row *r = OWN(counts_of_thread)();

	BOUND(cell, 3);
	if (!r)
		return;
	r->cells[cell].calls++;
	if (bytes > 0)
		r->cells[cell].bytes += bytes;
}

static __always_inline void net_sock(const bool raw, struct sock *sk, enum net_cell tcp, __s64 bytes)
{
	__u16 family = GET(sk, __sk_common.skc_family);
	__u16 protocol = GET(sk, sk_protocol);

	if (family != AF_INET && family != AF_INET6)
		return;
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return;
	net_add(protocol == IPPROTO_TCP ? tcp : tcp + UDP_SEND, bytes); /* one copy of it in the program */
}

static __always_inline void OWN(sent)(const bool raw, struct sock *sk, void *at, int ret)
{
	net_sock(raw, sk, TCP_SEND, ret);
}

/* A receive counts when it delivered something; an empty datagram is something, the end of a stream is not. */
static __always_inline void OWN(received)(const bool raw, struct sock *sk, void *at, int flags, int ret)
{
	if (ret < 0 || flags & (MSG_PEEK | MSG_ERRQUEUE))
		return;
	if (ret || GET(sk, sk_protocol) == IPPROTO_UDP)
		net_sock(raw, sk, TCP_RECV, ret);
}

#include "shared/sock_calls.bpf.h"

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

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	if (raw && (copied = sock_read_anew(&net_reads, sk, copied)) > 0)
		net_add(TCP_RECV, copied);
}

ON_ENTRY(skb_consume_udp, struct sock *sk, struct sk_buff *skb, int len)
{
	if (len >= 0)
		net_add(UDP_RECV, len);
}
