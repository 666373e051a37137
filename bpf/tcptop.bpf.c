/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP bytes by process and connection, for the table of the busiest. */
#include "shared/flows.bpf.h"

FLOWS(tcptop)

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	tcptop_sent(raw, sk, ret);
}

ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	tcptop_received(raw, sk, flags, ret);
}

ON_RETURN(inet_sendmsg, 3, int ret)
{
	if (!raw)
		tcptop_sent(raw, sock_of(ctx), ret);
}

ON_RETURN(inet6_sendmsg, 3, int ret)
{
	if (!raw)
		tcptop_sent(raw, sock_of(ctx), ret);
}

ON_RETURN(inet_recvmsg, 4, int ret)
{
	if (!raw)
		tcptop_received(raw, sock_of(ctx), ((__u64 *)ctx)[3], ret);
}

ON_RETURN(inet6_recvmsg, 4, int ret)
{
	if (!raw)
		tcptop_received(raw, sock_of(ctx), ((__u64 *)ctx)[3], ret);
}

ON_ENTRY(tcp_sendmsg, struct sock *sk)
{
	if (raw)
		flow_send_begins(&tcptop_sends, (__u64)sk);
}

ON_RETURN(tcp_sendmsg, 3, int ret)
{
	if (raw)
		tcptop_send_returns(ret);
}

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	if (raw)
		tcptop_received(raw, sk, 0, sock_read_anew(&tcptop_reads, sk, copied));
}
