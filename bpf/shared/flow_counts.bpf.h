/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A module that counts flows of the processes in its filter: its maps and handlers. Where tcp_sendmsg has to do, the socket is
 * remembered as a number, whose fields are probe-read.
 */
#include "flows.bpf.h"

ROWS(OWN(flows), struct flow);
ROWS(OWN(marks), struct mark);
ROWS(OWN(stats), struct flow_stat);
PRIVATE(OWN(sends), struct set_numbers);
PRIVATE(OWN(reads), struct sock_read);

const volatile __u64 OWN(filter);

static __always_inline bool OWN(wants)(const bool raw, struct sock *sk, int ret)
{
	return ret > 0 && GET(sk, sk_protocol) == IPPROTO_TCP && filter_wants_current(OWN(filter));
}

static __always_inline void OWN(sent)(const bool raw, struct sock *sk, void *at, int ret)
{
	if (OWN(wants)(raw, sk, ret))
		flow_add(raw, &OWN(flows), &OWN(marks), &OWN(stats), sk, ret, 0);
}

static __always_inline void OWN(received)(const bool raw, struct sock *sk, void *at, int flags, int ret)
{
	if (!(flags & (MSG_PEEK | MSG_ERRQUEUE)) && OWN(wants)(raw, sk, ret))
		flow_add(raw, &OWN(flows), &OWN(marks), &OWN(stats), sk, 0, ret);
}

#include "sock_calls.bpf.h"

ON_ENTRY(tcp_sendmsg, struct sock *sk)
{
	if (raw)
		flow_send_begins(&OWN(sends), (__u64)sk);
}

ON_RETURN(tcp_sendmsg, 3, int ret)
{
	struct sock *sk;

	if (!raw)
		return;
	sk = flow_send_ends(&OWN(sends));
	if (sk)
		OWN(sent)(raw, sk, NULL, ret);
	else if (ret > 0)
		LOSE(OWN(stats), lost);
}

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	if (raw)
		OWN(received)(raw, sk, NULL, 0, sock_read_anew(&OWN(reads), sk, copied));
}
