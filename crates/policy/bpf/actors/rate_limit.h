/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Limits how fast the receiver of these packets may send, by the window that they offer: of each round trip,
 * it may send one window (RFC 9293 section 3.8.6).
 */
#ifndef PLAIT_ACTORS_RATE_LIMIT_H
#define PLAIT_ACTORS_RATE_LIMIT_H

#include "../flows.h"

/* Where the window stands in TCP's header. */
#define WINDOW_AT 14

/* parameters[0]: the most bytes offered, or 0; parameters[1]: bytes per second, of which a round trip's are
 * offered. */
static __always_inline int rate_limit(struct plait_context context, struct plait_packet *packet,
				      const struct plait_actor *actor)
{
	__u64 most = actor->parameters[0];
	struct plait_flow *flow;
	int scale;

	/* The window of a SYN is not scaled, and who has it may not send yet. */
	if (packet->kinds & (PLAIT_IS_SYN | PLAIT_IS_RST) || !(packet->kinds & PLAIT_IS_ACK))
		return PLAIT_MISS;
	flow = plait_flow(packet);
	if (!flow)
		return PLAIT_MISS;
	scale = scale_of(flow, packet->hook);
	if (scale < 0)
		return PLAIT_MISS;
	if (!most)
		most = actor->parameters[1] * flow->rtt / 1000000;
	most >>= scale & 15;
	if (!most)
		most = 1;
	if (most >= packet->window)
		return PLAIT_MISS;
	if (plait_replace(context, packet, WINDOW_AT, bpf_htons(packet->window), bpf_htons(most)))
		return PLAIT_ERROR;
	return PLAIT_HIT;
}

#endif
