/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP bytes by process and connection, for the table of the busiest. */
#include "flows.bpf.h"

FLOWS(tcptop)

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	tcptop_sent(raw, sk, ret);
}

ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	if (!(flags & MSG_PEEK))
		tcptop_received(raw, sk, ret);
}

ON_ENTRY(tcp_sendmsg, struct sock *sk)
{
	flow_send_begins(&tcptop_sends, sock_number(raw, ctx, sk));
}

ON_RETURN(tcp_sendmsg, 3, int ret)
{
	tcptop_send_returns(ret);
}

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	tcptop_received(raw, sk, copied);
}
