/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Parses a packet into a struct plait_packet: Ethernet, VLAN tags, IP, TCP and its options, once.
 *
 * Packets other than TCP, or without MPTCP options, are skipped as early as possible. Reads only the headers, and
 * nothing beyond their stated length; inconsistent packets are skipped and counted.
 */
#ifndef PLAIT_PARSE_H
#define PLAIT_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include "plait.bpf.h"

#define MAX_VLAN_TAGS 2
/* In iphdr.frag_off: the more-fragments flag and the offset. */
#define IP_FRAGMENT 0x3fff

struct vlan_tag {
	__be16 control;
	__be16 protocol;
};

/* IPv6 extension headers that may precede TCP. */
static __always_inline int is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT ||
	       next == IPPROTO_AH || next == IPPROTO_DSTOPTS || next == IPPROTO_MH;
}

/*
 * Parses the TCP option at packet->at and advances to the next. Returns 0 if there may be another; 1 at the end;
 * -1 if the option is truncated, too short, or extends beyond the header.
 */
static __always_inline int scan_option(struct plait_packet *packet)
{
	/* Volatile: the verifier then does not track the value and explores one iteration instead of all
	 * combinations. */
	__u32 at = *(volatile __u8 *)&packet->at, length, subtype;
	__u8 kind;

	if (at >= packet->options_length || at >= PLAIT_MAX_OPTIONS)
		return 1;
	kind = packet->options[at];
	if (kind == TCPOPT_END)
		return 1;
	if (kind == TCPOPT_NOP) {
		*(volatile __u8 *)&packet->at = at + 1;
		return 0;
	}
	length = packet->options[at + 1];
	if (length < 2 || at + length > packet->options_length)
		return -1;
	if (kind == TCPOPT_MPTCP && length > 2) {
		subtype = packet->options[at + 2] >> 4;
		packet->option_at[subtype] = at;
		packet->option_length[subtype] = length;
		packet->kinds |= PLAIT_IS_MPTCP | (__u64)PLAIT_HAS_MP_CAPABLE << subtype;
	} else if (kind == TCPOPT_WINDOW_SCALE && length == 3) {
		packet->window_scale = packet->options[at + 2];
	} else if (kind == TCPOPT_MSS && length == 4) {
		packet->mss = packet->options[at + 2] << 8 | packet->options[at + 3];
	}
	*(volatile __u8 *)&packet->at = at + length;
	return 0;
}

/* Parses all options; 0 if they are well formed. */
__noinline int scan_options(struct plait_packet *packet)
{
	int end = 0;

	if (!packet)
		return -1;
	packet->kinds = 0;
	packet->window_scale = PLAIT_NO_OPTION;
	packet->mss = 0;
	__builtin_memset(packet->option_at, PLAIT_NO_OPTION, sizeof(packet->option_at));
	packet->at = plait_begins_with_timestamps(packet) ? PLAIT_TIMESTAMPS_LENGTH : 0;
	for (int i = 0; i < PLAIT_MAX_OPTIONS; i++) {
		end = scan_option(packet);
		if (end)
			break;
	}
	return end < 0 ? -1 : 0;
}

/* RFC 8684 section 3.3: kind, length, subtype, flags, [data acknowledgment], [sequence, subflow sequence,
 * length]. 0 if its length matches its flags. */
__noinline int read_dss(struct plait_packet *packet)
{
	__u32 at, length, ack, sequence;
	__u8 flags;

	if (!packet)
		return -1;
	at = packet->option_at[MPTCP_DSS];
	length = packet->option_length[MPTCP_DSS];
	flags = packet->options[(at + 3) & 63];
	ack = flags & 0x01 ? (flags & 0x02 ? 8 : 4) : 0;
	sequence = flags & 0x04 ? (flags & 0x08 ? 8 : 4) : 0;

	if (length < 4 + ack + (sequence ? sequence + 6 : 0))
		return -1;
	at += 4;
	if (ack) {
		packet->kinds |= PLAIT_HAS_DATA_ACK;
		packet->data_acknowledgment = plait_option_number(packet, at, ack);
		at += ack;
	}
	if (flags & 0x10)
		packet->kinds |= PLAIT_HAS_DATA_FIN;
	if (sequence) {
		packet->kinds |= PLAIT_HAS_MAPPING;
		packet->data_sequence = plait_option_number(packet, at, sequence);
		at += sequence;
		packet->mapping_sequence = plait_option_number(packet, at, 4);
		packet->data_length = bpf_ntohs(*(const __u16 *)&packet->options[(at + 4) & 63]);
	}
	return 0;
}

