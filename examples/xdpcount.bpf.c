// SPDX-License-Identifier: GPL-2.0-or-later
// Which protocols arrive at an interface, before the kernel does anything with them? The section names the interface; here it is lo.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct protocol_key {
	__u8 version;
	__u8 protocol;
};

// A value for each CPU, so that none waits for another; the agent adds them up.
#define BY_PROTOCOL(NAME)                               \
	struct {                                        \
		__uint(type, BPF_MAP_TYPE_PERCPU_HASH); \
		__uint(max_entries, 1024);              \
		__type(key, struct protocol_key);       \
		__type(value, __u64);                   \
	} NAME SEC(".maps")

BY_PROTOCOL(xdp_packets_total);
BY_PROTOCOL(xdp_bytes_total);

static __always_inline void count(void *map, struct protocol_key *key, __u64 more)
{
	__u64 *value = bpf_map_lookup_elem(map, key);

	if (value)
		*value += more;
	else
		bpf_map_update_elem(map, key, &more, BPF_NOEXIST);
}

SEC("xdp/lo")
int packet_arrived(struct xdp_md *ctx)
{
	void *begin = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = begin;
	struct iphdr *ip = begin + sizeof(*ethernet);
	struct ipv6hdr *ip6 = begin + sizeof(*ethernet);
	struct protocol_key key = {};

	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP) && (void *)(ip + 1) <= end) {
		key.version = 4;
		key.protocol = ip->protocol;
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end) {
		key.version = 6;
		key.protocol = ip6->nexthdr;
	}
	count(&xdp_packets_total, &key, 1);
	count(&xdp_bytes_total, &key, end - begin);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
