/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Actors that set a verdict or a mark. */
#ifndef PLAIT_ACTORS_VERDICTS_H
#define PLAIT_ACTORS_VERDICTS_H

#include "../plait.bpf.h"

static __always_inline int drop(struct plait_context context, struct plait_packet *packet,
				const struct plait_actor *actor, struct plait_flow *flow)
{
	packet->verdict = PLAIT_DROP;
	return PLAIT_HIT;
}

/* parameters[0]: the mark; parameters[1]: the mask of the bits to set. */
static __always_inline int mark(struct plait_context context, struct plait_packet *packet,
				const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 mask = actor->parameters[1];

	if (!context.skb)
		return PLAIT_ERROR;
	context.skb->mark = (context.skb->mark & ~mask) | ((__u32)actor->parameters[0] & mask);
	return PLAIT_HIT;
}

#endif
