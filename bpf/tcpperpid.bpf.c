/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP bytes by process and connection, of which the agent makes totals of processes. */
#include "shared/flows.bpf.h"

FLOWS(tcpperpid)

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	tcpperpid_sent(raw, sk, ret);
}

ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	tcpperpid_received(raw, sk, flags, ret);
}

ON_RETURN(inet_sendmsg, 3, int ret)
{
	if (!raw)
		tcpperpid_sent(raw, sock_of(ctx), ret);
}

ON_RETURN(inet6_sendmsg, 3, int ret)
{
	if (!raw)
		tcpperpid_sent(raw, sock_of(ctx), ret);
}

ON_RETURN(inet_recvmsg, 4, int ret)
{
	if (!raw)
		tcpperpid_received(raw, sock_of(ctx), ((__u64 *)ctx)[3], ret);
}

ON_RETURN(inet6_recvmsg, 4, int ret)
{
	if (!raw)
		tcpperpid_received(raw, sock_of(ctx), ((__u64 *)ctx)[3], ret);
}

ON_ENTRY(tcp_sendmsg, struct sock *sk)
{
	if (raw)
		flow_send_begins(&tcpperpid_sends, (__u64)sk);
}

ON_RETURN(tcp_sendmsg, 3, int ret)
{
	if (raw)
		tcpperpid_send_returns(ret);
}

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	if (raw)
		tcpperpid_received(raw, sk, 0, sock_read_anew(&tcpperpid_reads, sk, copied));
}
