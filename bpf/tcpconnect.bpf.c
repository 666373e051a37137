/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * TCP connections that processes open: from the first SYN to the answer. Who connects is known at the beginning, while the connecting
 * process runs; the end comes in interrupts of strangers. And those that others open: from the end of the handshake to accept.
 */
#include "shared/filter.bpf.h"
#include "shared/fine.bpf.h"
#include "shared/groups.bpf.h"
#include "shared/latest.bpf.h"
#include "shared/networks.bpf.h"
#include "shared/places.bpf.h"
#include "shared/set_table.bpf.h"
#include "shared/sock.bpf.h"

/* include/uapi/asm-generic/errno.h */
#define ENETUNREACH 101
#define ECONNABORTED 103
#define ETIMEDOUT 110
#define ECONNREFUSED 111
#define EHOSTUNREACH 113

#define CONN_PORTS 16

struct conn_start {
	__u64 ns;
	__u64 cgroup;
	__u64 thread; /* process << 32 | thread */
	__u32 uid;
	__u32 pad;
	__u64 comm[2];
};

/* Connections without an answer, by socket. */
struct conn_starts {
	__u64 keys[SET_WAYS];
	struct conn_start starts[SET_WAYS];
};

/* Connections that wait for accept, by socket. */
struct conn_queued {
	__u64 ns;
	__u64 port;
};

struct conn_queue {
	__u64 keys[SET_WAYS];
	struct conn_queued queued[SET_WAYS];
};

/* Connections to a network, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct conn_peer {
	__u64 used; /* whether a program has counted in it */
	__u64 failed;
	struct fine_hist times; /* of connections that were established */
	__u64 pad[5];
};

/* Connections to a local port. */
struct conn_listener {
	__u64 used;
	__u64 closed; /* before anybody accepted them */
	struct fine_hist accepts;
	__u64 pad[5];
};

struct conn_event {
	struct event_head head;
	__u64 lat;
	__u64 local[2]; /* as in struct ends */
	__u64 remote[2];
	__u64 comm[2];
	__u32 pid;
	__u32 uid;
	__u32 err;
	__u32 family;
	__u16 lport;
	__u16 rport;
	__u32 pad;
};

struct conn_row {
	__u64 all;
	__u64 refused;
	__u64 timedout;
	__u64 unreachable;
	__u64 other;
	__u64 unshown;   /* ends that found no room for a row */
	__u64 unseen;    /* ends whose beginning was not seen */
	__u64 displaced; /* beginnings that gave way to another's */
	__u64 unqueued;  /* connections that gave way to another's while they waited for accept */
	__u64 accepts;   /* in the first row: who accepts is seen */
	struct fine_hist times; /* of connections that were established */
	__u64 pad[5];
};

/* Connects of a thread. */
struct conn_counts {
	__u64 all;
	__u64 failed; /* ends come on any CPU */
};

LATEST(conn)
ROWS(conn_rows, struct conn_row);
PRIVATE(conn_starts, struct conn_starts);
PRIVATE(conn_queue, struct conn_queue);
/* Row 0 of each group of CPUs is for what found no place. */
ROWS(conn_nets, struct place_owner);
ROWS(conn_peers, struct conn_peer);
ROWS(conn_peer_marks, struct mark); /* one for each row */
ROWS(conn_lports, struct place_owner);
ROWS(conn_listeners, struct conn_listener);
ROWS(conn_port_marks, struct mark);
EXPORT(struct conn_event);

const volatile __u64 conn_filter;
const volatile bool conn_by_uid; /* only those of conn_uid count */
const volatile __u32 conn_uid;
const volatile __u32 conn_ports; /* only those to the first of conn_port count; 0: all */
const volatile __u16 conn_port[CONN_PORTS];
const volatile __u64 conn_min; /* ns; shorter ones have no row */
const volatile __u32 conn_mask;
const volatile bool conn_by_net;     /* count by network, too */
const volatile struct networks conn_networks;
const volatile __u32 conn_net_mask;  /* places of owners, less 1 */
const volatile __u32 conn_net_shift; /* 1 << this many CPUs share their rows */
const volatile bool conn_net_shared; /* it is more than one */
const volatile bool conn_accepts;    /* count what others open */
const volatile __u32 conn_queue_mask;
const volatile __u32 conn_lport_mask;
const volatile __u32 conn_lport_shift;
const volatile bool conn_lport_shared;