/* The headers of a packet, located before it is parsed. */
struct headers {
	/* End of the readable part of the packet. */
	void *end;
	void *ip;
	/* NULL if there is none. */
	struct tcphdr *tcp;
	__u32 ip_at;
	__u32 tcp_at;
	/* Size from IP on, according to the IP header. */
	__u32 ip_bytes;
	int is_ipv6;
};

enum search {
	HEADERS_FOUND = 0,
	/* Not TCP, or TCP that is skipped. */
	HEADERS_NONE,
	/* The readable part ends within the headers. */
	HEADERS_CUT,
};

/* Skips a packet. */
static __always_inline enum search skip(__u32 reason)
{
	plait_count(reason);
	return HEADERS_NONE;
}

/* Locates the TCP header, with its options, after the IP header at `ip`. */
static __always_inline enum search find_tcp(void *ip, void *end, __be16 protocol, struct headers *found)
{
	found->end = end;
	found->ip = ip;
	found->tcp = NULL;
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *header = ip;
		__u32 length;

		if ((void *)(header + 1) > end)
			return HEADERS_CUT;
		if (header->protocol != IPPROTO_TCP)
			return HEADERS_NONE;
		length = header->ihl * 4;
		if (length < sizeof(*header) || header->version != 4)
			return skip(PLAIT_SKIPPED_MALFORMED);
		if (header->frag_off & bpf_htons(IP_FRAGMENT))
			return skip(PLAIT_SKIPPED_FRAGMENT);
		found->ip_bytes = bpf_ntohs(header->tot_len);
		found->tcp = ip + length;
		found->tcp_at = found->ip_at + length;
		found->is_ipv6 = 0;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *header = ip;

		if ((void *)(header + 1) > end)
			return HEADERS_CUT;
		if (is_extension(header->nexthdr))
			return skip(PLAIT_SKIPPED_EXTENSION);
		if (header->nexthdr != IPPROTO_TCP)
			return HEADERS_NONE;
		if (header->version != 6)
			return skip(PLAIT_SKIPPED_MALFORMED);
		found->ip_bytes = sizeof(*header) + bpf_ntohs(header->payload_len);
		found->tcp = ip + sizeof(*header);
		found->tcp_at = found->ip_at + sizeof(*header);
		found->is_ipv6 = 1;
	} else {
		return HEADERS_NONE;
	}
	if ((void *)(found->tcp + 1) > end || (void *)found->tcp + found->tcp->doff * 4 > end)
		return HEADERS_CUT;
	return HEADERS_FOUND;
}

static __always_inline enum search find_ethernet(void *data, void *end, struct headers *found)
{
	struct ethhdr *ethernet = data;
	struct vlan_tag *tag;
	__be16 protocol;

	found->tcp = NULL;
	if ((void *)(ethernet + 1) > end)
		return HEADERS_CUT;
	protocol = ethernet->h_proto;
	found->ip_at = sizeof(*ethernet);
	for (int i = 0; i < MAX_VLAN_TAGS; i++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		tag = data + found->ip_at;
		if ((void *)(tag + 1) > end)
			return HEADERS_CUT;
		protocol = tag->protocol;
		found->ip_at += sizeof(*tag);
	}
	return find_tcp(data + found->ip_at, end, protocol, found);
}

/* Whether all headers were found; counts truncated TCP headers. */
static __always_inline int is_found(enum search result, const struct headers *found)
{
	if (result == HEADERS_CUT && found->tcp)
		plait_count(PLAIT_SKIPPED_MALFORMED);
	return result == HEADERS_FOUND;
}

/* Half of an IPv6 address as a number. */
static __always_inline __u64 address_half(const void *address)
{
	return bpf_be64_to_cpu(*(const __u64 *)address);
}

#define MAPPED_IPV4 0xffff00000000ull

static __always_inline void read_addresses(struct plait_packet *packet, const struct headers *found)
{
	if (found->is_ipv6) {
		const struct ipv6hdr *ip = found->ip;

		packet->source[0] = address_half(&ip->saddr);
		packet->source[1] = address_half((void *)&ip->saddr + 8);
		packet->destination[0] = address_half(&ip->daddr);
		packet->destination[1] = address_half((void *)&ip->daddr + 8);
	} else {
		const struct iphdr *ip = found->ip;

		packet->source[0] = 0;
		packet->source[1] = MAPPED_IPV4 | bpf_ntohl(ip->saddr);
		packet->destination[0] = 0;
		packet->destination[1] = MAPPED_IPV4 | bpf_ntohl(ip->daddr);
	}
}

