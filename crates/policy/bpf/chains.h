/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * From a packet that is read to its verdict: its subflow is looked up, the program `match` of the loaded
 * policies finds the chains that apply, and their actors act.
 *
 * Programs follow each other by tail calls, so that each can be replaced by itself. What they know of the
 * packet stays in struct plait_packet. Included by the programs of each kind of hook, which say before how to
 * go on and how to end: CONTEXT, STEPS, context_of(), verdict_of().
 */
#ifndef PLAIT_CHAINS_H
#define PLAIT_CHAINS_H

#include "parse.h"
#include "flows.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLAIT_CHAIN_SLOTS);
	__type(key, __u32);
	__type(value, struct plait_chain);
} chains SEC(".maps");

/* Until when (CLOCK_MONOTONIC) the chains of those hold who must say again and again that they live. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLAIT_LEASES);
	__type(key, __u32);
	__type(value, __u64);
} leases SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PLAIT_STEPS);
	__type(key, __u32);
	__type(value, __u32);
} STEPS SEC(".maps");

/* Weak, as the compiler otherwise leaves out arguments that this definition does not use, and the verifier
 * wants them. */
#define ACTOR(name)                                                                                          \
	__weak int do_##name(CONTEXT *ctx, struct plait_packet *packet, const struct plait_actor *actor,     \
			     struct plait_flow *flow)                                                        \
	{                                                                                                    \
		if (!packet || !actor)                                                                       \
			return PLAIT_ERROR;                                                                  \
		return name(context_of(ctx), packet, actor, flow);                                           \
	}

#include "actors/verdicts.h"
#include "actors/rate_limit.h"
#include "actors/pace.h"
#include "actors/join.h"
#include "actors/capable_flag.h"
#include "actors/get.h"
#include "actors/backup.h"
#include "actors/announce.h"
#include "actors/record.h"

ACTOR(drop)
ACTOR(mark)
ACTOR(redirect)
ACTOR(rate_limit)
ACTOR(pace)
ACTOR(deny_join)
ACTOR(fall_back)
ACTOR(capable_flag)
ACTOR(get_connection)
ACTOR(get_subflow)
ACTOR(set_backup)
ACTOR(clear_backup)
ACTOR(block_subflow)
ACTOR(add_subflow)
ACTOR(record_flow)

enum turn {
	TURN_NONE = 0,
	TURN_NEXT,
	/* Of an actor of the user's own: the program packet->own_number. */
	TURN_OWN,
};

/* What one actor of plait's does with the packet. */
static __always_inline int do_actor(CONTEXT *ctx, struct plait_packet *packet,
				    const struct plait_actor *actor, struct plait_flow *flow)
{
	switch (actor->kind) {
	case PLAIT_ACTOR_DROP:
		return do_drop(ctx, packet, actor, flow);
	case PLAIT_ACTOR_MARK:
		return do_mark(ctx, packet, actor, flow);
	case PLAIT_ACTOR_REDIRECT:
		return do_redirect(ctx, packet, actor, flow);
	case PLAIT_ACTOR_RATE_LIMIT:
		return do_rate_limit(ctx, packet, actor, flow);
	case PLAIT_ACTOR_PACE:
		return do_pace(ctx, packet, actor, flow);
	case PLAIT_ACTOR_DENY_JOIN:
		return do_deny_join(ctx, packet, actor, flow);
	case PLAIT_ACTOR_FALL_BACK:
		return do_fall_back(ctx, packet, actor, flow);
	case PLAIT_ACTOR_CAPABLE_FLAG:
		return do_capable_flag(ctx, packet, actor, flow);
	case PLAIT_ACTOR_GET_CONNECTION:
		return do_get_connection(ctx, packet, actor, flow);
	case PLAIT_ACTOR_GET_SUBFLOW:
		return do_get_subflow(ctx, packet, actor, flow);
	case PLAIT_ACTOR_SET_BACKUP:
		return do_set_backup(ctx, packet, actor, flow);
	case PLAIT_ACTOR_CLEAR_BACKUP:
		return do_clear_backup(ctx, packet, actor, flow);
	case PLAIT_ACTOR_BLOCK_SUBFLOW:
		return do_block_subflow(ctx, packet, actor, flow);
	case PLAIT_ACTOR_ADD_SUBFLOW:
		return do_add_subflow(ctx, packet, actor, flow);
	case PLAIT_ACTOR_RECORD:
		return do_record_flow(ctx, packet, actor, flow);
	}
	return PLAIT_ERROR;
}

/* Whoever loaded the chain has not said for too long that it still holds. */
static __always_inline int has_lapsed(const struct plait_chain *chain)
{
	__u32 lease = chain->lease;
	__u64 *until;

	if (!lease)
		return 0;
	until = bpf_map_lookup_elem(&leases, &lease);
	return !until || bpf_ktime_get_ns() >= *until;
}

static __always_inline struct plait_counter *count_packet(__u32 index, const struct plait_packet *packet)
{
	struct plait_counter *counter = bpf_map_lookup_elem(&counters, &index);

	if (counter) {
		counter->packets++;
		counter->bytes += packet->ip_bytes;
	}
	return counter;
}

