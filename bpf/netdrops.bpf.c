/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Packets that the kernel drops, by reason; datagrams for which a socket had no room, by port; resets of TCP. */
#include "shared/places.bpf.h"
#include "shared/sock.bpf.h"

/* A reason or a port, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct drop_row {
	__u64 used; /* whether a program has counted in it */
	__u64 count;
	__u64 pad[6];
};

struct drop_resets {
	__u64 sent;
	__u64 received;
	__u64 pad[6];
};

ROWS(drop_reasons, struct place_owner);
ROWS(drop_counts, struct drop_row);
ROWS(drop_marks, struct mark); /* one for each row of a group */
ROWS(drop_ports, struct place_owner);
ROWS(drop_udp, struct drop_row);
ROWS(drop_udp_marks, struct mark);
ROWS(drop_resets, struct drop_resets);

const volatile __u32 drop_mask;  /* places of owners, less 1 */
const volatile __u32 drop_shift; /* 1 << this many CPUs share their rows */
const volatile __u32 drop_udp_mask;

static __always_inline void drop_count(__u64 reason)
{
	struct drop_row *r = place_row(&drop_counts, &drop_marks, drop_mask, drop_shift, place_index(&drop_reasons, drop_mask, reason));

	/* An interrupt can drop a packet while the task under it does: that program runs twice on this CPU. */
	if (r)
		ADD(r->count, 1);
}

/* A reason is its number and one; before 5.17, which has none, the place in the kernel that dropped the packet. */
ON(kfree_skb, struct sk_buff *skb, void *place, unsigned int reason)
{
	drop_count((__u64)reason + 1);
}

ON(kfree_skb___place, struct sk_buff *skb, void *place)
{
	drop_count((__u64)place);
}

ON(udp_fail_queue_rcv_skb, int error, struct sock *sk)
{
	__u64 port = GET(sk, __sk_common.skc_num);
	struct drop_row *r =
		place_row(&drop_udp, &drop_udp_marks, drop_udp_mask, ALL_CPUS, place_index(&drop_ports, drop_udp_mask, port));

	if (r)
		ADD(r->count, 1);
}

ON(tcp_send_reset, struct sock *sk)
{
	LOSE(drop_resets, sent);
}

ON(tcp_receive_reset, struct sock *sk)
{
	LOSE(drop_resets, received);
}
