/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Bytes by process and TCP connection. A row is found by both ends and the process, not by the socket, whose address the
 * kernel gives to the next connection. Rows that rest are given back by the agent (src/modules/shared/flows.rs); a process whose
 * row was given back, or who found two rows at once, has its bytes in several: they are added up there.
 */
#pragma once

#include "owned.bpf.h"
#include "filter.bpf.h"
#include "sock.bpf.h"
#include "set_table.bpf.h"

#define FLOW_PLACES 8

struct flow {
	__u64 claims;
	__u64 ident; /* process | local port << 32 | remote port << 48; 0: free */
	__u64 local[2];
	__u64 remote[2];
	__u64 tx;
	__u64 rx;
	__u64 comm[2];
	__u64 born;    /* start time of the process */
	__u64 family;
	__u64 retired; /* set by the agent: about to be given back, take another */
	__u64 execs;   /* of the process when its name was taken */
	__u64 pad[2];
};

struct flow_stat {
	__u64 lost;  /* calls whose connection found no place */
	__u64 taken; /* calls that found a free row: as long as this stands still, the agent knows every row in use */
	__u64 pad[6];
};

const volatile __u32 flow_mask;         /* rows - 1 */
const volatile __u32 flow_part_shift;   /* log2 of the rows that share a mark */
const volatile __u32 flow_sending_mask;

static __always_inline void flow_begin(struct flow *flow, const struct ends *ends, __u64 ident)
{
	process_name(flow->comm);
	flow->execs = process_execs();
	flow->born = process_born();
	flow->family = ends->family;
	flow->local[0] = ends->local[0];
	flow->local[1] = ends->local[1];
	flow->remote[0] = ends->remote[0];
	flow->remote[1] = ends->remote[1];
	*(volatile __u64 *)&flow->ident = ident;
}

static __always_inline bool flow_is(const struct flow *flow, const struct ends *ends, __u64 ident)
{
	__u64 differs = flow->ident ^ ident;

	differs |= flow->remote[0] ^ ends->remote[0];
	differs |= flow->remote[1] ^ ends->remote[1];
	differs |= flow->local[0] ^ ends->local[0];
	differs |= flow->local[1] ^ ends->local[1];
	return !(differs | flow->retired);
}

static __always_inline void flow_add(const bool raw, void *flows, void *marks, void *stats, struct sock *sk, __u64 tx, __u64 rx)
{
	__u64 ident = bpf_get_current_pid_tgid() >> 32;
	struct flow_stat *stat;
	__u32 hash, place;
	struct flow *flow;
	struct ends ends;

	if (!ends_of(raw, sk, &ends))
		return;
	ident |= (__u64)ends.lport << 32 | (__u64)ends.rport << 48;
	hash = number_hash(ident ^ ends.remote[0] ^ ends.remote[1] >> 7);
	OWNED_ROW(flow, place, flows, FLOW_PLACES, number_slot(hash, nth) & flow_mask, flow_is(flow, &ends, ident),
		  claim_marked(&flow->claims, marks, place >> flow_part_shift), {
			  flow_begin(flow, &ends, ident);
			  stat = cpu_row(stats);
			  if (stat)
				  ADD(stat->taken, 1); /* after the claim: who sees this finds the row */
		  });
	if (flow) {
		if (tx)
			ADD(flow->tx, tx);
		if (rx)
			ADD(flow->rx, rx);
		return;
	}
	stat = cpu_row(stats);
	if (stat) {
		ADD(stat->lost, 1);
		ADD(stat->taken, 1); /* of a row that two have claimed, perhaps */
	}
}

/* The socket a thread is sending on, where only the end of tcp_sendmsg tells how much. */
static __always_inline void flow_send_begins(void *sends, __u64 sk)
{
	bool displaced;
	__u64 *sending = set_number(sends, flow_sending_mask, bpf_get_current_pid_tgid(), &displaced);

	if (sending)
		*sending = sk;
}

/* The socket whose send ends here; NULL: that is not known, the call counts as lost. */
static __always_inline struct sock *flow_send_ends(void *sends)
{
	__u64 sk;

	if (!set_take(sends, flow_sending_mask, bpf_get_current_pid_tgid(), &sk))
		return NULL;
	return (struct sock *)sk;
}