static __always_inline void tell_packet(const struct plait_packet *packet)
{
	struct plait_event *event = plait_event(packet, PLAIT_EVENT_PACKET);

	if (!event)
		return;
	event->verdict = packet->verdict;
	event->changed = packet->changed;
	event->chains_hit = packet->chains_hit;
	event->chain_count = packet->chain_count;
	for (int i = 0; i < 16; i++) {
		__u32 slot = packet->chains[i];
		struct plait_chain *chain =
		    i < packet->chain_count ? bpf_map_lookup_elem(&chains, &slot) : NULL;

		event->chains[i] = chain ? chain->counter : 0;
	}
	plait_tell(event);
}

/* The chain that has its turn, from packet->chain_next on; NULL at the end of the list, or of the packet. */
static __always_inline struct plait_chain *next_chain(struct plait_packet *packet)
{
	__u32 next = packet->chain_next, slot;

	if (packet->verdict != PLAIT_PASS || next >= packet->chain_count || next >= PLAIT_MOST_CHAINS)
		return NULL;
	slot = packet->chains[next];
	return bpf_map_lookup_elem(&chains, &slot);
}

/*
 * One actor's turn, or the end of a chain. What comes next: enum turn. A function of its own, so that the
 * verifier follows it once and not for every turn.
 */
__weak int take_turn(CONTEXT *ctx, struct plait_packet *packet, struct plait_flow *flow)
{
	const struct plait_settings *asked = plait_settings();
	struct plait_chain *chain = packet ? next_chain(packet) : NULL;
	struct plait_counter *counter;
	__u64 since;
	int outcome;
	__u32 n;

	if (!packet || !chain || !asked)
		return TURN_NONE;
	n = packet->actor_next;
	if (n == 0 && has_lapsed(chain))
		n = PLAIT_MOST_ACTORS;
	if (n == 0)
		count_packet(chain->counter, packet);
	if (n >= chain->actor_count || n >= PLAIT_MOST_ACTORS) {
		packet->chain_next++;
		packet->actor_next = 0;
		return TURN_NEXT;
	}
	packet->actor_next = n + 1;
	packet->actor_counter = chain->actors[n].counter;
	counter = count_packet(packet->actor_counter, packet);
	if (chain->actors[n].kind == PLAIT_ACTOR_OWN) {
		packet->own_number = chain->actors[n].parameters[0];
		return TURN_OWN;
	}
	since = asked->timing ? bpf_ktime_get_ns() : 0;
	outcome = do_actor(ctx, packet, &chain->actors[n], flow);
	if (counter && since)
		counter->nanoseconds += bpf_ktime_get_ns() - since;
	plait_count_outcome(counter, outcome);
	if (outcome == PLAIT_HIT)
		packet->chains_hit |= 1ull << (packet->chain_next & 63);
	return TURN_NEXT;
}

/* The most turns that one packet takes. */
#define MOST_TURNS 192

/* The actors of the chains that matched, from packet->chain_next and packet->actor_next on. */
static __always_inline void do_chains(CONTEXT *ctx, struct plait_packet *packet)
{
	/* Once for all of them: to look a subflow up takes longer than most of what they do. */
	struct plait_flow *flow = packet->flow_known ? plait_flow(packet) : NULL;

	for (int i = 0; i < MOST_TURNS; i++) {
		int turn = take_turn(ctx, packet, flow);

		if (turn == TURN_NONE)
			return;
		if (turn == TURN_OWN) {
			/* If it is there, this does not come back: it goes on with `act`. */
			bpf_tail_call(ctx, &STEPS, PLAIT_OWN_ACTORS + packet->own_number);
			plait_count_outcome(bpf_map_lookup_elem(&counters, &packet->actor_counter),
					    PLAIT_ERROR);
		}
	}
}

static __always_inline int do_act(CONTEXT *ctx)
{
	const struct plait_settings *asked = plait_settings();
	struct plait_packet *packet = plait_packet();

	if (!packet || !asked)
		return LET_GO;
	do_chains(ctx, packet);
	if (asked->tracing)
		tell_packet(packet);
	return verdict_of(ctx, packet);
}

/*
 * Reads a packet whose headers are found, of `bytes` from IP's on. 0 if chains may apply: it carries MPTCP,
 * or belongs to a subflow that is known.
 */
static __always_inline struct plait_packet *read_arrival(const struct headers *found, void *end, __u32 bytes,
							 __u8 hook)
{
	const struct plait_settings *asked = plait_settings();
	int is_plain = has_no_other_options(found->tcp, end);
	struct plait_packet *packet;

	if (!asked)
		return NULL;
	if (is_plain && !(asked->needs & PLAIT_NEEDS_FLOW &&
			  may_be_known(bpf_ntohs(found->tcp->source), bpf_ntohs(found->tcp->dest))))
		return NULL;
	packet = plait_packet();
	if (!packet || read_packet(packet, found, end, bytes))
		return NULL;
	if (!(packet->kinds & PLAIT_IS_MPTCP) && !(asked->needs & PLAIT_NEEDS_FLOW))
		return NULL;
	packet->hook = hook;
	packet->own_left = asked->own_selectors[hook & 1];
	read_ends(packet, found);
	return packet;
}

#endif