#define COUNTS struct conn_counts
#define STEM conn
#include "shared/by_process.bpf.h"

static __always_inline bool conn_to_port(const bool raw, struct sock *sk)
{
	__u16 port;

	if (!conn_ports)
		return true;
	port = __builtin_bswap16(GET(sk, __sk_common.skc_dport));
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < CONN_PORTS; i++)
		if (i < conn_ports && conn_port[i] == port)
			return true;
	return false;
}

static __always_inline bool conn_wants_current(void)
{
	return filter_wants_current(conn_filter) && (!conn_by_uid || (__u32)bpf_get_current_uid_gid() == conn_uid);
}

static __always_inline void conn_begins(const bool raw, struct sock *sk, __u64 address)
{
	struct conn_row *r = cpu_row(&conn_rows);
	struct conn_counts *counts;
	struct conn_starts *set;
	struct conn_start *start;
	bool displaced = false;
	__u32 way = 0;

	if (!conn_wants_current() || !conn_to_port(raw, sk))
		return;
	set = way_find(&conn_starts, conn_mask, address, &way);
	if (!set)
		set = set_claim(&conn_starts, conn_mask, address, &way, &displaced);
	if (!set)
		return;
	if (r) {
		COUNT(r->all);
		if (displaced)
			COUNT(r->displaced);
	}
	start = &set->starts[way];
	start->cgroup = bpf_get_current_cgroup_id();
	start->thread = bpf_get_current_pid_tgid();
	start->uid = bpf_get_current_uid_gid();
	process_name(start->comm);
	start->ns = bpf_ktime_get_ns();
	counts = OWN(counts_of_thread)();
	if (counts)
		counts->all++;
}

/* The thread that connected may have ended; its counts stay for a second or more. */
static __always_inline void conn_failed(struct conn_row *r, __u64 thread, __u32 err)
{
	struct conn_counts *counts = NULL;
	__u32 place;

	if (err == ECONNREFUSED)
		COUNT(r->refused);
	else if (err == ETIMEDOUT)
		COUNT(r->timedout);
	else if (err == EHOSTUNREACH || err == ENETUNREACH)
		COUNT(r->unreachable);
	else
		COUNT(r->other);
	if (OWN(known)(thread, &place))
		counts = row(&conn_counts, place);
	if (counts)
		ADD(counts->failed, 1);
	else
		LOSE(conn_losses, lost);
}

static __always_inline void conn_show(const bool raw, struct conn_row *r, struct sock *sk, struct conn_start *start, __u64 lat, __u32 err)
{
	__u32 pid = start->thread >> 32;
	struct conn_event *e = EVENT(conn, struct conn_event, pid);
	struct ends ends = {};

	if (!e) {
		COUNT(r->unshown);
		return;
	}
	e->head.cgroup = start->cgroup;
	e->lat = lat;
	ends_of(raw, sk, &ends);
	e->local[0] = ends.local[0];
	e->local[1] = ends.local[1];
	e->remote[0] = ends.remote[0];
	e->remote[1] = ends.remote[1];
	e->family = ends.family;
	e->lport = ends.lport;
	e->rport = ends.rport;
	e->pad = 0;
	e->pid = pid;
	e->uid = start->uid;
	e->err = err;
	e->comm[0] = start->comm[0];
	e->comm[1] = start->comm[1];
	conn_done(e);
}

static __always_inline void conn_count_peer(const bool raw, struct sock *sk, __u64 lat, __u32 err)
{
	const bool plain = group_plain(conn_net_shared);
	__u32 index = place_index(&conn_nets, conn_net_mask, network_of(raw, &conn_networks, sk));
	struct conn_peer *peer = place_row(&conn_peers, &conn_peer_marks, conn_net_mask, conn_net_shift, index);

	if (!peer)
		return;
	if (err)
		GROUP_SUM(peer->failed, 1);
	else
		GROUP_TIME(peer->times, lat);
}

static __always_inline struct conn_listener *conn_listener(__u64 port)
{
	return place_row(&conn_listeners, &conn_port_marks, conn_lport_mask, conn_lport_shift,
			 place_index(&conn_lports, conn_lport_mask, port));
}

