/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Signals one bit in the MPTCP handshake: a reserved flag of MP_CAPABLE (D to G, RFC 8684 section 3.1).
 *
 * An MPTCP implementation ignores an option with a reserved flag, so the receiver must use this actor as well: at
 * egress it sets the flag, at ingress it stores it (PLAIT_FLOW_CAPABLE_FLAG) and clears it. The flag is set in every
 * SYN, but in a SYN-ACK only if the SYN had it.
 */
#ifndef PLAIT_ACTORS_CAPABLE_FLAG_H
#define PLAIT_ACTORS_CAPABLE_FLAG_H

#include "../flows.h"

/* Offset of the flags in MP_CAPABLE. */
#define CAPABLE_FLAGS_AT 3
#define FLAG_D 0x10
#define FLAGS_D_TO_G 0x1e

/* parameters[0]: the flag, of D (0x10) to G (0x02); 0: D. */
static __always_inline int capable_flag(struct plait_context context, struct plait_packet *packet,
					const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 at = packet->option_at[MPTCP_CAPABLE];
	__u8 flag = actor->parameters[0] & FLAGS_D_TO_G, flags;

	if (at == PLAIT_NO_OPTION || !(packet->kinds & PLAIT_IS_SYN))
		return PLAIT_MISS;
	if (packet->option_length[MPTCP_CAPABLE] <= CAPABLE_FLAGS_AT)
		return PLAIT_ERROR;
	if (!flag)
		flag = FLAG_D;
	flags = plait_option_byte(packet, MPTCP_CAPABLE, CAPABLE_FLAGS_AT);
	if (packet->hook == PLAIT_EGRESS) {
		if (flags & flag ||
		    (packet->kinds & PLAIT_IS_ACK && !(flow && flow->flags & PLAIT_FLOW_CAPABLE_FLAG)))
			return PLAIT_MISS;
		flags |= flag;
	} else {
		if (!(flags & flag))
			return PLAIT_MISS;
		if (!flow)
			return PLAIT_ERROR;
		flow->flags |= PLAIT_FLOW_CAPABLE_FLAG;
		flags &= ~flag;
	}
	return plait_set_option_byte(context, packet, at + CAPABLE_FLAGS_AT, flags) ? PLAIT_ERROR : PLAIT_HIT;
}

#endif
