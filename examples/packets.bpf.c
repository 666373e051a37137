// SPDX-License-Identifier: GPL-2.0-or-later
// How much does each network device receive, those of containers included? Every network namespace has a number (readlink
// /proc/PID/ns/net) and devices of its own.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "add.bpf.h"

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	char name[16];
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
	unsigned int len;
} __attribute__((preserve_access_index));

struct device_key {
	__u32 namespace;
	char device[16];
};

#define BY_DEVICE(NAME)                              \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_LRU_HASH); \
		__uint(max_entries, 4096);           \
		__type(key, struct device_key);      \
		__type(value, __u64);                \
	} NAME SEC(".maps")

BY_DEVICE(received_packets_total);
BY_DEVICE(received_bytes_total);

SEC("raw_tp/netif_receive_skb")
int packet_received(struct bpf_raw_tracepoint_args *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx->args[0];
	struct net_device *device = BPF_CORE_READ(skb, dev);
	struct device_key key = { .namespace = BPF_CORE_READ(device, nd_net.net, ns.inum) };

	bpf_core_read_str(key.device, sizeof(key.device), &device->name);
	add(&received_packets_total, &key, 1);
	add(&received_bytes_total, &key, BPF_CORE_READ(skb, len));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
