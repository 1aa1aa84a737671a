/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Adds TCP options to packets, erases them, and turns a packet into a reply to it.
 *
 * Packets with payload keep their size, as each of their GSO segments would have to grow. Packets without payload
 * grow as needed. The lengths and checksums of IP and TCP are updated, whatever the state of TCP's checksum (enum
 * plait_checksum). A packet with a wrong checksum is not changed.
 */
#ifndef PLAIT_OPTIONS_H
#define PLAIT_OPTIONS_H

#include "plait.bpf.h"

/* A TCP option, padded. */
struct plait_option {
	__u32 words[8];
};
#define PLAIT_MAX_OPTION 32

/* Offsets of fields in their headers, in bytes. */
enum plait_field {
	IPV4_LENGTH_AT = 2,
	IPV4_TTL_AT = 8,
	IPV4_CHECKSUM_AT = 10,
	IPV4_ADDRESSES_AT = 12,
	IPV6_LENGTH_AT = 4,
	IPV6_HOP_LIMIT_AT = 7,
	IPV6_ADDRESSES_AT = 8,
	TCP_OFFSET_AT = 12,
};

/* NOP, NOP, kind and length of timestamps, the start of nearly every packet's options (RFC 7323, appendix A). */
#define PLAIT_ALIGNED_TIMESTAMPS 0x0101080a
#define PLAIT_TIMESTAMPS_LENGTH 12

static __always_inline int plait_begins_with_timestamps(const struct plait_packet *packet)
{
	return packet->options_length >= PLAIT_TIMESTAMPS_LENGTH &&
	       *(const __u32 *)packet->options == bpf_htonl(PLAIT_ALIGNED_TIMESTAMPS);
}

/* Whether the packet's length may be changed. */
static __always_inline int plait_may_grow(struct plait_context context, struct plait_packet *packet)
{
	__u8 holds;

	if (packet->payload)
		return 0;
	holds = plait_checksum(context, packet);
	return holds == PLAIT_CHECKSUM_FULL || holds == PLAIT_CHECKSUM_PARTIAL;
}

/* Moves everything before the TCP options `by` bytes towards the start of the packet, for XDP. */
__weak int plait_move_headers(struct xdp_md *xdp, __u32 bytes, __u32 by)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	__u16 *to = data, *from = data + (by & 63);

	/* With Ethernet, the length of the headers is even, but not a multiple of 4. */
	for (__u32 i = 0; i < (PLAIT_MAX_TCP_OFFSET + PLAIT_TCP_HEADER) / 2; i++) {
		if (i * 2 >= bytes)
			break;
		if ((void *)(to + i + 1) > end || (void *)(from + i + 1) > end)
			return -1;
		to[i] = from[i];
	}
	return 0;
}

/*
 * Inserts `by` bytes after the TCP options of a packet without payload. Returns 0, or -1 if the packet is
 * unchanged.
 */
static __always_inline long plait_grow(struct plait_context context, struct plait_packet *packet, __u32 by)
{
	/* Ethernet padding after short packets can be used. */
	__u32 bytes = packet->ip_at + packet->ip_bytes + by, there;

	if (context.skb)
		return context.skb->len >= bytes ? 0 : bpf_skb_change_tail(context.skb, bytes, 0);
	if (!context.xdp)
		return -1;
	there = context.xdp->data_end - context.xdp->data;
	if (packet->checksum == PLAIT_CHECKSUM_PARTIAL) {
		/* The kernel stores the offset of the header whose checksum it completes, so the header must
		 * not move. */
		return there >= bytes ? 0 : bpf_xdp_adjust_tail(context.xdp, bytes - there);
	}
	if (bpf_xdp_adjust_head(context.xdp, -(int)by))
		return -1;
	return plait_move_headers(context.xdp, packet->tcp_at + PLAIT_TCP_HEADER, by);
}

