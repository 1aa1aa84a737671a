/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Keeps MPTCP off a path: deny_join refuses subflows that join on it, fall_back makes connections that start there
 * plain TCP.
 *
 * A join is refused so that the waiting end aborts immediately, or by dropping its packets. The SYN of an incoming
 * join gets the token 0, which no connection has, so that the host itself refuses it (RFC 8684 section 3.2); other
 * incoming packets become the reset that the host would have received. Outgoing packets are answered with a reset
 * before they leave, so that the path does not see the attempt.
 */
#ifndef PLAIT_ACTORS_JOIN_H
#define PLAIT_ACTORS_JOIN_H

#include "../options.h"

/* Offset of the flags in the TCP header. */
#define TCP_FLAGS_AT 13
/* RFC 8684 section 3.6: administratively prohibited, not transient. */
#define RESET_PROHIBITED 3
#define MPTCP_TCPRST_LENGTH 4
/* Maximum length of MP_CAPABLE in a SYN or SYN-ACK, with a key (RFC 8684 section 3.1). */
#define MAX_CAPABLE 12

/* Offsets in the TCP header. */
#define TCP_SEQUENCE_AT 4
#define TCP_ACKNOWLEDGMENT_AT 8

/* Turns a packet around, with sequence numbers that its sender accepts (RFC 9293 section 3.10.7.1). */
static __always_inline long send_back(struct plait_context context, const struct plait_packet *packet)
{
	__u32 sequence = packet->kinds & PLAIT_IS_ACK ? bpf_htonl(packet->acknowledgment) : 0;
	__u32 acknowledgment = bpf_htonl(packet->sequence + !!(packet->kinds & PLAIT_IS_SYN));
	__u32 at = packet->tcp_at;

	return plait_turn_around(context, packet) || plait_exchange(context, at, at + 2, 2) ||
	       plait_store(context, at + TCP_SEQUENCE_AT, &sequence, sizeof(sequence)) ||
	       plait_store(context, at + TCP_ACKNOWLEDGMENT_AT, &acknowledgment, sizeof(acknowledgment));
}

/* Turns the packet into a reset: for its sender at egress, for its receiver at ingress. */
static __always_inline int become_reset(struct plait_context context, struct plait_packet *packet)
{
	__u8 flags = PLAIT_IS_RST | PLAIT_IS_ACK;
	__u32 *options = (void *)packet->options;

	/* A packet with payload cannot be turned into a reset. */
	if (packet->payload) {
		packet->verdict = PLAIT_DROP;
		return PLAIT_HIT;
	}
	if (!plait_may_grow(context, packet))
		return PLAIT_ERROR;
	for (__u32 i = 0; i < PLAIT_MAX_OPTIONS / 4; i++)
		if (i * 4 < packet->options_length)
			options[i] = PLAIT_WORD_OF_NOPS;
	options[0] =
	    bpf_htonl(TCPOPT_MPTCP << 24 | MPTCP_TCPRST_LENGTH << 16 | MPTCP_TCPRST << 12 | RESET_PROHIBITED);
	__builtin_memset(packet->option_at, PLAIT_NO_OPTION, sizeof(packet->option_at));
	if (plait_store(context, packet->tcp_at + TCP_FLAGS_AT, &flags, sizeof(flags)) ||
	    (packet->hook == PLAIT_EGRESS && send_back(context, packet)) ||
	    plait_write_options(context, packet))
		return PLAIT_ERROR;
	if (packet->hook == PLAIT_EGRESS)
		packet->verdict = PLAIT_REFLECT;
	return PLAIT_HIT;
}

/* parameters[0]: 0 drops the packet, 1 resets the subflow. */
static __always_inline int deny_join(struct plait_context context, struct plait_packet *packet,
				     const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 at = packet->option_at[MPTCP_JOIN];

	if (at == PLAIT_NO_OPTION)
		return PLAIT_MISS;
	if (!actor->parameters[0]) {
		packet->verdict = PLAIT_DROP;
		return PLAIT_HIT;
	}
	if (packet->hook == PLAIT_EGRESS || !plait_is_first_syn(packet))
		return become_reset(context, packet);
	for (__u32 i = PLAIT_JOIN_TOKEN_AT; i < PLAIT_JOIN_TOKEN_AT + 4; i++) {
		if (i >= packet->option_length[MPTCP_JOIN])
			return PLAIT_ERROR;
		if (plait_set_option_byte(context, packet, at + i, 0))
			return PLAIT_ERROR;
	}
	return PLAIT_HIT;
}

/* Without MP_CAPABLE in the handshake, both ends use plain TCP (RFC 8684 section 3.7). */
static __always_inline int fall_back(struct plait_context context, struct plait_packet *packet,
				     const struct plait_actor *actor, struct plait_flow *flow)
{
	if (packet->option_at[MPTCP_CAPABLE] == PLAIT_NO_OPTION || !(packet->kinds & PLAIT_IS_SYN))
		return PLAIT_MISS;
	if (packet->option_length[MPTCP_CAPABLE] > MAX_CAPABLE)
		return PLAIT_ERROR;
	return plait_erase_mptcp(context, packet, MPTCP_CAPABLE) ? PLAIT_ERROR : PLAIT_HIT;
}

#endif
