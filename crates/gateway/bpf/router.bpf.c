// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Takes the TCP connections of hosts behind an interface, and their datagrams (UDP), to the gateway's sockets, transparently to
 * these hosts.
 *
 * At ingress, packets that the gateway carries get a mark, by which a routing rule delivers them to this host though they are for
 * others; select_socket then gives the first packet of a connection the gateway's listener, whatever its address and port. (Not
 * bpf_sk_assign() at ingress: a SYN to an address and port that are in TIME_WAIT would not find the listener.) SYNs are held until
 * the gateway has connected to the destination. To release one, the gateway sends it out by the interface, where lan_egress
 * turns it round, so that it is received again.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "intf.h"
#include "kernel.h"
#include "loopback.h"

#define PORT_DNS 53
#define FRAGMENT_OFFSET 0x1fff
#define FRAGMENT6_OFFSET 0xfff8
/* What the programs do after this one decide. */
#define PASS_THROUGH TC_ACT_UNSPEC

/* The context of a program as the kernel has it, whose offsets the kernel checks (since Linux 6.2). */
extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_router_settings);
} settings SEC(".maps");

/* The interfaces' indices. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

/* What is not carried; the kind of the longest network that contains a destination. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct plait_network);
	__type(value, __u32);
} networks SEC(".maps");

/* Connections whose SYNs are dropped, until the gateway deletes them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct plait_lan_flow);
	__type(value, __u8);
} held_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} held_syns SEC(".maps");

/* Emptied by the kernel when the gateway's sockets are closed. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, PLAIT_SOCKETS);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

/* Packets that were dropped because the gateway does not carry them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

/* Offsets are from the start of the packet data. Addresses and ports are in network order. */
struct packet {
	__u32 ip_at;
	__u32 transport_at;
	__u32 is_v6;
	__u32 protocol;
	/* Without a transport header. */
	__u32 is_fragment;
	struct plait_lan_flow flow;
};

static __always_inline struct plait_router_settings read_settings(void)
{
	struct plait_router_settings *config, none = {};
	__u32 zero = 0;

	config = bpf_map_lookup_elem(&settings, &zero);
	return config ? *config : none;
}

/* The kind of network that a destination is in; 0: the gateway carries it. */
static __always_inline __u32 network_of(const __u32 destination[4])
{
	struct plait_network key = {.prefix = 128};
	__u32 *kind;

	__builtin_memcpy(key.address, destination, sizeof(key.address));
	kind = bpf_map_lookup_elem(&networks, &key);
	return kind ? *kind : 0;
}

static __always_inline int load_v4(struct __sk_buff *skb, struct packet *packet)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, packet->ip_at, &ip, sizeof(ip)))
		return -1;
	packet->is_v6 = 0;
	packet->protocol = ip.protocol;
	packet->is_fragment = !!(ip.frag_off & bpf_htons(FRAGMENT_OFFSET));
	packet->transport_at = packet->ip_at + ip.ihl * 4;
	packet->flow.client[2] = MAPPED;
	packet->flow.client[3] = ip.saddr;
	packet->flow.destination[2] = MAPPED;
	packet->flow.destination[3] = ip.daddr;
	return 0;
}

/* RFC 8200, section 4.5. */
struct fragment_header {
	__u8 next_header;
	__u8 reserved;
	__be16 offset;
	__be32 identification;
};

static __always_inline int load_v6(struct __sk_buff *skb, struct packet *packet)
{
	struct fragment_header fragment;
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, packet->ip_at, &ip, sizeof(ip)))
		return -1;
	packet->is_v6 = 1;
	/* Behind extension headers, nothing is carried but fragments of datagrams. */
	packet->protocol = ip.nexthdr;
	packet->transport_at = packet->ip_at + sizeof(ip);
	if (ip.nexthdr == IPPROTO_FRAGMENT) {
		if (bpf_skb_load_bytes(skb, packet->transport_at, &fragment, sizeof(fragment)))
			return -1;
		if (fragment.next_header == IPPROTO_UDP) {
			packet->protocol = IPPROTO_UDP;
			packet->is_fragment = !!(fragment.offset & bpf_htons(FRAGMENT6_OFFSET));
			packet->transport_at += sizeof(fragment);
		}
	}
	__builtin_memcpy(packet->flow.client, &ip.saddr, sizeof(ip.saddr));
	__builtin_memcpy(packet->flow.destination, &ip.daddr, sizeof(ip.daddr));
	return 0;
}

/* Returns -1 if it is not IP. */
static __always_inline int load(struct __sk_buff *skb, struct packet *packet)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);

	packet->ip_at = kernel->network_header - (__u32)(kernel->data - kernel->head);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return load_v4(skb, packet);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return load_v6(skb, packet);
	return -1;
}

/* TCP and UDP begin with the ports. */
static __always_inline int load_ports(struct __sk_buff *skb, struct packet *packet)
{
	__be16 ports[2];

	if (packet->is_fragment || (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP))
		return 0;
	if (bpf_skb_load_bytes(skb, packet->transport_at, ports, sizeof(ports)))
		return -1;
	packet->flow.client_port = ports[0];
	packet->flow.destination_port = ports[1];
	return 0;
}

/* The state of the socket of a connection; 0: there is none. */
static __always_inline __u32 state_of(struct __sk_buff *skb, const struct plait_lan_flow *flow, int is_v6)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	__u32 size, state;

	if (is_v6) {
		__builtin_memcpy(tuple.ipv6.saddr, flow->client, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, flow->destination, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = flow->client_port;
		tuple.ipv6.dport = flow->destination_port;
		size = sizeof(tuple.ipv6);
	} else {
		tuple.ipv4.saddr = flow->client[3];
		tuple.ipv4.daddr = flow->destination[3];
		tuple.ipv4.sport = flow->client_port;
		tuple.ipv4.dport = flow->destination_port;
		size = sizeof(tuple.ipv4);
	}
	sk = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	state = sk->state;
	bpf_sk_release(sk);
	return state;
}