static __always_inline void read_ends(struct plait_packet *packet, const struct headers *found)
{
	packet->source_port = bpf_ntohs(found->tcp->source);
	packet->destination_port = bpf_ntohs(found->tcp->dest);
	read_addresses(packet, found);
	if (packet->hook == PLAIT_EGRESS) {
		__builtin_memcpy(packet->flow.local, packet->source, 16);
		__builtin_memcpy(packet->flow.remote, packet->destination, 16);
		packet->flow.local_port = packet->source_port;
		packet->flow.remote_port = packet->destination_port;
	} else {
		__builtin_memcpy(packet->flow.local, packet->destination, 16);
		__builtin_memcpy(packet->flow.remote, packet->source, 16);
		packet->flow.local_port = packet->destination_port;
		packet->flow.remote_port = packet->source_port;
	}
	packet->flow.padding = 0;
}

/* Copies the TCP options, padded with zeros. They are all readable, but the verifier does not know that. */
static __always_inline int read_options(struct plait_packet *packet, const struct headers *found)
{
	const __u32 *from = (const void *)(found->tcp + 1);
	__u32 *to = (void *)packet->options;

	for (__u32 i = 0; i < PLAIT_MAX_OPTIONS / 4; i++) {
		__u32 word = 0;

		if (i * 4 < packet->options_length) {
			if ((void *)(from + i + 1) > found->end)
				return -1;
			word = from[i];
		}
		to[i] = word;
	}
	return 0;
}

/* Whether there are no options or only timestamps, as in most plain TCP packets: needs no parsing. */
static __always_inline int has_no_other_options(const struct headers *found)
{
	const __u32 *options = (const void *)(found->tcp + 1);
	__u32 length = found->tcp->doff * 4;

	if (length == PLAIT_TCP_HEADER)
		return 1;
	return length == PLAIT_TCP_HEADER + PLAIT_TIMESTAMPS_LENGTH && (void *)(options + 1) <= found->end &&
	       *options == bpf_htonl(PLAIT_ALIGNED_TIMESTAMPS);
}

#define TCP_FLAGS (PLAIT_IS_FIN | PLAIT_IS_SYN | PLAIT_IS_RST | PLAIT_IS_ACK)

static __always_inline void read_tcp(struct plait_packet *packet, const struct tcphdr *tcp)
{
	__u32 flags = ((const __u8 *)tcp)[13] & TCP_FLAGS;

	packet->sequence = bpf_ntohl(tcp->seq);
	packet->acknowledgment = bpf_ntohl(tcp->ack_seq);
	packet->window = bpf_ntohs(tcp->window);
	if (packet->payload)
		flags |= PLAIT_IS_DATA;
	else if (flags == PLAIT_IS_ACK)
		flags |= PLAIT_IS_PURE_ACK;
	packet->kinds |= flags;
}

/*
 * Parses a packet of `bytes` bytes from IP on. 0 if it is well formed; packet->kinds tells whether it has MPTCP
 * options.
 */
static __always_inline int read_packet(struct plait_packet *packet, const struct headers *found, __u32 bytes)
{
	const struct tcphdr *tcp = found->tcp;
	__u32 headers = found->tcp_at - found->ip_at + tcp->doff * 4;

	if (tcp->doff * 4 < PLAIT_TCP_HEADER || bytes < headers) {
		plait_count(PLAIT_SKIPPED_MALFORMED);
		return -1;
	}
	packet->options_length = tcp->doff * 4 - PLAIT_TCP_HEADER;
	if (read_options(packet, found))
		return -1;
	if (scan_options(packet)) {
		plait_count(PLAIT_SKIPPED_BAD_OPTIONS);
		return -1;
	}
	packet->ip_at = found->ip_at;
	packet->tcp_at = found->tcp_at;
	packet->ip_bytes = bytes;
	packet->payload = bytes - headers;
	packet->data_sequence = 0;
	packet->data_acknowledgment = 0;
	packet->data_length = 0;
	packet->token = 0;
	packet->flow_bytes = 0;
	packet->connection_bytes = 0;
	packet->flow_known = 0;
	packet->nanoseconds = 0;
	packet->custom_matched = 0;
	packet->chain_count = 0;
	packet->chains_hit = 0;
	packet->verdict = PLAIT_PASS;
	packet->checksum = PLAIT_CHECKSUM_UNKNOWN;
	packet->changed = 0;
	packet->seen_before = 0;
	if (found->is_ipv6)
		packet->kinds |= PLAIT_IS_IPV6;
	read_tcp(packet, tcp);
	if (packet->kinds & PLAIT_HAS_DSS && read_dss(packet)) {
		plait_count(PLAIT_SKIPPED_BAD_OPTIONS);
		return -1;
	}
	if (packet->kinds & PLAIT_HAS_ADD_ADDR && plait_option_byte(packet, MPTCP_ADD_ADDR, 2) & 1)
		packet->kinds ^= PLAIT_HAS_ADD_ADDR | PLAIT_HAS_ADD_ADDR_ECHO;
	return 0;
}

#endif
