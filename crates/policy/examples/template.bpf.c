// SPDX-License-Identifier: MIT OR GPL-2.0
/* To begin with: rename both, say here what they are for, and name this file in the policy's [own.NAME]. */
#include "plait.bpf.h"

/* Whether the packet is one of those. struct plait_packet (intf.h) says what is known of it. */
PLAIT_SELECTOR(my_selector)
{
	return packet->kinds & PLAIT_IS_DATA && packet->destination_port == 443;
}

/* PLAIT_HIT if it did what it is for, PLAIT_MISS if there was nothing to do, PLAIT_ERROR if it could not. */
PLAIT_ACTOR(my_actor)
{
	if (packet->kinds & PLAIT_IS_SYN)
		return PLAIT_MISS;
	packet->verdict = PLAIT_DROP;
	return PLAIT_HIT;
}

char _license[] SEC("license") = "Dual MIT/GPL";
