// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Drops what leaves a network namespace outside of plait: every packet of a socket of this host, but those of gateways, to
 * excluded networks, and what a host needs to have addresses and neighbors at all.
 *
 * Attached to the root of the control groups by a link that is pinned, so that it outlives the gateway.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "networks.h"

/* In every network namespace (LOOPBACK_IFINDEX). */

/* RFC 4861, section 4: router solicitation to redirect. */
#define ICMPV6_ND_FIRST 133
#define ICMPV6_ND_LAST 137
/* RFC 3810, section 5.2, of which solicited-node addresses need reports. */
#define ICMPV6_MLD2_REPORT 143
/* RFC 791. */
#define FRAGMENT_OFFSET 0x1fff
/* An option that all reports have: its header precedes theirs. */
#define HOP_BY_HOP 0

/* The cookie of the network namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} namespaces SEC(".maps");

/* The ids of the cgroups of gateways. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, __u8);
} gateways SEC(".maps");

/*
 * Judges a packet of TCP or UDP. Names do not go to the resolver of an excluded network either, which would ask others: without a
 * gateway that redirects queries, they would leave readable.
 */
static __always_inline enum verdict judge_ports(struct __sk_buff *skb, __u32 offset, __u8 protocol,
						int is_excluded)
{
	struct ports ports;

	if (bpf_skb_load_bytes(skb, offset, &ports, sizeof(ports)) ||
	    ports.destination == bpf_htons(PORT_DNS))
		return REFUSE;
	return is_excluded || (protocol == IPPROTO_UDP && is_dhcp(ports.source, ports.destination)) ? ALLOW
												    : REFUSE;
}

/* Judges a packet of ICMP to an excluded network. */
static __always_inline enum verdict judge_excluded_icmp(struct __sk_buff *skb, __u32 offset)
{
	struct iphdr quoted;
	struct ports ports;
	__u8 type;

	if (bpf_skb_load_bytes(skb, offset, &type, sizeof(type)))
		return REFUSE;
	if (!is_error_v4(type))
		return ALLOW;
	offset += ICMP_ERROR_HEADER;
	if (bpf_skb_load_bytes(skb, offset, &quoted, sizeof(quoted)) ||
	    bpf_skb_load_bytes(skb, offset + quoted.ihl * 4, &ports, sizeof(ports)))
		return REFUSE;
	return is_dns(&ports) ? REFUSE : ALLOW;
}

static __always_inline enum verdict judge_v4(struct __sk_buff *skb)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
		return REFUSE;
	if (ip.frag_off & bpf_htons(FRAGMENT_OFFSET))
		return is_excluded_v4(ip.daddr) ? ALLOW : REFUSE;
	if (ip.protocol == IPPROTO_TCP || ip.protocol == IPPROTO_UDP)
		return judge_ports(skb, ip.ihl * 4, ip.protocol, is_excluded_v4(ip.daddr));
	if (!is_excluded_v4(ip.daddr))
		return REFUSE;
	return ip.protocol == IPPROTO_ICMP ? judge_excluded_icmp(skb, ip.ihl * 4) : ALLOW;
}

/* The same of ICMPv6. */
static __always_inline enum verdict judge_excluded_icmpv6(struct __sk_buff *skb, __u32 offset)
{
	struct ports ports;
	__u8 type;

	if (bpf_skb_load_bytes(skb, offset, &type, sizeof(type)))
		return REFUSE;
	if (!is_error_v6(type))
		return ALLOW;
	if (bpf_skb_load_bytes(skb, offset + ICMP_ERROR_HEADER + sizeof(struct ipv6hdr), &ports,
			       sizeof(ports)))
		return REFUSE;
	return is_dns(&ports) ? REFUSE : ALLOW;
}

static __always_inline enum verdict judge_icmpv6(struct __sk_buff *skb, __u32 offset)
{
	__u8 type;

	if (bpf_skb_load_bytes(skb, offset, &type, sizeof(type)))
		return REFUSE;
	return (type >= ICMPV6_ND_FIRST && type <= ICMPV6_ND_LAST) || type == ICMPV6_MLD2_REPORT ? ALLOW
												 : REFUSE;
}

static __always_inline enum verdict judge_v6(struct __sk_buff *skb)
{
	__u8 hop_by_hop[2];
	struct ipv6hdr ip;
	int is_excluded;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
		return REFUSE;
	is_excluded = is_excluded_v6(ip.daddr.in6_u.u6_addr32);
	if (ip.nexthdr == IPPROTO_TCP || ip.nexthdr == IPPROTO_UDP)
		return judge_ports(skb, sizeof(ip), ip.nexthdr, is_excluded);
	if (is_excluded)
		return ip.nexthdr == IPPROTO_ICMPV6 ? judge_excluded_icmpv6(skb, sizeof(ip)) : ALLOW;
	if (ip.nexthdr == IPPROTO_ICMPV6)
		return judge_icmpv6(skb, sizeof(ip));
	if (ip.nexthdr != HOP_BY_HOP || bpf_skb_load_bytes(skb, sizeof(ip), hop_by_hop, sizeof(hop_by_hop)))
		return REFUSE;
	/* Length 0: eight bytes. */
	return hop_by_hop[0] == IPPROTO_ICMPV6 && !hop_by_hop[1] ? judge_icmpv6(skb, sizeof(ip) + 8) : REFUSE;
}

SEC("cgroup_skb/egress")
int kill_switch_egress(struct __sk_buff *skb)
{
	__u64 cgroup = bpf_skb_cgroup_id(skb);
	__u32 zero = 0;
	__u64 *namespace;

	if (skb->ifindex == LOOPBACK_INDEX)
		return ALLOW;
	namespace = bpf_map_lookup_elem(&namespaces, &zero);
	if (!namespace || namespace_of(skb) != *namespace || bpf_map_lookup_elem(&gateways, &cgroup))
		return ALLOW;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? judge_v6(skb) : judge_v4(skb);
}

char _license[] SEC("license") = "Dual MIT/GPL";
