/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Address announcements, ADD_ADDR (RFC 8684 section 3.4.1): withheld from the receiver, added, or repeated.
 *
 * An announcement must not be overwritten with NOPs: it may be the first sign to a host that its peer has completed
 * the handshake, and without an MPTCP option the connection falls back to TCP. So a pure acknowledgment with an
 * announcement is dropped; the sender repeats it after a while, and it is withheld again, unless the sender gets an
 * echo. (At XDP the echo is lost on a pair of virtual interfaces whose other end accepts no packets from XDP; the
 * announcement is still withheld.) In a packet with payload the HMAC is invalidated, so that the receiver ignores
 * the announcement.
 *
 * The last withheld announcement of each direction of a subflow is stored; each is reported once.
 */
#ifndef PLAIT_ACTORS_ANNOUNCE_H
#define PLAIT_ACTORS_ANNOUNCE_H

#include "../announcement.h"
#include "../injected.h"
#include "backup.h"

#define ADD_ADDR_ECHO 0x01

/* Kind, length, subtype, id, the address of one of two families, a port or none, the HMAC. */
static __always_inline int is_announcement(__u32 length)
{
	return length == 16 || length == 18 || length == 28 || length == 30;
}

/* Whether it was injected on purpose by inject.rs: sent by a raw socket, or marked by pass.bpf.c. */
static __always_inline int is_injected(struct plait_context context)
{
	struct bpf_sock *sender;
	__u64 *mark;

	if (!context.skb)
		return 0;
	mark = (void *)(long)context.skb->data_meta;
	if ((void *)(mark + 1) <= (void *)(long)context.skb->data && *mark == PLAIT_INJECTED)
		return 1;
	sender = context.skb->sk;
	if (!sender)
		return 0;
	sender = bpf_sk_fullsock(sender);
	return sender && sender->type == SOCK_RAW;
}

/* Copies the ADD_ADDR of a packet, padded with NOPs. */
__weak int read_announcement(const struct plait_packet *packet, struct plait_option *option)
{
	__u32 at, length;

	if (!packet || !option)
		return -1;
	at = packet->option_at[MPTCP_ADD_ADDR];
	length = packet->option_length[MPTCP_ADD_ADDR];
	for (__u32 i = 0; i < sizeof(*option); i++) {
		__u32 mask = plait_if_less(i, length);

		((__u8 *)option)[i] = (packet->options[(at + i) & 63] & mask) | (TCPOPT_NOP & ~mask);
	}
	return 0;
}

/* Stores a withheld announcement; not 0 if it differs from the stored one. */
static __always_inline __u32 withhold(struct plait_flow *flow, __u32 hook, const struct plait_option *option,
				      __u32 length)
{
	__u32 *withheld = (void *)flow->withheld[hook], differs = flow->withheld_length[hook] ^ length;

	for (__u32 i = 0; i < sizeof(*option) / 4; i++) {
		differs |= withheld[i] ^ option->words[i];
		withheld[i] = option->words[i];
	}
	flow->withheld_length[hook] = length;
	return differs;
}

static __always_inline void report_withheld(const struct plait_packet *packet,
					    const struct plait_option *option)
{
	struct plait_event *event = plait_event(packet, PLAIT_EVENT_WITHHELD);

	if (!event)
		return;
	__builtin_memcpy(event->option, option, sizeof(*option));
	event->address_id = event->option[3];
	plait_submit_event(event);
}

/* Turns a pure acknowledgment with ADD_ADDR into its echo, sent back. */
static __always_inline long answer_echo(struct plait_context context, struct plait_packet *packet,
					const struct plait_flow *flow, struct plait_option *option)
{
	__u32 length = packet->option_length[MPTCP_ADD_ADDR] - ADD_ADDR_HMAC;
	__u8 *bytes = (void *)option;
	__u16 window;

	/* The window to offer is unknown until one was seen. */
	if (!flow)
		return -1;
	window = flow->dir[~packet->hook & 1].offered_window;
	if (!window)
		return -1;
	bytes[1] = length;
	bytes[2] |= ADD_ADDR_ECHO;
	return plait_reflect(context, packet, option, length, window);
}

/* Invalidates the HMAC at the end of a packet's ADD_ADDR. */
static __always_inline long invalidate_announcement(struct plait_context context, struct plait_packet *packet)
{
	__u32 at = packet->option_at[MPTCP_ADD_ADDR] + packet->option_length[MPTCP_ADD_ADDR] - 1;

	return plait_set_option_byte(context, packet, at, ~packet->options[at & 63]);
}