/* Replaces a 16-bit word of the IPv4 header, in network order, and updates its checksum. */
static __always_inline long plait_replace_in_ipv4(struct plait_context context,
						  const struct plait_packet *packet, __u32 at, __u16 from,
						  __u16 to)
{
	__u32 checksum_at = packet->ip_at + IPV4_CHECKSUM_AT;
	__u16 checksum;

	if (plait_load(context, checksum_at, &checksum, sizeof(checksum)))
		return -1;
	/* RFC 1624, equation 3. */
	checksum = ~plait_fold((__u64)(__u16)~checksum + (__u16)~from + to);
	if (plait_store(context, checksum_at, &checksum, sizeof(checksum)))
		return -1;
	return plait_store(context, packet->ip_at + at, &to, sizeof(to));
}

/* Increases the lengths in the IP and TCP headers by `by` bytes. */
static __always_inline long plait_lengthen(struct plait_context context, struct plait_packet *packet,
					   __u32 by)
{
	__u32 at = packet->kinds & PLAIT_IS_IPV6 ? IPV6_LENGTH_AT : IPV4_LENGTH_AT;
	__u16 from, to;
	__u8 offset;

	if (plait_load(context, packet->ip_at + at, &from, sizeof(from)))
		return -1;
	to = bpf_htons(bpf_ntohs(from) + by);
	if (packet->kinds & PLAIT_IS_IPV6) {
		if (plait_store(context, packet->ip_at + at, &to, sizeof(to)))
			return -1;
	} else if (plait_replace_in_ipv4(context, packet, at, from, to)) {
		return -1;
	}
	if (plait_load(context, packet->tcp_at + TCP_OFFSET_AT, &offset, sizeof(offset)))
		return -1;
	offset += by / 4 << 4;
	packet->ip_bytes += by;
	return plait_store(context, packet->tcp_at + TCP_OFFSET_AT, &offset, sizeof(offset));
}

static __always_inline long plait_write_options_of(struct plait_context context, struct plait_packet *packet)
{
	__u64 sum = plait_pseudo_header(packet, PLAIT_TCP_HEADER + packet->options_length);
	__u32 header[PLAIT_TCP_HEADER / 4];
	__u16 checksum;

	for (__u32 i = 0; i < PLAIT_MAX_OPTIONS / 4; i++) {
		__u32 word = ((__u32 *)packet->options)[i];

		if (i * 4 >= packet->options_length)
			break;
		sum += packet->checksum == PLAIT_CHECKSUM_PARTIAL ? 0 : word;
		if (plait_store(context, packet->tcp_at + PLAIT_TCP_HEADER + i * 4, &word, sizeof(word)))
			return -1;
	}
	if (packet->checksum == PLAIT_CHECKSUM_PARTIAL) {
		checksum = plait_fold(sum);
	} else {
		if (plait_load(context, packet->tcp_at, header, sizeof(header)))
			return -1;
		((__u16 *)header)[8] = 0;
		for (int i = 0; i < PLAIT_TCP_HEADER / 4; i++)
			sum += header[i];
		checksum = ~plait_fold(sum);
	}
	packet->changed = 1;
	return plait_store(context, plait_checksum_at(packet), &checksum, sizeof(checksum));
}

/* One function for each context, which the verifier checks once. */
__weak int plait_write_options_xdp(struct xdp_md *xdp, struct plait_packet *packet)
{
	return packet ? plait_write_options_of((struct plait_context){.xdp = xdp}, packet) : -1;
}

__weak int plait_write_options_tc(struct __sk_buff *skb, struct plait_packet *packet)
{
	return packet ? plait_write_options_of((struct plait_context){.skb = skb}, packet) : -1;
}

/* Writes packet->options and a new TCP checksum into a packet without payload. */
static __always_inline long plait_write_options(struct plait_context context, struct plait_packet *packet)
{
	if (context.skb)
		return plait_write_options_tc(context.skb, packet);
	if (context.xdp)
		return plait_write_options_xdp(context.xdp, packet);
	return -1;
}

