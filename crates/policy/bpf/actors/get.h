/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Reports new connections and subflows. */
#ifndef PLAIT_ACTORS_GET_H
#define PLAIT_ACTORS_GET_H

#include "../flows.h"

/* Offsets of the keys in MP_CAPABLE, and its length with both (RFC 8684 section 3.1). */
#define INITIATOR_KEY_AT 4
#define RESPONDER_KEY_AT 12
#define CAPABLE_WITH_KEYS 20
/* Offsets in MP_JOIN (RFC 8684 section 3.2). */
#define JOIN_BACKUP_AT 2
#define JOIN_ADDRESS_ID_AT 3
#define JOIN_OF_SYN_ACK 16

/*
 * Once per connection, at the first MP_CAPABLE with both keys: in the third packet of the handshake, or in the
 * first with data. parameters[0]: include the keys in the event.
 */
static __always_inline int get_connection(struct plait_context context, struct plait_packet *packet,
					  const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 flag = actor->parameters[0] ? PLAIT_FLOW_REPORTED_KEYS : PLAIT_FLOW_REPORTED;
	__u32 at = packet->option_at[MPTCP_CAPABLE];
	struct plait_event *event;

	if (at == PLAIT_NO_OPTION || packet->option_length[MPTCP_CAPABLE] < CAPABLE_WITH_KEYS)
		return PLAIT_MISS;
	if (flow && flow->flags & flag)
		return PLAIT_MISS;
	event = plait_event(packet, PLAIT_EVENT_CONNECTION);
	if (!event)
		return PLAIT_ERROR;
	if (actor->parameters[0]) {
		event->keys[0] = plait_option_number(packet, at + INITIATOR_KEY_AT, 8);
		event->keys[1] = plait_option_number(packet, at + RESPONDER_KEY_AT, 8);
	}
	plait_submit_event(event);
	if (flow)
		flow->flags |= flag;
	return PLAIT_HIT;
}

/* At the SYN and SYN-ACK with MP_JOIN: the token, if the SYN is incoming or the sender is known, the sender's
 * address id, and the backup flag. */
static __always_inline int get_subflow(struct plait_context context, struct plait_packet *packet,
				       const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 at = packet->option_at[MPTCP_JOIN], length = packet->option_length[MPTCP_JOIN];
	struct plait_event *event;

	if (at == PLAIT_NO_OPTION || !(packet->kinds & PLAIT_IS_SYN) ||
	    (length != PLAIT_JOIN_OF_SYN && length != JOIN_OF_SYN_ACK))
		return PLAIT_MISS;
	event = plait_event(packet, PLAIT_EVENT_SUBFLOW);
	if (!event)
		return PLAIT_ERROR;
	event->address_id = plait_option_byte(packet, MPTCP_JOIN, JOIN_ADDRESS_ID_AT);
	event->backup = plait_option_byte(packet, MPTCP_JOIN, JOIN_BACKUP_AT) & 1;
	plait_submit_event(event);
	return PLAIT_HIT;
}

#endif
