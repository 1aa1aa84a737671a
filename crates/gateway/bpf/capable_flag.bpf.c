// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Carries the offer, choice and confirmation of negotiate.bpf.c by a flag of MP_CAPABLE, as the papers propose, and not by an
 * option of plait's own: at egress the option becomes flag D and NOPs, at ingress the flag becomes the option again, in the room
 * of the NOPs. So negotiate.bpf.c judges as ever, and nothing is stored here.
 *
 * Linux ignores an MP_CAPABLE with a flag that it does not know: so the flag is cleared before the packet reaches TCP.
 *
 * Attached to interfaces. Changes only packets of the gateway's control group.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "intf.h"
#include "kernel.h"
#include "subflows.h"

/* MP_CAPABLE, where its flags are, and the first one that is not assigned (RFC 8684, 3.1). */
#define MPTCP_CAPABLE 0
#define FLAGS_AT 3
#define FLAG_D 0x10

#define MAX_OPTIONS_LENGTH 40
#define FRAGMENT_OFFSET 0x1fff
/* What the programs do after this one decide. */
#define PASS_THROUGH TC_ACT_UNSPEC

/* The context of a program as the kernel has it, whose offsets the kernel checks (since Linux 6.2). */
extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_flag_settings);
} settings SEC(".maps");

/* The options of a TCP packet. Offsets are from the start of the packet data. */
struct packet {
	/* From the peer to this host. */
	struct bpf_sock_tuple tuple;
	__u32 is_v6;
	__u32 tcp_at;
	__u32 length;
	/* Where the scan is, and where it has found MP_CAPABLE; -1: not yet. */
	__u32 at;
	__s32 capable_at;
	__u32 is_syn;
	/* The scan reads up to FLAGS_AT bytes behind an option's first one. */
	__u8 options[MAX_OPTIONS_LENGTH + FLAGS_AT + 1];
};

static __always_inline int load_v4(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
	    ip.frag_off & bpf_htons(FRAGMENT_OFFSET))
		return -1;
	packet->tuple.ipv4.saddr = ip.saddr;
	packet->tuple.ipv4.daddr = ip.daddr;
	packet->is_v6 = 0;
	packet->tcp_at = at + ip.ihl * 4;
	return 0;
}

static __always_inline int load_v6(struct __sk_buff *skb, __u32 at, struct packet *packet)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
		return -1;
	__builtin_memcpy(packet->tuple.ipv6.saddr, &ip.saddr, sizeof(ip.saddr));
	__builtin_memcpy(packet->tuple.ipv6.daddr, &ip.daddr, sizeof(ip.daddr));
	packet->is_v6 = 1;
	packet->tcp_at = at + sizeof(ip);
	return 0;
}

static __always_inline int load_ip(struct __sk_buff *skb, struct packet *packet)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	__u32 at = kernel->network_header - (__u32)(kernel->data - kernel->head);

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return load_v4(skb, at, packet);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return load_v6(skb, at, packet);
	return -1;
}

/* Compares in a form that the compiler does not merge, so that the verifier of Linux 6.12 and before sees the bounds. */
static __always_inline int is_length(__u32 *length)
{
	asm volatile("" : "+r"(*length));
	if (*length < sizeof(struct plait_option))
		return 0;
	asm volatile("" : "+r"(*length));
	return *length <= MAX_OPTIONS_LENGTH;
}

static __always_inline int load(struct __sk_buff *skb, struct packet *packet)
{
	struct tcphdr tcp;
	__u32 length;

	if (load_ip(skb, packet) || bpf_skb_load_bytes(skb, packet->tcp_at, &tcp, sizeof(tcp)))
		return -1;
	if (packet->is_v6) {
		packet->tuple.ipv6.sport = tcp.source;
		packet->tuple.ipv6.dport = tcp.dest;
	} else {
		packet->tuple.ipv4.sport = tcp.source;
		packet->tuple.ipv4.dport = tcp.dest;
	}
	packet->is_syn = tcp.syn;
	length = tcp.doff * 4 - sizeof(tcp);
	if (!is_length(&length))
		return -1;
	packet->length = length;
	return bpf_skb_load_bytes(skb, packet->tcp_at + sizeof(tcp), packet->options, length);
}