/* All ones if a < b, else zero, for small numbers. Branchless: branches in every loop would exceed what the
 * verifier can explore. */
static __always_inline __u32 plait_if_less(__u32 a, __u32 b)
{
	__u32 less = (__s32)(a - b) >> 31;

	/* Prevents the compiler from turning it into a branch. */
	asm volatile("" : "+r"(less));
	return less;
}

#define PLAIT_WORD_OF_NOPS (TCPOPT_NOP * 0x01010101)

/*
 * Inserts `option` of `length` bytes, padded with NOPs to a word, before the first `keep` bytes of
 * packet->options, and fills up with NOPs to `bytes`.
 */
__weak int plait_arrange(struct plait_packet *packet, const struct plait_option *option, __u32 length,
			 __u32 keep, __u32 bytes)
{
	__u32 words = (length + 3) / 4, less, *options;

	/* Keeps the bound on the value that is used below. */
	asm volatile("" : "+r"(words));
	if (!packet || !option || words > PLAIT_MAX_OPTION / 4)
		return -1;
	options = (void *)packet->options;
	for (__u32 i = PLAIT_MAX_OPTIONS / 4; i-- > 0;)
		options[i + words] = options[i] & plait_if_less(i * 4, keep);
	for (__u32 i = 0; i < 8; i++) {
		less = plait_if_less(i, words);
		options[i] = (option->words[i] & less) | (options[i] & ~less);
	}
	for (__u32 i = 0; i < 3; i++) {
		__u32 at = length + i;

		if (at >= words * 4)
			break;
		/* Otherwise the compiler omits the mask, which the verifier needs. */
		asm volatile("" : "+r"(at));
		packet->options[at & 63] = TCPOPT_NOP;
	}
	for (__u32 i = 0; i < sizeof(packet->options) / 4; i++) {
		less = plait_if_less(i * 4, words * 4 + keep);
		options[i] = (options[i] & less) | (PLAIT_WORD_OF_NOPS & ~less & plait_if_less(i * 4, bytes));
	}
	for (__u32 i = 0; i < 16; i++) {
		less = plait_if_less(packet->option_at[i], keep);
		packet->option_at[i] =
		    ((packet->option_at[i] + words * 4) & less) | (PLAIT_NO_OPTION & ~less);
	}
	return 0;
}

/*
 * Inserts an option of `length` bytes, at most 32, before the first `keep` bytes of the options of a packet
 * without payload, and discards the rest. `keep` is a multiple of 4, and an option ends there.
 * 0 on success; otherwise the packet is unchanged.
 */
static __always_inline long plait_put_option(struct plait_context context, struct plait_packet *packet,
					     const struct plait_option *option, __u32 length, __u32 keep)
{
	__u32 before = packet->options_length, needed = (length + 3) / 4 * 4 + keep, by;

	if (!length || length > 32 || keep > before || needed > PLAIT_MAX_OPTIONS ||
	    !plait_may_grow(context, packet))
		return -1;
	by = needed > before ? needed - before : 0;
	if (by && (plait_grow(context, packet, by) || plait_lengthen(context, packet, by)))
		return -1;
	packet->options_length = before + by;
	if (plait_arrange(packet, option, length, keep, before + by))
		return -1;
	return plait_write_options(context, packet);
}

/* Adds an option of `length` bytes, at most 32, before the options of a packet without payload. 0 on success;
 * otherwise the packet is unchanged, as it has payload, a wrong checksum or no room. */
static __always_inline long plait_add_option(struct plait_context context, struct plait_packet *packet,
					     const struct plait_option *option, __u32 length)
{
	return plait_put_option(context, packet, option, length, packet->options_length);
}

/* The TCP options of a packet. */
struct plait_options {
	__u32 words[PLAIT_MAX_OPTIONS / 4];
};

