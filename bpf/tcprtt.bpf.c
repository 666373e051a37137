/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Round-trip times of TCP: what the kernel has measured of a session when it closes, or after each segment that came. Both are smoothed
 * (RFC 6298); the least of a session's last minutes is not.
 */
#include "shared/fine.bpf.h"
#include "shared/groups.bpf.h"
#include "shared/networks.bpf.h"
#include "shared/places.bpf.h"

struct rtt_row {
	__u64 untimed; /* sessions that ended without a time */
	struct fine_hist rtt;
	struct fine_hist minrtt;
	__u64 pad[5];
};

/* Sessions with a network, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct rtt_peer {
	__u64 used; /* whether a program has counted in it */
	__u64 sessions;
	__u64 retrans;
	struct fine_hist rtt;
	__u64 pad[4];
};

ROWS(rtt_rows, struct rtt_row);
ROWS(rtt_nets, struct place_owner);
ROWS(rtt_peers, struct rtt_peer);
ROWS(rtt_marks, struct mark); /* one for each row of a group */

const volatile bool rtt_segments; /* a time for each segment */
const volatile bool rtt_by_net;   /* count by network, too */
const volatile struct networks rtt_networks;
const volatile __u32 rtt_mask;  /* places of owners, less 1 */
const volatile __u32 rtt_shift; /* 1 << this many CPUs share their rows */
const volatile bool rtt_shared; /* it is more than one */

static __always_inline struct tcp_sock *rtt_of(const bool raw, struct sock *sk)
{
	return raw ? (struct tcp_sock *)sk : bpf_skc_to_tcp_sock(sk);
}

/* In nanoseconds; 0: it has none. The kernel keeps eighths of a microsecond. */
static __always_inline __u64 rtt_smoothed(const bool raw, struct tcp_sock *tp)
{
	return (__u64)GET(tp, srtt_us) * 125;
}

static __always_inline struct rtt_peer *rtt_peer(const bool raw, struct sock *sk)
{
	__u32 index = place_index(&rtt_nets, rtt_mask, network_of(raw, &rtt_networks, sk));

	return place_row(&rtt_peers, &rtt_marks, rtt_mask, rtt_shift, index);
}

static __always_inline void rtt_ends(const bool raw, struct sock *sk)
{
	const bool plain = group_plain(rtt_shared);
	struct tcp_sock *tp = rtt_of(raw, sk);
	struct rtt_row *r = cpu_row(&rtt_rows);
	struct rtt_peer *peer;
	__u64 rtt, least;

	if (!tp || !r)
		return;
	rtt = rtt_smoothed(raw, tp);
	least = GET(tp, rtt_min.s[0].v);
	if (rtt && !rtt_segments)
		FINE_COUNT(r->rtt, rtt);
	if (rtt && least != ~0U)
		FINE_COUNT(r->minrtt, least * 1000);
	if (!rtt)
		COUNT(r->untimed);
	if (!rtt_by_net)
		return;
	peer = rtt_peer(raw, sk);
	if (!peer)
		return;
	GROUP_SUM(peer->sessions, 1);
	GROUP_SUM(peer->retrans, GET(tp, total_retrans));
	if (rtt && !rtt_segments)
		GROUP_TIME(peer->rtt, rtt);
}

/* What was not established has no times: a listener, and a connection that failed. */
ON(inet_sock_set_state, struct sock *sk, int from, int to)
{
	if (to != TCP_CLOSE || from == TCP_LISTEN || from == TCP_SYN_SENT || from == TCP_SYN_RECV || from == TCP_CLOSE)
		return;
	if (GET(sk, sk_protocol) == IPPROTO_TCP)
		rtt_ends(raw, sk);
}

ON(tcp_probe, struct sock *sk)
{
	const bool plain = group_plain(rtt_shared);
	struct rtt_row *r = cpu_row(&rtt_rows);
	struct tcp_sock *tp = rtt_of(raw, sk);
	struct rtt_peer *peer;
	__u64 rtt;

	if (!tp || !r)
		return;
	rtt = rtt_smoothed(raw, tp);
	if (!rtt)
		return;
	FINE_COUNT(r->rtt, rtt);
	if (!rtt_by_net)
		return;
	peer = rtt_peer(raw, sk);
	if (peer)
		GROUP_TIME(peer->rtt, rtt);
}
