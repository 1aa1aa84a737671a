/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Sets the rate at which this host sends on the subflow. The program in pace.bpf.c applies it to the socket within a
 * round trip, and keeps it as long as packets match.
 */
#ifndef PLAIT_ACTORS_PACE_H
#define PLAIT_ACTORS_PACE_H

#include "../flows.h"

/* parameters[0]: bytes per second. */
static __always_inline int pace(struct plait_context context, struct plait_packet *packet,
				const struct plait_actor *actor, struct plait_flow *flow)
{
	if (!flow || packet->hook != PLAIT_EGRESS)
		return PLAIT_MISS;
	flow->pace = actor->parameters[0];
	flow->pace_nanoseconds = plait_now(packet);
	return PLAIT_HIT;
}

#endif