/* parameters[0]: not 0: the sender gets an echo, as if the announcement had arrived. */
static __always_inline int block_subflow(struct plait_context context, struct plait_packet *packet,
					 const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 length = packet->option_length[MPTCP_ADD_ADDR];
	struct plait_option option = {};

	if (!(packet->kinds & PLAIT_HAS_ADD_ADDR) || packet->option_at[MPTCP_ADD_ADDR] == PLAIT_NO_OPTION ||
	    is_injected(context))
		return PLAIT_MISS;
	if (!is_announcement(length) || plait_checksum(context, packet) == PLAIT_CHECKSUM_WRONG ||
	    read_announcement(packet, &option))
		return PLAIT_ERROR;
	if (!flow || withhold(flow, packet->hook & 1, &option, length))
		report_withheld(packet, &option);
	if (!(packet->kinds & PLAIT_IS_PURE_ACK) ||
	    packet->kinds & (PLAIT_HAS_MP_CAPABLE | PLAIT_HAS_MP_JOIN))
		return invalidate_announcement(context, packet) ? PLAIT_ERROR : PLAIT_HIT;
	if (!actor->parameters[0] || answer_echo(context, packet, flow, &option))
		packet->verdict = PLAIT_DROP;
	return PLAIT_HIT;
}

/* Longer than most round trips, to allow for the echo. */
#define FIRST_ANNOUNCEMENT_PAUSE 1000000000ull

/*
 * Selects the address of an actor as the one to announce. Several addresses take turns, and each is announced once
 * per subflow and direction: until its echo is seen, at most MAX_TIMES times. PLAIT_HIT if it is selected.
 */
static __always_inline int select_address(struct plait_context context, const struct plait_packet *packet,
					  const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 hook = packet->hook & 1, id = actor->parameters[3] & 0xff;
	__u64 *announced = &flow->announced_ids[hook][id >> 6], bit = 1ull << (id & 63);
	__u64 keys[2] = {};

	if (*announced & bit)
		return flow->pending_length[hook] && flow->pending[hook][3] == id ? PLAIT_HIT : PLAIT_MISS;
	if (flow->pending_length[hook] && flow->announced[hook] < MAX_TIMES)
		return PLAIT_MISS;
	*announced |= bit;
	if (find_keys(context, packet, keys))
		return PLAIT_ERROR;
	/* The announcer's key comes first. */
	if (hash_announcement(actor, keys[hook == PLAIT_INGRESS], keys[hook == PLAIT_EGRESS]))
		return PLAIT_ERROR;
	flow->pending_length[hook] = write_announcement((struct plait_option *)flow->pending[hook], actor);
	flow->announced[hook] = 0;
	return PLAIT_HIT;
}

/*
 * How many bytes of a pure acknowledgment's options to keep when `length` more are added; more than the maximum if
 * there is no room. If not all fit, the data acknowledgment is dropped, which later packets repeat, and for the
 * longest form the timestamps as well, like Linux does.
 */
static __always_inline __u32 kept_options(const struct plait_packet *packet, __u32 length)
{
	__u32 timestamps = plait_begins_with_timestamps(packet) ? PLAIT_TIMESTAMPS_LENGTH : 0;
	__u32 needed = (length + 3) / 4 * 4;

	if (packet->options_length + needed <= PLAIT_MAX_OPTIONS)
		return packet->options_length;
	if (packet->kinds & (PLAIT_HAS_MAPPING | PLAIT_HAS_DATA_FIN) ||
	    packet->option_at[MPTCP_DSS] != timestamps ||
	    timestamps + packet->option_length[MPTCP_DSS] != packet->options_length)
		return PLAIT_MAX_OPTIONS + 1;
	return timestamps + needed <= PLAIT_MAX_OPTIONS ? timestamps : 0;
}

/* parameters[0] and [1]: the address, mapped if IPv4; [2]: its port, or 0; [3]: its id. All 0: the withheld
 * announcement. */
static __always_inline int add_subflow(struct plait_context context, struct plait_packet *packet,
				       const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 hook = packet->hook & 1, length;

	if (!may_carry(packet) || packet->option_at[MPTCP_ADD_ADDR] != PLAIT_NO_OPTION)
		return PLAIT_MISS;
	if (!flow)
		return PLAIT_MISS;
	if (actor->parameters[0] | actor->parameters[1]) {
		int outcome = select_address(context, packet, actor, flow);

		if (outcome != PLAIT_HIT)
			return outcome;
	} else if (flow->withheld_length[hook]) {
		__builtin_memcpy(flow->pending[hook], flow->withheld[hook], 32);
		flow->pending_length[hook] = flow->withheld_length[hook];
		flow->withheld_length[hook] = 0;
		flow->announced[hook] = 0;
	}
	length = flow->pending_length[hook];
	if (!length || !is_due(packet, flow->announced[hook], flow->announced_nanoseconds[hook],
			       FIRST_ANNOUNCEMENT_PAUSE))
		return PLAIT_MISS;
	if (plait_put_option(context, packet, (const struct plait_option *)flow->pending[hook], length,
			     kept_options(packet, length)))
		return PLAIT_ERROR;
	flow->announced[hook]++;
	flow->announced_nanoseconds[hook] = plait_now(packet);
	return PLAIT_HIT;
}

#endif