static __always_inline long plait_change_options_of(struct plait_context context, struct plait_packet *packet,
						    const struct plait_options *before)
{
	__u32 checksum_at = plait_checksum_at(packet);
	__u16 checksum;
	__s64 change;

	change = bpf_csum_diff((void *)before->words, PLAIT_MAX_OPTIONS, (void *)packet->options,
			       PLAIT_MAX_OPTIONS, 0);
	if (change < 0)
		return -1;
	if (context.skb) {
		if (bpf_l4_csum_replace(context.skb, checksum_at, 0, change, 0))
			return -1;
	} else if (packet->checksum == PLAIT_CHECKSUM_FULL) {
		if (plait_load(context, checksum_at, &checksum, sizeof(checksum)))
			return -1;
		checksum = ~plait_fold((__u64)(__u16)~checksum + (__u32)change);
		if (plait_store(context, checksum_at, &checksum, sizeof(checksum)))
			return -1;
	}
	for (__u32 i = 0; i < PLAIT_MAX_OPTIONS / 4; i++) {
		__u32 word = ((__u32 *)packet->options)[i];

		if (i * 4 < packet->options_length &&
		    plait_store(context, packet->tcp_at + PLAIT_TCP_HEADER + i * 4, &word, sizeof(word)))
			return -1;
	}
	packet->changed = 1;
	return 0;
}

__weak int plait_change_options_xdp(struct xdp_md *xdp, struct plait_packet *packet,
				    const struct plait_options *before)
{
	if (!packet || !before)
		return -1;
	return plait_change_options_of((struct plait_context){.xdp = xdp}, packet, before);
}

__weak int plait_change_options_tc(struct __sk_buff *skb, struct plait_packet *packet,
				   const struct plait_options *before)
{
	if (!packet || !before)
		return -1;
	return plait_change_options_of((struct plait_context){.skb = skb}, packet, before);
}

/* Overwrites `length` bytes of packet->options from `at` on with NOPs. */
__weak int plait_blank(struct plait_packet *packet, __u32 at, __u32 length)
{
	if (!packet)
		return -1;
	for (__u32 i = 0; i < PLAIT_MAX_OPTIONS; i++) {
		__u32 blank = plait_if_less(i, at + length) & ~plait_if_less(i, at);

		packet->options[i] = (packet->options[i] & ~blank) | (TCPOPT_NOP & blank);
	}
	return 0;
}

/* The same in the packet, with or without payload. */
static __always_inline long plait_erase(struct plait_context context, struct plait_packet *packet, __u32 at,
					__u32 length)
{
	__u8 holds = plait_checksum(context, packet);
	struct plait_options before;

	if (holds != PLAIT_CHECKSUM_FULL && holds != PLAIT_CHECKSUM_PARTIAL)
		return -1;
	__builtin_memcpy(&before, packet->options, sizeof(before));
	if (plait_blank(packet, at, length))
		return -1;
	if (context.skb)
		return plait_change_options_tc(context.skb, packet, &before);
	if (context.xdp)
		return plait_change_options_xdp(context.xdp, packet, &before);
	return -1;
}

/* Overwrites an MPTCP option, given by its subtype, with NOPs. 0 if there was one. */
static __always_inline long plait_erase_mptcp(struct plait_context context, struct plait_packet *packet,
					      __u32 subtype)
{
	__u32 at = packet->option_at[subtype & 15];

	if (at == PLAIT_NO_OPTION || plait_erase(context, packet, at, packet->option_length[subtype & 15]))
		return -1;
	packet->option_at[subtype & 15] = PLAIT_NO_OPTION;
	return 0;
}

/* Overwrites the first option of this kind with NOPs. 0 if there was one. For MPTCP options use
 * plait_erase_mptcp(). */
