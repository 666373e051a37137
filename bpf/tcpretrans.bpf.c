/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Retransmitted segments by connection. A row belongs to a socket until that closes; then the agent takes the count over
 * and gives the row back. Retransmissions happen in interrupts of strangers, so where processes are asked for the owner of
 * a socket is remembered whenever it connects, sends, receives or closes.
 */
#include "shared/owned.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/sock.bpf.h"
#include "shared/set_table.bpf.h"

#define RETRANS_PLACES 8
#define ICSK_TIME_LOSS_PROBE 5
#define TCP_CA_RECOVERY 3

struct retrans_row {
	__u64 claims;
	__u64 sk;     /* 0: free */
	__u64 closed;
	__u64 count;
	__u64 owner;  /* process; 0: not known yet */
	__u64 family;
	__u64 ports;  /* local port << 16 | remote port */
	__u64 local[2];
	__u64 remote[2];
	__u64 wanted; /* the owner was seen to be in the filter */
	__u64 pad[4];
};

struct retrans_stat {
	__u64 lost; /* segments whose connection found no place */
	__u64 pad[7];
};

struct retrans_owner {
	__u32 process;
	__u32 wanted; /* it was in the filter then; it may be gone now */
};

/* By socket. */
struct retrans_owners {
	__u64 keys[SET_WAYS];
	struct retrans_owner owners[SET_WAYS];
};

ROWS(retrans_rows, struct retrans_row);
ROWS(retrans_marks, struct mark);
ROWS(retrans_stats, struct retrans_stat);
PRIVATE(retrans_owners, struct retrans_owners);
/* By a part of the hash: rows whose sockets have not closed. Mostly none: then nobody looks for one. */
PRIVATE(retrans_open, __u64);

const volatile __u32 retrans_mask;       /* rows - 1 */
const volatile __u32 retrans_part_shift; /* log2 of the rows that share a mark */
const volatile __u32 retrans_owner_mask; /* sets - 1 */
const volatile __u64 retrans_filter;
const volatile bool retrans_tlp;         /* tail loss probes count too */

static __always_inline void retrans_owned(__u64 sk)
{
	__u32 way = 0;
	struct retrans_owners *set = way_find(&retrans_owners, retrans_owner_mask, sk, &way);
	struct retrans_owner *owner;
	bool displaced; /* that connection's retransmissions, if there are any, will have no owner, and are counted then */

	if (!set)
		set = set_claim(&retrans_owners, retrans_owner_mask, sk, &way, &displaced);
	if (!set)
		return;
	owner = &set->owners[way];
	owner->process = bpf_get_current_pid_tgid() >> 32;
	owner->wanted = filter_wants(retrans_filter, owner->process);
}

static __always_inline struct retrans_owner *retrans_owner_of(__u64 sk)
{
	__u32 way = 0;
	struct retrans_owners *set = way_find(&retrans_owners, retrans_owner_mask, sk, &way);

	return set ? &set->owners[way] : NULL;
}

/* Once a row counts it does so to its end, whatever becomes of the process. */
static __always_inline void retrans_judge(struct retrans_row *r)
{
	struct retrans_owner *owner = r->wanted ? NULL : retrans_owner_of(r->sk);

	if (!owner)
		return;
	r->owner = owner->process;
	r->wanted = owner->wanted || filter_wants(retrans_filter, owner->process);
}

/*
 * A tail loss probe repeats the last segment from its timer, which is still pending then, of a connection that has lost
 * nothing yet; every other retransmission has entered recovery or cleared the timer (tcp_send_loss_probe,
 * tcp_write_timer_handler).
 */
static __always_inline bool retrans_is_probe(struct sock *sk)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;

	return BPF_CORE_READ(icsk, icsk_pending) == ICSK_TIME_LOSS_PROBE &&
	       BPF_CORE_READ_BITFIELD_PROBED(icsk, icsk_ca_state) < TCP_CA_RECOVERY;
}

static __always_inline __u64 *retrans_open_of(__u32 hash)
{
	return row(&retrans_open, hash & retrans_mask);
}

