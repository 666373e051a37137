/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Handlers of sends and receives, with the length returned: two tracepoints from 6.3 on, before that the functions they were
 * later put around, by fexit. Kprobes do not see arguments and return value together. The module that includes this has
 *
 *   OWN(sent)(raw, sk, at, ret)             runs for a send
 *   OWN(received)(raw, sk, at, flags, ret)  runs for a receive
 *
 * where `at` is the address that the pointer to the socket was read from (see sock_number).
 */
#include "sock.bpf.h"

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	OWN(sent)(raw, sk, ctx, ret);
}

ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	OWN(received)(raw, sk, ctx, flags, ret);
}

ON_RETURN(inet_sendmsg, 3, int ret)
{
	if (!raw)
		OWN(sent)(raw, sock_of(ctx), sock_at(ctx), ret);
}

ON_RETURN(inet6_sendmsg, 3, int ret)
{
	if (!raw)
		OWN(sent)(raw, sock_of(ctx), sock_at(ctx), ret);
}

ON_RETURN(inet_recvmsg, 4, int ret)
{
	if (!raw)
		OWN(received)(raw, sock_of(ctx), sock_at(ctx), ((__u64 *)ctx)[3], ret);
}

ON_RETURN(inet6_recvmsg, 4, int ret)
{
	if (!raw)
		OWN(received)(raw, sock_of(ctx), sock_at(ctx), ((__u64 *)ctx)[3], ret);
}