static __always_inline long plait_erase_option(struct plait_context context, struct plait_packet *packet,
					       __u8 kind)
{
	packet->at = 0;
	for (int i = 0; i < PLAIT_MAX_OPTIONS; i++) {
		/* Volatile: the verifier then does not track the value. */
		__u32 at = *(volatile __u8 *)&packet->at;
		__u8 found, length;

		if (at >= packet->options_length || at >= PLAIT_MAX_OPTIONS)
			return -1;
		found = packet->options[at];
		length = packet->options[at + 1];
		if (found == TCPOPT_END)
			return -1;
		if (found == kind)
			break;
		*(volatile __u8 *)&packet->at = at + (found == TCPOPT_NOP ? 1 : length);
	}
	return plait_erase(context, packet, packet->at, packet->options[(packet->at + 1) & 63]);
}

/* Swaps two ranges of the packet of `length` bytes, a constant of at most 16. */
static __always_inline long plait_exchange(struct plait_context context, __u32 one, __u32 other, __u32 length)
{
	__u8 first[16], second[16];

	if (plait_load(context, one, first, length) || plait_load(context, other, second, length) ||
	    plait_store(context, one, second, length))
		return -1;
	return plait_store(context, other, first, length);
}

/* Swaps the Ethernet and IP addresses and resets the hop limit. */
static __always_inline long plait_turn_around(struct plait_context context, const struct plait_packet *packet)
{
	__u32 at = packet->ip_at;
	__u8 hops = 64;
	__u16 from, to;

	if (at >= 14 && plait_exchange(context, 0, 6, 6))
		return -1;
	/* Swapping the addresses does not change checksums. */
	if (packet->kinds & PLAIT_IS_IPV6)
		return plait_exchange(context, at + IPV6_ADDRESSES_AT, at + IPV6_ADDRESSES_AT + 16, 16) ||
		       plait_store(context, at + IPV6_HOP_LIMIT_AT, &hops, sizeof(hops));
	if (plait_exchange(context, at + IPV4_ADDRESSES_AT, at + IPV4_ADDRESSES_AT + 4, 4) ||
	    plait_load(context, at + IPV4_TTL_AT, &from, sizeof(from)))
		return -1;
	to = bpf_htons(hops << 8 | (bpf_ntohs(from) & 0xff));
	return plait_replace_in_ipv4(context, packet, IPV4_TTL_AT, from, to);
}

/*
 * Turns a pure acknowledgment into a reply to its sender, with `option` of `length` bytes, timestamps if the packet
 * has them, and the unscaled `window`. On success, returns 0 and sets the verdict PLAIT_REFLECT.
 */
static __always_inline long plait_reflect(struct plait_context context, struct plait_packet *packet,
					  const struct plait_option *option, __u32 length, __u16 window)
{
	__u32 keep = plait_begins_with_timestamps(packet) ? PLAIT_TIMESTAMPS_LENGTH : 0;
	__u32 *times = (void *)packet->options, sent = times[1];
	__u8 flags = PLAIT_IS_ACK;

	if (!(packet->kinds & PLAIT_IS_PURE_ACK) || (length + 3) / 4 * 4 + keep > packet->options_length ||
	    !plait_may_grow(context, packet))
		return -1;
	if (plait_turn_around(context, packet) ||
	    plait_exchange(context, packet->tcp_at, packet->tcp_at + 2, 2) ||
	    plait_exchange(context, packet->tcp_at + 4, packet->tcp_at + 8, 4) ||
	    plait_store(context, packet->tcp_at + TCP_OFFSET_AT + 1, &flags, sizeof(flags)))
		return -1;
	window = bpf_htons(window);
	if (plait_store(context, packet->tcp_at + PLAIT_WINDOW_AT, &window, sizeof(window)))
		return -1;
	if (keep) {
		times[1] = times[2];
		times[2] = sent;
	}
	/* Packets sent by XDP need a complete checksum. */
	if (context.xdp)
		packet->checksum = PLAIT_CHECKSUM_FULL;
	packet->verdict = PLAIT_REFLECT;
	return plait_put_option(context, packet, option, length, keep);
}

#endif
