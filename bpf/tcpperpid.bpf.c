/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP bytes by process and connection, of which the agent makes totals of processes. */
#include "flows.bpf.h"

FLOWS(tcpperpid)

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	tcpperpid_sent(raw, sk, ret);
}

ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	if (!(flags & MSG_PEEK))
		tcpperpid_received(raw, sk, ret);
}

ON_ENTRY(tcp_sendmsg, struct sock *sk)
{
	flow_send_begins(&tcpperpid_sends, sock_number(raw, ctx, sk));
}

ON_RETURN(tcp_sendmsg, 3, int ret)
{
	tcpperpid_send_returns(ret);
}

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	tcpperpid_received(raw, sk, copied);
}
