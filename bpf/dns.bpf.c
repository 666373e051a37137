/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Questions to name servers over UDP, from the packet that asks to the packet that answers, as both pass the root of cgroup v2. A question
 * is known by its socket and the number in its header; names are not looked at.
 */
#include "shared/fine.bpf.h"
#include "shared/networks.bpf.h"
#include "shared/places.bpf.h"
#include "shared/set_table.bpf.h"

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define DNS_PORTS 4
#define DNS_PATIENCE 5000000000ULL /* an answer that comes later is none (src/modules/dns.rs) */

/* Codes of answers (RFC 1035). */
#define DNS_SERVFAIL 2
#define DNS_NXDOMAIN 3
#define DNS_REFUSED 5

/* A CPU. */
struct dns_row {
	__u64 queries;
	__u64 answers;
	__u64 servfail;
	__u64 nxdomain;
	__u64 refused;
	__u64 other;     /* other errors */
	__u64 displaced; /* questions that gave way to another's */
	struct fine_hist times;
};

/* Questions without an answer. What is too old the agent takes away. */
struct dns_waiting {
	__u64 keys[SET_WAYS];
	__u64 since[SET_WAYS];
	__u64 process[SET_WAYS];
	__u64 server[SET_WAYS];
};

/* A process or a server; all CPUs share its row. Counters only: the agent adds rows up word by word. */
struct dns_owner {
	__u64 used; /* whether a program has counted in it */
	__u64 queries;
	__u64 answers;
	__u64 ns;
	__u64 timeouts; /* the agent's to count */
	__u64 pad[3];
};

ROWS(dns_rows, struct dns_row);
ROWS(dns_waits, struct dns_waiting);
ROWS(dns_pids, struct place_owner);
ROWS(dns_by_pid, struct dns_owner);
ROWS(dns_pid_marks, struct mark);
ROWS(dns_servers, struct place_owner);
ROWS(dns_by_server, struct dns_owner);
ROWS(dns_srv_marks, struct mark);

const volatile __u32 dns_waits_mask; /* sets, less 1 */
const volatile __u32 dns_mask;       /* places of processes and of servers, less 1 */
const volatile __u16 dns_ports[DNS_PORTS]; /* in the order of the bytes on the wire; 0: no more */

/* What a packet says. */
struct dns_packet {
	__u64 server;
	__u64 key;
	__u16 flags;
};

static __always_inline bool dns_is_port(__u16 port)
{
	return port == dns_ports[0] || (dns_ports[1] && (port == dns_ports[1] || port == dns_ports[2] || port == dns_ports[3]));
}

/* Whether it is a packet of UDP to a server (`egress`) or from one, and what it says. Another packet costs a few loads. */
static __always_inline bool dns_read(struct __sk_buff *skb, bool egress, struct dns_packet *packet)
{
	__u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 offset, place = egress ? 2 : 0;
	__u16 header[2]; /* number and flags */
	__u64 address;

	if (skb->protocol == __builtin_bswap16(ETH_P_IP)) {
		if (data + 28 > end || data[9] != IPPROTO_UDP || data[0] != 0x45)
			return false;
		if (!dns_is_port(*(__u16 *)(data + 20 + place)))
			return false;
		address = NETWORK_IPV4 | __builtin_bswap32(*(__u32 *)(data + (egress ? 16 : 12)));
		offset = 28;
	} else if (skb->protocol == __builtin_bswap16(ETH_P_IPV6)) {
		__u32 *words;

		if (data + 48 > end || data[6] != IPPROTO_UDP)
			return false;
		if (!dns_is_port(*(__u16 *)(data + 40 + place)))
			return false;
		words = (__u32 *)(data + (egress ? 24 : 8));
		address = (__u64)__builtin_bswap32(words[0]) << 32 | __builtin_bswap32(words[1]);
		if (!address)
			address = NETWORK_ZERO;
		offset = 48;
	} else {
		return false;
	}
	if (bpf_skb_load_bytes(skb, offset, header, sizeof(header)))
		return false;
	packet->server = address;
	packet->key = bpf_get_socket_cookie(skb) << 16 | header[0];
	packet->flags = __builtin_bswap16(header[1]);
	return packet->key;
}

static __always_inline struct dns_owner *dns_of_process(__u64 process)
{
	return place_row(&dns_by_pid, &dns_pid_marks, dns_mask, ALL_CPUS, place_index(&dns_pids, dns_mask, process));
}

static __always_inline struct dns_owner *dns_of_server(__u64 server)
{
	return place_row(&dns_by_server, &dns_srv_marks, dns_mask, ALL_CPUS, place_index(&dns_servers, dns_mask, server));
}

ON_PACKET(egress)
{
	struct dns_row *r = cpu_row(&dns_rows);
	struct dns_packet packet;
	struct dns_waiting *set;
	struct task_struct *task;
	struct dns_owner *owner;
	bool displaced = false;
	__u64 process;
	__u32 way = 0;

	if (!dns_read(skb, true, &packet) || packet.flags & 0x8000 || !r)
		return;
	ADD(r->queries, 1);
	task = (void *)bpf_get_current_task();
	process = (__u32)BPF_CORE_READ(task, tgid);
	set = set_way(&dns_waits, dns_waits_mask, packet.key, &way, &displaced);
	if (displaced)
		ADD(r->displaced, 1);
	if (set) {
		set->since[way] = bpf_ktime_get_ns();
		set->process[way] = process;
		set->server[way] = packet.server;
	}
	owner = dns_of_process(process);
	if (owner)
		ADD(owner->queries, 1);
	owner = dns_of_server(packet.server);
	if (owner)
		ADD(owner->queries, 1);
}

static __always_inline void dns_answered(struct dns_owner *owner, __u64 ns)
{
	if (!owner)
		return;
	ADD(owner->answers, 1);
	ADD(owner->ns, ns);
}

ON_PACKET(ingress)
{
	struct dns_row *r = cpu_row(&dns_rows);
	struct dns_packet packet;
	struct dns_waiting *set;
	__u64 ns, process;
	__u32 way = 0, code;

	if (!dns_read(skb, false, &packet) || !(packet.flags & 0x8000) || !r)
		return;
	set = way_find(&dns_waits, dns_waits_mask, packet.key, &way);
	if (!set)
		return; /* nobody asked, or it is too late */
	ns = bpf_ktime_get_ns() - set->since[way];
	process = set->process[way];
	if (ns > DNS_PATIENCE)
		return;
	way_free(set, way, packet.key);
	ADD(r->answers, 1);
	code = packet.flags & 15;
	if (code == DNS_SERVFAIL)
		ADD(r->servfail, 1);
	else if (code == DNS_NXDOMAIN)
		ADD(r->nxdomain, 1);
	else if (code == DNS_REFUSED)
		ADD(r->refused, 1);
	else if (code)
		ADD(r->other, 1);
	FINE_COUNT_SHARED(r->times, ns);
	dns_answered(dns_of_process(process), ns);
	dns_answered(dns_of_server(packet.server), ns);
}