/* A connection that somebody else opened is established, and waits for accept. */
static __always_inline void conn_waits(const bool raw, struct conn_row *r, struct sock *sk, __u64 address)
{
	struct conn_queued *queued;
	struct conn_queue *set;
	bool displaced = false;
	__u32 way = 0;

	set = set_claim(&conn_queue, conn_queue_mask, address, &way, &displaced);
	if (!set)
		return;
	if (displaced)
		COUNT(r->unqueued);
	queued = &set->queued[way];
	queued->port = GET(sk, __sk_common.skc_num);
	queued->ns = bpf_ktime_get_ns();
}

/* It is accepted, or else closed. */
static __always_inline void conn_leaves(__u64 address, bool accepted)
{
	const bool plain = group_plain(conn_lport_shared);
	__u64 now = bpf_ktime_get_ns(), ns, port;
	struct conn_listener *listener;
	struct conn_queue *set;
	__u32 way = 0;

	set = way_find(&conn_queue, conn_queue_mask, address, &way);
	if (!set)
		return;
	ns = set->queued[way].ns;
	port = set->queued[way].port;
	way_free(set, way, address);
	if (accepted && !conn_wants_current())
		return;
	listener = conn_listener(port);
	if (!listener)
		return;
	if (accepted)
		GROUP_TIME(listener->accepts, now - ns);
	else
		GROUP_SUM(listener->closed, 1);
}

static __always_inline void conn_ends(const bool raw, struct sock *sk, __u64 address, int from, int to)
{
	__u64 now = bpf_ktime_get_ns(), lat;
	struct conn_row *r = cpu_row(&conn_rows);
	struct conn_starts *set;
	struct conn_start *start;
	__u32 way = 0, err = 0;

	if (!r)
		return;
	set = way_find(&conn_starts, conn_mask, address, &way);
	if (!set) {
		if (from == TCP_SYN_SENT && !conn_filter && !conn_by_uid && !conn_ports)
			COUNT(r->unseen);
		if (conn_accepts && from == TCP_SYN_RECV && to == TCP_ESTABLISHED)
			conn_waits(raw, r, sk, address);
		return;
	}
	start = &set->starts[way];
	lat = now - start->ns;
	if (to != TCP_ESTABLISHED) {
		err = GET(sk, sk_err);
		if (!err)
			err = ECONNABORTED; /* closed before the answer */
		conn_failed(r, start->thread, err);
	} else {
		FINE_COUNT(r->times, lat);
	}
	if (conn_by_net)
		conn_count_peer(raw, sk, lat, err);
	if (lat >= conn_min)
		conn_show(raw, r, sk, start, lat, err);
	way_free(set, way, address);
}

/* Of two that connect to each other at once, both go by SYN_RECV. */
ON(inet_sock_set_state, struct sock *sk, int from, int to)
{
	bool closes = conn_accepts && to == TCP_CLOSE, begins = to == TCP_SYN_SENT;
	bool ends = !begins && to != TCP_SYN_RECV && (from == TCP_SYN_SENT || from == TCP_SYN_RECV);
	__u64 address;

	if (!begins && !ends && !closes)
		return;
	if (GET(sk, sk_protocol) != IPPROTO_TCP)
		return;
	address = sock_number(raw, ctx, sk);
	if (begins)
		conn_begins(raw, sk, address);
	else if (ends)
		conn_ends(raw, sk, address, from, to);
	else
		conn_leaves(address, false);
}

ON_RETURN(inet_csk_accept, 0, struct sock *sk)
{
	struct conn_row *first = row(&conn_rows, 0);
	__u64 address;

	if (!conn_accepts)
		return;
	address = sock_accepted(raw, ctx, sk);
	if (first && !first->accepts)
		first->accepts = 1; /* once: all CPUs read it */
	if (address)
		conn_leaves(address, true);
}

/* Where nobody can be seen to accept, the first send or receive ends the wait. */
static __always_inline void conn_used(const bool raw, void *ctx, struct sock *sk)
{
	struct conn_row *first = row(&conn_rows, 0);

	if (conn_accepts && first && !first->accepts && GET(sk, sk_protocol) == IPPROTO_TCP)
		conn_leaves(sock_number(raw, ctx, sk), true);
}

ON(sock_send_length, struct sock *sk, int ret, int flags)
{
	conn_used(raw, ctx, sk);
}

ON(sock_recv_length, struct sock *sk, int ret, int flags)
{
	conn_used(raw, ctx, sk);
}
