/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The network that a remote address belongs to, as a number: with lengths of prefixes the prefix itself, with a list the place in the list
 * and one. Each module has the networks of its own configuration as a constant (src/modules/shared/numbers.rs).
 */
#pragma once

#include "sock.bpf.h"

#define NETWORKS 64

/* The prefix of an IPv6 address is the number of its first 64 bits. 0:200::/24 and 0:100::/24, where these two are, is nobody's. */
#define NETWORK_ZERO (1ULL << 41) /* the prefix that has no bit set */
#define NETWORK_IPV4 (1ULL << 40)

struct networks {
	__u64 prefixes[2];	/* masks of IPv4 and IPv6 */
	__u64 bits[NETWORKS];
	__u64 masks[NETWORKS];
	__u32 ipv4;		/* the list begins with so many networks of IPv4 */
	__u32 all;		/* so long is the list; 0: by prefix */
};

/* A loop: unrolled it is ten times the code. */
static __always_inline __u64 network_in_list(const volatile struct networks *of, __u64 bits, __u32 from, __u32 to)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < NETWORKS; i++)
		if (i >= from && i < to && (bits & of->masks[i]) == of->bits[i])
			return i + 1;
	return 0;
}

/* 0: none. An address of IPv4 that is mapped into IPv6 is one of IPv4. */
static __always_inline __u64 network_of(const bool raw, const volatile struct networks *of, struct sock *sk)
{
	bool is_ipv4 = GET(sk, __sk_common.skc_family) == AF_INET;
	__u64 bits;

	if (is_ipv4) {
		bits = __builtin_bswap32(GET(sk, __sk_common.skc_daddr));
	} else {
		bits = (__u64)__builtin_bswap32(GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[0])) << 32 |
		       __builtin_bswap32(GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[1]));
		if (!bits && GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[2]) == __builtin_bswap32(0xffff)) {
			bits = __builtin_bswap32(GET(sk, __sk_common.skc_v6_daddr.in6_u.u6_addr32[3]));
			is_ipv4 = true;
		}
	}
	if (of->all) {
		if (is_ipv4)
			return network_in_list(of, bits, 0, of->ipv4);
		return network_in_list(of, bits, of->ipv4, of->all);
	}
	if (is_ipv4)
		return NETWORK_IPV4 | (bits & of->prefixes[0]);
	bits &= of->prefixes[1];
	return bits ? bits : NETWORK_ZERO;
}
