// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Drops what a host would forward outside of plait, as kill_switch.bpf.c does with what its own sockets send: packets of the hosts
 * behind a router, while no gateway takes them at the interface, and of containers.
 *
 * Attached to netfilter's forward hook of a network namespace by links that are pinned (Linux 6.4).
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/netfilter.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "kernel.h"
#include "networks.h"

/* RFC 791. */
#define FRAGMENT_OFFSET 0x1fff

/* The packet as a helper reads it; its first byte is that of the IP header. */
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *packet) __ksym;

/* A packet to an excluded network, by its transport protocol: names do not go to resolvers there, which would ask others. */
static __always_inline int judge(const struct bpf_dynptr *packet, __u32 offset, __u8 protocol)
{
	struct ports ports;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return NF_ACCEPT;
	if (bpf_dynptr_read(&ports, sizeof(ports), packet, offset, 0))
		return NF_DROP;
	return ports.destination == bpf_htons(PORT_DNS) ? NF_DROP : NF_ACCEPT;
}

/* A packet of ICMP to an excluded network, by what it quotes. */
static __always_inline int judge_icmp(const struct bpf_dynptr *packet, __u32 offset)
{
	struct iphdr quoted;
	struct ports ports;
	__u8 type;

	if (bpf_dynptr_read(&type, sizeof(type), packet, offset, 0))
		return NF_DROP;
	if (!is_error_v4(type))
		return NF_ACCEPT;
	offset += ICMP_ERROR_HEADER;
	if (bpf_dynptr_read(&quoted, sizeof(quoted), packet, offset, 0) ||
	    bpf_dynptr_read(&ports, sizeof(ports), packet, offset + quoted.ihl * 4, 0))
		return NF_DROP;
	return is_dns(&ports) ? NF_DROP : NF_ACCEPT;
}

static __always_inline int judge_icmpv6(const struct bpf_dynptr *packet, __u32 offset)
{
	struct ports ports;
	__u8 type;

	if (bpf_dynptr_read(&type, sizeof(type), packet, offset, 0))
		return NF_DROP;
	if (!is_error_v6(type))
		return NF_ACCEPT;
	if (bpf_dynptr_read(&ports, sizeof(ports), packet,
			    offset + ICMP_ERROR_HEADER + sizeof(struct ipv6hdr), 0))
		return NF_DROP;
	return is_dns(&ports) ? NF_DROP : NF_ACCEPT;
}

SEC("netfilter")
int kill_switch_forward_v4(struct bpf_nf_ctx *context)
{
	struct bpf_dynptr packet;
	struct iphdr ip;

	if (bpf_dynptr_from_skb((struct __sk_buff *)context->skb, 0, &packet) ||
	    bpf_dynptr_read(&ip, sizeof(ip), &packet, 0, 0) || !is_excluded_v4(ip.daddr))
		return NF_DROP;
	if (ip.frag_off & bpf_htons(FRAGMENT_OFFSET))
		return NF_ACCEPT;
	return ip.protocol == IPPROTO_ICMP ? judge_icmp(&packet, ip.ihl * 4)
					   : judge(&packet, ip.ihl * 4, ip.protocol);
}

SEC("netfilter")
int kill_switch_forward_v6(struct bpf_nf_ctx *context)
{
	struct bpf_dynptr packet;
	struct ipv6hdr ip;

	if (bpf_dynptr_from_skb((struct __sk_buff *)context->skb, 0, &packet) ||
	    bpf_dynptr_read(&ip, sizeof(ip), &packet, 0, 0) || !is_excluded_v6(ip.daddr.in6_u.u6_addr32))
		return NF_DROP;
	return ip.nexthdr == IPPROTO_ICMPV6 ? judge_icmpv6(&packet, sizeof(ip))
					    : judge(&packet, sizeof(ip), ip.nexthdr);
}

char _license[] SEC("license") = "Dual MIT/GPL";
