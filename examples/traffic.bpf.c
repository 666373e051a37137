// SPDX-License-Identifier: GPL-2.0-or-later
// With which addresses do the processes below a cgroup exchange how much? The key `cgroup` of the YAML file says which cgroup.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "add.bpf.h"

#define RECEIVED 0
#define SENT 1

struct peer_key {
	__u32 direction;
	/* Of IPv4, as IPv6 has it: ::ffff:192.0.2.1. */
	__u8 address[16];
};

#define BY_PEER(NAME)                                \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_LRU_HASH); \
		__uint(max_entries, 16384);          \
		__type(key, struct peer_key);        \
		__type(value, __u64);                \
	} NAME SEC(".maps")

BY_PEER(traffic_packets_total);
BY_PEER(traffic_bytes_total);

// Returns 1, which lets the packet pass. It begins with its IP header: the source is at 12 or 8, the destination behind it.
static __always_inline int count(struct __sk_buff *skb, __u32 direction)
{
	struct peer_key key = { .direction = direction };
	long failed;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		key.address[10] = key.address[11] = 0xff;
		failed = bpf_skb_load_bytes(skb, direction == SENT ? 16 : 12, key.address + 12, 4);
	} else {
		failed = bpf_skb_load_bytes(skb, direction == SENT ? 24 : 8, key.address, 16);
	}
	if (!failed) {
		add(&traffic_packets_total, &key, 1);
		add(&traffic_bytes_total, &key, skb->len);
	}
	return 1;
}

SEC("cgroup_skb/ingress")
int packet_received(struct __sk_buff *skb)
{
	return count(skb, RECEIVED);
}

SEC("cgroup_skb/egress")
int packet_sent(struct __sk_buff *skb)
{
	return count(skb, SENT);
}

char LICENSE[] SEC("license") = "GPL";