/* Of bpf_loop(): 1 ends it. */
static long scan_option(__u32 index, void *context)
{
	struct packet *packet = context;
	__u32 at = packet->at;
	const __u8 *option;

	if (at >= MAX_OPTIONS_LENGTH || at + FLAGS_AT >= packet->length)
		return 1;
	option = packet->options + at;
	if (option[0] == TCPOPT_END)
		return 1;
	if (option[0] == TCPOPT_NOP) {
		packet->at = at + 1;
		return 0;
	}
	if (option[0] == TCPOPT_MPTCP && option[1] > FLAGS_AT && option[2] >> 4 == MPTCP_CAPABLE) {
		packet->capable_at = at;
		return 1;
	}
	packet->at = at + option[1];
	return option[1] < 2;
}

/* The flags of MP_CAPABLE; NULL if the packet has none. */
static __always_inline __u8 *find_flags(struct packet *packet)
{
	packet->capable_at = -1;
	bpf_loop(MAX_OPTIONS_LENGTH, scan_option, packet, 0);
	if (packet->capable_at < 0 || packet->capable_at >= MAX_OPTIONS_LENGTH)
		return NULL;
	return packet->options + packet->capable_at + FLAGS_AT;
}

/* What the flag stands for: on SYN and SYN-ACK an option, on others a confirmation. Both are the last option of their packet. */
static const struct plait_option flagged_option = {
    .kind = PLAIT_OPTION_KIND,
    .length = sizeof(struct plait_option),
    .exid = {PLAIT_OPTION_EXID >> 24, PLAIT_OPTION_EXID >> 16 & 0xff, PLAIT_OPTION_EXID >> 8 & 0xff,
	     PLAIT_OPTION_EXID & 0xff},
    .version = PLAIT_OPTION_BY_FLAG,
    .modes = PLAIT_MODE_XOR64_HMAC,
};
static const struct plait_confirmation flagged_confirmation = {
    .kind = PLAIT_OPTION_KIND,
    .length = sizeof(struct plait_confirmation),
    .exid = PLAIT_OPTION_EXID >> 24,
    .modes = PLAIT_MODE_XOR64_HMAC,
};
static const __u8 nops[sizeof(struct plait_option)] = {
    TCPOPT_NOP, TCPOPT_NOP, TCPOPT_NOP, TCPOPT_NOP, TCPOPT_NOP, TCPOPT_NOP, TCPOPT_NOP, TCPOPT_NOP,
};

/* Replaces the last bytes of the options; returns whether they were as expected. */
static __always_inline int replace_last(struct packet *packet, const void *expected, const void *replacement,
					__u32 length)
{
	__u32 end = packet->length;
	__u8 *last;

	if (!is_length(&end))
		return 0;
	last = packet->options + (end - length);
	if (__builtin_memcmp(last, expected, length))
		return 0;
	__builtin_memcpy(last, replacement, length);
	return 1;
}

static __always_inline int hide(struct packet *packet)
{
	if (packet->is_syn)
		return replace_last(packet, &flagged_option, nops, sizeof(flagged_option));
	return replace_last(packet, &flagged_confirmation, nops, sizeof(flagged_confirmation));
}

static __always_inline int restore(struct packet *packet)
{
	if (packet->is_syn)
		return replace_last(packet, nops, &flagged_option, sizeof(flagged_option));
	return replace_last(packet, nops, &flagged_confirmation, sizeof(flagged_confirmation));
}