/* Fills a claimed row in; false where that socket has no row, and the agent frees this one, as one that two claimed. */
static __always_inline bool retrans_begin(const bool raw, struct retrans_row *r, struct sock *sk, __u64 number, __u32 hash)
{
	__u64 *open = retrans_open_of(hash);
	struct ends ends;

	if (!ends_of(raw, sk, &ends)) {
		ADD(r->claims, 1);
		return false;
	}
	r->family = ends.family;
	r->ports = (__u64)ends.lport << 16 | ends.rport;
	r->local[0] = ends.local[0];
	r->local[1] = ends.local[1];
	r->remote[0] = ends.remote[0];
	r->remote[1] = ends.remote[1];
	*(volatile __u64 *)&r->sk = number;
	if (open)
		ADD(*open, 1);
	return true;
}

/* What the close of a socket, or of an earlier one at its address, leaves behind is no longer its own. */
static __always_inline void retrans_close(__u64 number, bool judge)
{
	__u32 hash = number_hash(number);
	__u64 *open = retrans_open_of(hash);

	if (!open || likely(!*open))
		return;
#pragma clang loop unroll(disable)
	for (int i = 0; i < RETRANS_PLACES; i++) {
		struct retrans_row *r = row(&retrans_rows, number_slot(hash, i) & retrans_mask);

		if (!r || r->sk != number || r->closed)
			continue;
		if (judge)
			retrans_judge(r);
		r->closed = 1;
		ADD(*open, -1);
	}
}

ON(tcp_retransmit_skb, struct sock *sk, struct sk_buff *skb)
{
	struct retrans_row *r;
	__u32 hash, place;
	__u64 number;

	if (bpf_core_field_exists(((struct trace_event_raw_tcp_retransmit_skb *)0)->err) && (int)((__u64 *)ctx)[2])
		return;
	if (!retrans_tlp && retrans_is_probe(sk))
		return;
	number = sock_number(raw, ctx, sk);
	hash = number_hash(number);
	OWNED_ROW(r, place, &retrans_rows, RETRANS_PLACES, number_slot(hash, nth) & retrans_mask,
		  r->sk == number && !r->closed, claim_marked(&r->claims, &retrans_marks, place >> retrans_part_shift), {
			  if (!retrans_begin(raw, r, sk, number, hash))
				  r = NULL;
		  });
	if (r) {
		if (retrans_filter)
			retrans_judge(r);
		ADD(r->count, 1);
	} else {
		LOSE(retrans_stats, lost);
	}
}

ON(inet_sock_set_state, struct sock *sk, int from, int to)
{
	__u64 number;
	__u32 way = 0;

	if (to != TCP_CLOSE && to != TCP_SYN_SENT && !(retrans_filter && (to == TCP_FIN_WAIT1 || to == TCP_LAST_ACK)))
		return;
	if (from == TCP_LISTEN || GET(sk, sk_protocol) != IPPROTO_TCP)
		return;
	number = sock_number(raw, ctx, sk);
	/* Whoever connects; whoever closes only if nobody used the socket before. */
	if (retrans_filter && (to == TCP_SYN_SENT || (to != TCP_CLOSE && !retrans_owner_of(number))))
		retrans_owned(number);
	if (to == TCP_FIN_WAIT1 || to == TCP_LAST_ACK)
		return;
	/* Also when a socket connects: the close of an earlier one at its address may not have been seen. */
	retrans_close(number, retrans_filter && to == TCP_CLOSE);
	if (retrans_filter && to == TCP_CLOSE) {
		struct retrans_owners *set = way_find(&retrans_owners, retrans_owner_mask, number, &way);

		if (set)
			way_free(set, way, number);
	}
}

/* Who reads what is left of a connection that is closed already does not get it a place that no close would free. */
static __always_inline void retrans_used(const bool raw, struct sock *sk, __u64 number)
{
	if (GET(sk, sk_protocol) == IPPROTO_TCP && GET(sk, __sk_common.skc_state) != TCP_CLOSE)
		retrans_owned(number);
}

static __always_inline void OWN(sent)(const bool raw, struct sock *sk, void *at, int ret)
{
	if (retrans_filter)
		retrans_used(raw, sk, sock_number(raw, at, sk));
}

static __always_inline void OWN(received)(const bool raw, struct sock *sk, void *at, int flags, int ret)
{
	OWN(sent)(raw, sk, at, ret);
}

#include "shared/sock_calls.bpf.h"

ON_ENTRY(tcp_sendmsg, struct sock *sk)
{
	if (raw && retrans_filter)
		retrans_used(raw, sk, (__u64)sk);
}

ON_ENTRY(tcp_cleanup_rbuf, struct sock *sk, int copied)
{
	if (raw && retrans_filter)
		retrans_used(raw, sk, (__u64)sk);
}
