/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Requests that the receiver use the subflow as a backup, or no longer: adds MP_PRIO (RFC 8684 section 3.3.8) to pure
 * acknowledgments.
 *
 * It is added if the subflow does not have the requested priority yet. MP_PRIO is not confirmed, and lost pure
 * acknowledgments are not retransmitted: so it is added four times, to the first one with room for it after 0, 100,
 * 300 and 700 ms, and then no more until the priority of the subflow changes.
 */
#ifndef PLAIT_ACTORS_BACKUP_H
#define PLAIT_ACTORS_BACKUP_H

#include "../options.h"
#include "../flows.h"

/* How often an unconfirmed option is sent. */
#define MAX_TIMES 4

/* Whether to send again what was sent `times` times: each pause is twice as long as the previous one. */
static __always_inline int is_due(struct plait_packet *packet, __u32 times, __u64 last, __u64 first_pause)
{
	if (!times)
		return 1;
	return times < MAX_TIMES && plait_now(packet) - last >= first_pause << ((times - 1) & 3);
}

/* Whether an MPTCP option can be added: the data acknowledgment completes the handshake for the receiver. */
static __always_inline int may_carry(const struct plait_packet *packet)
{
	return packet->kinds & PLAIT_IS_PURE_ACK && packet->kinds & PLAIT_HAS_DATA_ACK &&
	       !(packet->kinds & (PLAIT_HAS_MP_CAPABLE | PLAIT_HAS_MP_JOIN));
}

#define FIRST_PRIORITY_PAUSE 100000000ull
/* In parameters[0]: use the format of version 0, with the address id in the lowest byte (RFC 6824 section 3.3.8),
 * instead of version 1. */
#define WITH_ADDRESS_ID 0x100

static __always_inline int set_priority(struct plait_context context, struct plait_packet *packet,
					const struct plait_actor *actor, struct plait_flow *flow,
					__u32 backup)
{
	__u32 hook = packet->hook & 1, length, is;
	struct plait_option option = {};
	__u32 flag = backup_flag(hook), times;

	if (!may_carry(packet) || packet->option_at[MPTCP_PRIO] != PLAIT_NO_OPTION)
		return PLAIT_MISS;
	if (!flow)
		return PLAIT_MISS;
	is = flow->flags & flag ? 1 : 0;
	times = is == backup ? flow->prioritized[hook] : 0;
	/* The priority is as requested since the handshake, if that was seen. */
	if (is == backup && !times && flow->dir[hook].syn_seen)
		return PLAIT_MISS;
	if (!is_due(packet, times, flow->prioritized_nanoseconds[hook], FIRST_PRIORITY_PAUSE))
		return PLAIT_MISS;
	length = actor->parameters[0] & WITH_ADDRESS_ID ? 4 : 3;
	option.words[0] = bpf_htonl((__u32)TCPOPT_MPTCP << 24 | length << 16 |
				    (MPTCP_PRIO << 4 | backup) << 8 | (actor->parameters[0] & 0xff));
	if (plait_add_option(context, packet, &option, length))
		return PLAIT_ERROR;
	flow->prioritized[hook] = times + 1;
	flow->prioritized_nanoseconds[hook] = plait_now(packet);
	flow->flags = backup ? flow->flags | flag : flow->flags & ~flag;
	return PLAIT_HIT;
}

static __always_inline int set_backup(struct plait_context context, struct plait_packet *packet,
				      const struct plait_actor *actor, struct plait_flow *flow)
{
	return set_priority(context, packet, actor, flow, 1);
}

static __always_inline int clear_backup(struct plait_context context, struct plait_packet *packet,
					const struct plait_actor *actor, struct plait_flow *flow)
{
	return set_priority(context, packet, actor, flow, 0);
}

/*
 * Whether the effect of set_backup in a chain that expired at `moment` (CLOCK_MONOTONIC) remains: the subflow is a
 * backup by an MP_PRIO sent before then, or its reversal is still being sent.
 */
static __always_inline int backup_remains(const struct plait_flow *flow, __u32 hook, __u64 moment)
{
	if (!flow)
		return 0;
	if (!(flow->flags & backup_flag(hook)))
		return flow->prioritized[hook & 1];
	return flow->prioritized_nanoseconds[hook & 1] && flow->prioritized_nanoseconds[hook & 1] < moment;
}

#endif