/* Replaces the options of a packet, and mends its checksum. */
static __always_inline void store(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 before[MAX_OPTIONS_LENGTH] = {}, after[MAX_OPTIONS_LENGTH];
	__u32 at = packet->tcp_at + sizeof(struct tcphdr), length = packet->length;
	__s64 difference;

	__builtin_memcpy(after, packet->options, sizeof(after));
	if (!is_length(&length) || bpf_skb_load_bytes(skb, at, before, length))
		return;
	difference = bpf_csum_diff((__be32 *)before, sizeof(before), (__be32 *)after, sizeof(after), 0);
	if (difference < 0 || bpf_skb_store_bytes(skb, at, after, length, 0))
		return;
	bpf_l4_csum_replace(skb, packet->tcp_at + __builtin_offsetof(struct tcphdr, check), 0, difference, 0);
}

static __always_inline __u64 own_cgroup(void)
{
	__u32 zero = 0;
	struct plait_flag_settings *config = bpf_map_lookup_elem(&settings, &zero);

	return config ? config->cgroup : 0;
}

/* Whether the socket of this host is the gateway's. */
static __always_inline int is_of_gateway(struct __sk_buff *skb, struct packet *packet)
{
	__u32 length = packet->is_v6 ? sizeof(packet->tuple.ipv6) : sizeof(packet->tuple.ipv4);
	struct bpf_sock *sk = bpf_sk_lookup_tcp(skb, &packet->tuple, length, BPF_F_CURRENT_NETNS, 0);
	__u64 cgroup;

	if (!sk)
		return 0;
	/* The helper for this is not one for programs of interfaces. */
	cgroup = AS(struct sock, sk)->sk_cgrp_data.cgroup->kn->id;
	bpf_sk_release(sk);
	return cgroup && cgroup == own_cgroup();
}

/* Addresses and ports of an outgoing packet become those of the peer's. */
static __always_inline void reverse(struct packet *packet)
{
	struct bpf_sock_tuple from = packet->tuple;

	if (packet->is_v6) {
		__builtin_memcpy(packet->tuple.ipv6.saddr, from.ipv6.daddr, sizeof(from.ipv6.daddr));
		__builtin_memcpy(packet->tuple.ipv6.daddr, from.ipv6.saddr, sizeof(from.ipv6.saddr));
		packet->tuple.ipv6.sport = from.ipv6.dport;
		packet->tuple.ipv6.dport = from.ipv6.sport;
	} else {
		packet->tuple.ipv4.saddr = from.ipv4.daddr;
		packet->tuple.ipv4.daddr = from.ipv4.saddr;
		packet->tuple.ipv4.sport = from.ipv4.dport;
		packet->tuple.ipv4.dport = from.ipv4.sport;
	}
}

SEC("tcx/egress")
int set_flag(struct __sk_buff *skb)
{
	struct packet packet = {};
	__u8 *flags;

	if (load(skb, &packet) || !hide(&packet))
		return PASS_THROUGH;
	/* By its addresses: a SYN-ACK with a SYN cookie belongs to no socket. */
	reverse(&packet);
	if (!is_of_gateway(skb, &packet))
		return PASS_THROUGH;
	/* Confirmations are on later packets, too, which have no MP_CAPABLE. */
	flags = find_flags(&packet);
	if (flags)
		*flags |= FLAG_D;
	store(skb, &packet);
	return PASS_THROUGH;
}

SEC("tcx/ingress")
int take_flag(struct __sk_buff *skb)
{
	struct packet packet = {};
	__u8 *flags;

	if (load(skb, &packet) || !restore(&packet))
		return PASS_THROUGH;
	flags = find_flags(&packet);
	if (!flags || !(*flags & FLAG_D) || !is_of_gateway(skb, &packet))
		return PASS_THROUGH;
	*flags &= ~FLAG_D;
	store(skb, &packet);
	return PASS_THROUGH;
}

char _license[] SEC("license") = "Dual MIT/GPL";
