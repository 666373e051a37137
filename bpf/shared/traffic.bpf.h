/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Sends and receives over TCP and UDP in the context of the process that makes them, by sock_calls.bpf.h; where only kprobes are to be
 * had, by functions of each protocol. The module that includes this has
 *
 *   OWN(moved)(cell, bytes)   runs for each; no bytes if it failed
 */
#include "sock.bpf.h"

#ifndef NET_CELLS
#define NET_CELLS 4

enum net_cell { TCP_SEND, TCP_RECV, UDP_SEND, UDP_RECV };
#endif

PRIVATE(OWN(sock), struct sock_read);

static __always_inline void OWN(moved_by)(const bool raw, struct sock *sk, enum net_cell tcp, __s64 bytes)
{
	__u16 family = GET(sk, __sk_common.skc_family);
	__u16 protocol = GET(sk, sk_protocol);

	if (family != AF_INET && family != AF_INET6)
		return;
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return;
	OWN(moved)(protocol == IPPROTO_TCP ? tcp : tcp + UDP_SEND, bytes); /* one copy of it in the program */
}

static __always_inline void OWN(sent)(const bool raw, struct sock *sk, void *at, int ret)
{
	OWN(moved_by)(raw, sk, TCP_SEND, ret);
}

/* A receive counts when it delivered something; an empty datagram is something, the end of a stream is not. */
static __always_inline void OWN(received)(const bool raw, struct sock *sk, void *at, int flags, int ret)
{
	if (ret < 0 || flags & (MSG_PEEK | MSG_ERRQUEUE))
		return;
	if (ret || GET(sk, sk_protocol) == IPPROTO_UDP)
		OWN(moved_by)(raw, sk, TCP_RECV, ret);
}

#include "sock_calls.bpf.h"

ON_RETURN(tcp_sendmsg, 3, int ret)
{
	OWN(moved)(TCP_SEND, ret);
}

ON_RETURN(udp_sendmsg, 3, int ret)
{
	OWN(moved)(UDP_SEND, ret);
}

ON_RETURN(udpv6_sendmsg, 3, int ret)
{
	OWN(moved)(UDP_SEND, ret);
}

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	if (raw && (copied = sock_read_anew(&OWN(sock), sk, copied)) > 0)
		OWN(moved)(TCP_RECV, copied);
}

ON_ENTRY(skb_consume_udp, struct sock *sk, struct sk_buff *skb, int len)
{
	if (len >= 0)
		OWN(moved)(UDP_RECV, len);
}
