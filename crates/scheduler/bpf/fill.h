/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Fills up acknowledgments that leave by an interface: the packets of probe.h. */
#ifndef PLAIT_SCHEDULER_FILL_H
#define PLAIT_SCHEDULER_FILL_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include "probe.h"

/* The longest headers of a packet without data: Ethernet with VLAN tags, IPv6, TCP with all options. */
#define MAX_HEADERS (22 + 40 + 60)
#define MAX_PAYLOAD 9000

struct tcp_header {
	__be16 source, dest;
	__be32 seq, ack_seq;
	__u8 data_offset; /* in 2^-4 words */
	__u8 flags;
	__be16 window;
	__sum16 check;
	__be16 urgent;
};

/* Where the headers of a segment are, in bytes from the start of the packet. */
struct segment {
	__u32 ip, tcp;
	__u16 length; /* of TCP's header and data */
	__u8 is_ipv6;
};

static __always_inline int read_ipv4(struct __sk_buff *skb, struct segment *segment)
{
	struct iphdr ip;
	__u32 length;

	if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET) ||
	    ip.protocol != IPPROTO_TCP)
		return 0;
	length = bpf_ntohs(ip.tot_len);
	if (length > skb->len || length < ip.ihl * 4)
		return 0;
	segment->ip = skb->len - length;
	segment->tcp = segment->ip + ip.ihl * 4;
	segment->length = length - ip.ihl * 4;
	return 1;
}

static __always_inline int read_ipv6(struct __sk_buff *skb, struct segment *segment)
{
	struct ipv6hdr ip;
	__u32 length;

	if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET) ||
	    ip.nexthdr != IPPROTO_TCP)
		return 0;
	length = bpf_ntohs(ip.payload_len);
	if (length + sizeof(ip) > skb->len)
		return 0;
	segment->ip = skb->len - length - sizeof(ip);
	segment->tcp = segment->ip + sizeof(ip);
	segment->length = length;
	segment->is_ipv6 = 1;
	return 1;
}

static __always_inline int read_segment(struct __sk_buff *skb, struct segment *segment)
{
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return read_ipv4(skb, segment);
	return skb->protocol == bpf_htons(ETH_P_IPV6) && read_ipv6(skb, segment);
}

static __always_inline int write_length(struct __sk_buff *skb, const struct segment *segment, __u32 added)
{
	__be16 before = bpf_htons(segment->length), after = bpf_htons(segment->length + added);
	__u32 at = segment->ip + __builtin_offsetof(struct iphdr, tot_len);
	__u32 header = segment->tcp - segment->ip;
	__be16 total = bpf_htons(header + segment->length),
	       new_total = bpf_htons(header + segment->length + added);

	if (bpf_l4_csum_replace(skb, segment->tcp + __builtin_offsetof(struct tcp_header, check), before,
				after, BPF_F_PSEUDO_HDR | sizeof(before)))
		return 0;
	if (segment->is_ipv6)
		return !bpf_skb_store_bytes(skb,
					    segment->ip + __builtin_offsetof(struct ipv6hdr, payload_len),
					    &after, sizeof(after), 0);
	return !bpf_l3_csum_replace(skb, segment->ip + __builtin_offsetof(struct iphdr, check), total,
				    new_total, sizeof(total)) &&
	       !bpf_skb_store_bytes(skb, at, &new_total, sizeof(new_total), 0);
}

/* Adds bytes before the sequence number, whose sum is 0. */
static __always_inline int add_bytes(struct __sk_buff *skb, const struct segment *segment, __be32 seq,
				     __u32 added)
{
	__be32 start = bpf_htonl(bpf_ntohl(seq) - added);

	if (bpf_skb_change_tail(skb, skb->len + added, 0))
		return 0;
	return !bpf_l4_csum_replace(skb, segment->tcp + __builtin_offsetof(struct tcp_header, check), seq,
				    start, sizeof(seq)) &&
	       !bpf_skb_store_bytes(skb, segment->tcp + __builtin_offsetof(struct tcp_header, seq), &start,
				    sizeof(start), 0) &&
	       write_length(skb, segment, added);
}

/* A packet that could be changed only in part is dropped. */
static __always_inline int fill_up(struct __sk_buff *skb, struct probe *probe)
{
	struct segment segment = {};
	struct tcp_header tcp;
	__u32 header, added;

	if (!read_segment(skb, &segment) || bpf_skb_load_bytes(skb, segment.tcp, &tcp, sizeof(tcp)))
		return TC_ACT_UNSPEC;
	header = tcp.data_offset / 16 * 4;
	if (tcp.flags != TCPHDR_ACK || segment.length != header)
		return TC_ACT_UNSPEC;
	/*
	 * As large as a full segment without options. Each packet is smaller by a byte: the peer would take the
	 * same range again for a sign that its answers get lost.
	 */
	added = probe->payload ? probe->payload + sizeof(tcp) - header - probe->sent : 1;
	if (added > MAX_PAYLOAD)
		return TC_ACT_UNSPEC;
	probe->sent++;
	return add_bytes(skb, &segment, tcp.seq, added) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

SEC("tcx/egress")
int fill(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct probe *probe;

	if (skb->len > MAX_HEADERS || !sk)
		return TC_ACT_UNSPEC;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return TC_ACT_UNSPEC;
	probe = bpf_sk_storage_get(&probes, sk, 0, 0);
	if (!probe || !probe->is_sending)
		return TC_ACT_UNSPEC;
	return fill_up(skb, probe);
}

#endif
