// SPDX-License-Identifier: GPL-2.0-or-later
// To which addresses does TCP send again what got lost?
#include <linux/bpf.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "add.bpf.h"

#define AF_INET6 10

struct sock_common {
	unsigned short skc_family;
	__u32 skc_daddr;
	struct in6_addr skc_v6_daddr;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct in6_addr);
	__type(value, __u64);
} tcp_retransmits_total SEC(".maps");

SEC("raw_tp/tcp_retransmit_skb")
int segment_repeated(struct bpf_raw_tracepoint_args *ctx)
{
	struct sock *sock = (struct sock *)ctx->args[0];
	struct in6_addr to = {};

	if (BPF_CORE_READ(sock, __sk_common.skc_family) == AF_INET6) {
		BPF_CORE_READ_INTO(&to, sock, __sk_common.skc_v6_daddr);
	} else {
		// An address of IPv4 as IPv6 has it, ::ffff:192.0.2.1; `inet_ip` prints it as one of IPv4.
		to.in6_u.u6_addr16[5] = 0xffff;
		to.in6_u.u6_addr32[3] = BPF_CORE_READ(sock, __sk_common.skc_daddr);
	}
	add(&tcp_retransmits_total, &to, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