static __always_inline int deliver(struct __sk_buff *skb)
{
	skb->mark = PLAIT_MARK_LOCAL;
	return PASS_THROUGH;
}

/* Drops a SYN, and reports it unless it was before. TCP sends those again that could not be reported. */
static __always_inline int hold(struct __sk_buff *skb, const struct packet *packet, __u32 data_offset)
{
	__u32 length = packet->transport_at - packet->ip_at + data_offset;
	struct plait_lan_syn *syn;
	__u8 held = 1;

	if (bpf_map_lookup_elem(&held_flows, &packet->flow))
		return TC_ACT_SHOT;
	syn = bpf_ringbuf_reserve(&held_syns, sizeof(*syn), 0);
	if (!syn)
		return TC_ACT_SHOT;
	/* In a form that the compiler does not merge, so that the verifier sees the bounds. */
	asm volatile("" : "+r"(length));
	if (length < 40 || length > PLAIT_SYN_MAX_LEN ||
	    bpf_skb_load_bytes(skb, packet->ip_at, syn->headers, length) ||
	    bpf_map_update_elem(&held_flows, &packet->flow, &held, BPF_ANY)) {
		bpf_ringbuf_discard(syn, 0);
		return TC_ACT_SHOT;
	}
	syn->interface = skb->ifindex;
	syn->length = length;
	bpf_ringbuf_submit(syn, 0);
	return TC_ACT_SHOT;
}

static __always_inline int take_tcp(struct __sk_buff *skb, const struct packet *packet)
{
	struct tcphdr tcp;
	__u32 state;

	/* Reassembly is for this host. */
	if (packet->is_fragment)
		return deliver(skb);
	if (bpf_skb_load_bytes(skb, packet->transport_at, &tcp, sizeof(tcp)))
		return TC_ACT_SHOT;
	if (!tcp.syn || tcp.ack || tcp.rst)
		return deliver(skb);
	state = state_of(skb, &packet->flow, packet->is_v6);
	if (state && state != BPF_TCP_LISTEN && state != BPF_TCP_TIME_WAIT)
		return deliver(skb);
	return hold(skb, packet, tcp.doff * 4);
}

static __always_inline int leave(struct plait_router_settings config)
{
	__u32 zero = 0;
	__u64 *count;

	if (!config.closed)
		return PASS_THROUGH;
	count = bpf_map_lookup_elem(&dropped, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return TC_ACT_SHOT;
}

SEC("tcx/ingress")
int lan_ingress(struct __sk_buff *skb)
{
	struct plait_router_settings config;
	struct packet packet = {};
	__u32 network;
	int is_dns;

	/* By the program of a router that is being replaced. */
	if (skb->mark == PLAIT_MARK_LOCAL)
		return PASS_THROUGH;
	if (skb->mark == PLAIT_MARK_RELEASED) {
		/* It has the client's link address, to which it was sent. */
		bpf_skb_change_type(skb, PACKET_HOST);
		return deliver(skb);
	}
	if (load(skb, &packet))
		return PASS_THROUGH;
	config = read_settings();
	if (load_ports(skb, &packet))
		return TC_ACT_SHOT;
	is_dns = config.dns && packet.flow.destination_port == bpf_htons(PORT_DNS);
	network = network_of(packet.flow.destination);
	if (network && !(network == PLAIT_NETWORK_OWN && is_dns))
		return PASS_THROUGH;
	if (packet.is_v6 && is_mapped(packet.flow.destination))
		return leave(config);
	if (packet.protocol == IPPROTO_TCP)
		return take_tcp(skb, &packet);
	if (packet.protocol == IPPROTO_UDP && (is_dns || config.datagrams))
		return deliver(skb);
	return leave(config);
}

/* Receives a released SYN again. */
SEC("tcx/egress")
int lan_egress(struct __sk_buff *skb)
{
	if (skb->mark == PLAIT_MARK_RELEASED)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	return PASS_THROUGH;
}

SEC("sk_lookup")
int select_socket(struct bpf_sk_lookup *ctx)
{
	struct plait_router_settings config = read_settings();
	int is_dns = config.dns && ctx->local_port == PORT_DNS;
	__u32 interface = ctx->ingress_ifindex, v4 = ctx->local_ip4, network, index;
	__u32 destination[4] = {ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3]};
	int is_v6 = ctx->family == AF_INET6, is_tcp = ctx->protocol == IPPROTO_TCP;
	struct bpf_sock *sk;
	long error;

	if (!bpf_map_lookup_elem(&interfaces, &interface))
		return SK_PASS;
	/* Read in any case: the verifier allows no computed offset. */
	asm volatile("" : "+r"(v4));
	if (!is_v6) {
		destination[2] = MAPPED;
		destination[3] = v4;
	}
	if (is_tcp)
		index = is_v6 ? PLAIT_SOCKET_TCP6 : PLAIT_SOCKET_TCP4;
	else
		index = is_v6 ? PLAIT_SOCKET_UDP6 : PLAIT_SOCKET_UDP4;
	network = network_of(destination);
	if (network && !(network == PLAIT_NETWORK_OWN && is_dns))
		return SK_PASS;
	if (!is_tcp && !is_dns && !config.datagrams)
		return SK_PASS;
	sk = bpf_map_lookup_elem(&sockets, &index);
	/* No service of this host answers in the name of others. */
	if (!sk)
		return network ? SK_PASS : SK_DROP;
	error = bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return error ? SK_DROP : SK_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
