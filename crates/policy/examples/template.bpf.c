// SPDX-License-Identifier: MIT OR GPL-2.0
/* A template: rename both, describe them here, and refer to this file in the policy's [custom.NAME]. */
#include "plait.bpf.h"

/* Returns whether the packet matches. struct plait_packet (intf.h) lists what is known about it. */
PLAIT_SELECTOR(my_selector)
{
	return packet->kinds & PLAIT_IS_DATA && packet->destination_port == 443;
}

/* Returns PLAIT_HIT if it took effect, PLAIT_MISS if there was nothing to do, PLAIT_ERROR if it failed. */
PLAIT_ACTOR(my_actor)
{
	if (packet->kinds & PLAIT_IS_SYN)
		return PLAIT_MISS;
	packet->verdict = PLAIT_DROP;
	return PLAIT_HIT;
}

char _license[] SEC("license") = "Dual MIT/GPL";
