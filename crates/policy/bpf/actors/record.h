/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Requests that subflows be recorded, which flows.h does for all as soon as one chain needs it. */
#ifndef PLAIT_ACTORS_RECORD_H
#define PLAIT_ACTORS_RECORD_H

#include "../plait.bpf.h"

static __always_inline int record_flow(struct plait_context context, struct plait_packet *packet,
				       const struct plait_actor *actor, struct plait_flow *flow)
{
	return packet->flow_known ? PLAIT_HIT : PLAIT_MISS;
}

#endif
