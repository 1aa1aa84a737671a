// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * A custom selector and a custom actor, for a policy such as
 *
 *	[custom.slow]
 *	file = "custom.bpf.c"
 *
 *	[custom.sample_every_hundredth]
 *	file = "custom.bpf.c"
 *
 *	[[chains]]
 *	name = "slow paths"
 *	hook = "egress"
 *	interfaces = ["wlan0"]
 *	select = "slow and packet(data)"
 *	actors = ["sample_every_hundredth"]
 */
#include "plait.bpf.h"

/* Packets of subflows with a round-trip time above 100 ms. */
PLAIT_SELECTOR(slow)
{
	struct plait_flow *flow = plait_flow(packet);

	return flow && flow->rtt > 100000;
}

/* Emits an event for every hundredth packet of a subflow, with the number of packets and payload bytes so far. */
PLAIT_ACTOR(sample_every_hundredth)
{
	struct plait_storage *seen = plait_storage(packet);
	struct plait_event *event;

	if (!seen)
		return PLAIT_ERROR;
	seen->words[0]++;
	seen->words[1] += packet->payload;
	if (seen->words[0] % 100)
		return PLAIT_MISS;
	event = plait_event(packet, PLAIT_EVENT_CUSTOM);
	if (!event)
		return PLAIT_ERROR;
	event->values[0] = seen->words[0];
	event->values[1] = seen->words[1];
	plait_submit_event(event);
	return PLAIT_HIT;
}

char _license[] SEC("license") = "Dual MIT/GPL";
