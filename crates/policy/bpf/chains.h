/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * From a parsed packet to its verdict: its subflow is looked up, the generated match program of the loaded
 * policies finds the chains that apply, and their actors run.
 *
 * Programs that are replaced at run time are called through functions that consist of a tail call: the called
 * program returns to the caller of that function. Input and results are in struct plait_packet. Included by the
 * programs of each type of hook, which must define CONTEXT, STEPS, PASS_THROUGH, context_of(), verdict_of().
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

/* When chains expire (CLOCK_MONOTONIC) whose controller must renew its lease. */
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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PLAIT_COUNTER_SLOTS);
	__type(key, __u32);
	__type(value, struct plait_counter);
} counters SEC(".maps");

/* Calls a program of STEPS, if it exists. The return value of these functions is undefined. */
__weak int call(CONTEXT *ctx, __u32 step)
{
	bpf_tail_call(ctx, &STEPS, step);
	return 0;
}

/* The same for a constant entry, which takes half the time. */
__weak int match_ingress(CONTEXT *ctx)
{
	bpf_tail_call(ctx, &STEPS, PLAIT_MATCH_INGRESS);
	return 0;
}

__weak int match_egress(CONTEXT *ctx)
{
	bpf_tail_call(ctx, &STEPS, PLAIT_MATCH_EGRESS);
	return 0;
}

#include "actors/verdicts.h"
#include "actors/redirect.h"
#include "actors/rate_limit.h"
#include "actors/pace.h"
#include "actors/join.h"
#include "actors/capable_flag.h"
#include "actors/get.h"
#include "actors/backup.h"
#include "actors/announce.h"
#include "actors/record.h"

#define ACTORS(X)                                                                                            \
	X(DROP, drop)                                                                                        \
	X(MARK, mark)                                                                                        \
	X(REDIRECT, redirect)                                                                                \
	X(RATE_LIMIT, rate_limit)                                                                            \
	X(PACE, pace)                                                                                        \
	X(DENY_JOIN, deny_join)                                                                              \
	X(FALL_BACK, fall_back)                                                                              \
	X(CAPABLE_FLAG, capable_flag)                                                                        \
	X(GET_CONNECTION, get_connection)                                                                    \
	X(GET_SUBFLOW, get_subflow)                                                                          \
	X(SET_BACKUP, set_backup)                                                                            \
	X(CLEAR_BACKUP, clear_backup)                                                                        \
	X(BLOCK_SUBFLOW, block_subflow)                                                                      \
	X(ADD_SUBFLOW, add_subflow)                                                                          \
	X(RECORD, record_flow)

/* Weak: otherwise the compiler drops unused arguments, which the verifier needs. */
#define DEFINE_ACTOR(kind, name)                                                                             \
	__weak int do_##name(CONTEXT *ctx, struct plait_packet *packet, const struct plait_actor *actor,     \
			     struct plait_flow *flow)                                                        \
	{                                                                                                    \
		if (!packet || !actor)                                                                       \
			return PLAIT_ERROR;                                                                  \
		return name(context_of(ctx), packet, actor, flow);                                           \
	}

ACTORS(DEFINE_ACTOR)

/* parameters[0]: n of entry PLAIT_CUSTOM_ACTORS + n. */
static __always_inline int do_custom(CONTEXT *ctx, struct plait_packet *packet,
				     const struct plait_actor *actor)
{
	/* The result if the program does not exist. */
	packet->custom_result = PLAIT_ERROR;
	packet->custom_slot = actor->parameters[0];
	call(ctx, PLAIT_CUSTOM_ACTORS + (__u32)actor->parameters[0]);
	return packet->custom_result;
}

/* Runs an actor. */
static __always_inline int do_actor(CONTEXT *ctx, struct plait_packet *packet,
				    const struct plait_actor *actor, struct plait_flow *flow)
{
#define CASE(kind, name)                                                                                     \
	case PLAIT_ACTOR_##kind:                                                                             \
		return do_##name(ctx, packet, actor, flow);

	switch (actor->kind) {
		ACTORS(CASE)
	case PLAIT_ACTOR_CUSTOM:
		return do_custom(ctx, packet, actor);
	}
	return PLAIT_ERROR;
}

/* When the chain's lease expired; 0: it is valid. */
static __always_inline __u64 expired_at(const struct plait_chain *chain, struct plait_packet *packet)
{
	__u32 lease = chain->lease;
	__u64 *until;

	if (!lease)
		return 0;
	until = bpf_map_lookup_elem(&leases, &lease);
	if (!until)
		return 1;
	return plait_now(packet) >= *until ? *until | 1 : 0;
}

/* Reverts set_backup of an expired chain, whose effect would otherwise remain. */
static __always_inline int revert_backup(CONTEXT *ctx, struct plait_packet *packet, struct plait_flow *flow,
					 const struct plait_chain *chain, __u64 expired)
{
	if (!backup_remains(flow, packet->hook, expired))
		return 0;
	for (__u32 n = 0; n < PLAIT_MAX_ACTORS; n++)
		if (n < chain->actor_count && chain->actors[n].kind == PLAIT_ACTOR_SET_BACKUP)
			do_clear_backup(ctx, packet, &chain->actors[n], flow);
	return 0;
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

/* The start time, if timing is enabled; otherwise 0. */
static __always_inline __u64 start_time(const struct plait_settings *asked)
{
	return asked->timing ? bpf_ktime_get_ns() : 0;
}

static __always_inline void count_end(struct plait_counter *counter, __u64 start, int hits, int errors)
{
	if (!counter)
		return;
	counter->hits += hits;
	counter->errors += errors;
	if (start)
		counter->nanoseconds += bpf_ktime_get_ns() - start;
}

/* Runs and counts an actor; returns enum plait_outcome. */
static __always_inline int act(CONTEXT *ctx, struct plait_packet *packet, struct plait_flow *flow,
			       const struct plait_actor *actor, const struct plait_settings *asked)
{
	struct plait_counter *counter = count_packet(actor->counter, packet);
	__u64 start = start_time(asked);
	int outcome = do_actor(ctx, packet, actor, flow);

	count_end(counter, start, outcome == PLAIT_HIT, outcome == PLAIT_ERROR);
	return outcome;
}

/*
 * Runs the actors of the chain at index `place` of those that matched, until one gives a verdict. A separate
 * function, so that the verifier checks it once and not for every chain.
 */
__weak int do_chain(CONTEXT *ctx, struct plait_packet *packet, struct plait_flow *flow,
		    const struct plait_settings *asked, __u32 place)
{
	struct plait_counter *counter;
	struct plait_chain *chain;
	int hits = 0, errors = 0;
	__u64 start, expired;
	__u32 slot;

	if (!packet || !asked || place >= PLAIT_MAX_CHAINS)
		return 0;
	slot = packet->chains[place];
	chain = bpf_map_lookup_elem(&chains, &slot);
	if (!chain)
		return 0;
	expired = expired_at(chain, packet);
	if (expired)
		return revert_backup(ctx, packet, flow, chain, expired);
	counter = count_packet(chain->counter, packet);
	start = start_time(asked);
	for (__u32 n = 0; n < PLAIT_MAX_ACTORS; n++) {
		int outcome;

		if (n >= chain->actor_count || packet->verdict != PLAIT_PASS)
			break;
		outcome = act(ctx, packet, flow, &chain->actors[n], asked);
		if (outcome == PLAIT_HIT)
			hits = 1;
		else if (outcome == PLAIT_ERROR)
			errors = 1;
	}
	count_end(counter, start, hits, errors);
	if (hits)
		packet->chains_hit |= 1ull << place;
	return 0;
}

/* Runs the custom selectors that chains of this hook use. */
__weak int run_custom_selectors(CONTEXT *ctx, struct plait_packet *packet, const struct plait_settings *asked)
{
	if (!packet || !asked)
		return 0;
	for (__u32 n = 0; n < PLAIT_MAX_CUSTOM; n++) {
		/* Volatile: otherwise the verifier would explore every possible value. */
		if (!(*(const volatile __u32 *)&asked->custom_selectors[packet->hook & 1] >> n & 1))
			continue;
		packet->custom_result = 0;
		packet->custom_slot = n;
		call(ctx, PLAIT_CUSTOM_SELECTORS + n);
		if (packet->custom_result)
			packet->custom_matched |= 1ull << n;
	}
	return 0;
}

static __always_inline void report_packet(struct plait_packet *packet)
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
	plait_submit_event(event);
}

/* Reading all of a packet to determine the state of its checksum would be too expensive: that of the SYN is
 * assumed for the later packets of the direction. */
__weak int remember_checksum(CONTEXT *ctx, struct plait_packet *packet, struct plait_flow *flow)
{
	if (packet && flow && plait_checksum(context_of(ctx), packet) == PLAIT_CHECKSUM_PARTIAL)
		flow->flags |= plait_partial_flag(packet->hook);
	return 0;
}

/* Decides on a parsed packet. `flow` is its subflow, or NULL. */
static __always_inline int decide(CONTEXT *ctx, struct plait_packet *packet, struct plait_flow *flow,
				  const struct plait_settings *asked)
{
	if (!(packet->kinds & PLAIT_IS_MPTCP) && !flow)
		return PASS_THROUGH;
	if (flow && packet->kinds & PLAIT_IS_SYN)
		remember_checksum(ctx, packet, flow);
	if (asked->custom_selectors[packet->hook & 1])
		run_custom_selectors(ctx, packet, asked);
	if (packet->hook == PLAIT_INGRESS)
		match_ingress(ctx);
	else
		match_egress(ctx);
	if (!packet->chain_count)
		return PASS_THROUGH;
	for (__u32 place = 0; place < PLAIT_MAX_CHAINS; place++) {
		if (place >= packet->chain_count || packet->verdict != PLAIT_PASS)
			break;
		do_chain(ctx, packet, flow, asked, place);
	}
	if (asked->tracing)
		report_packet(packet);
	return verdict_of(ctx, packet);
}

/*
 * Parses a packet whose headers were found, of `bytes` bytes from IP on, and looks up its subflow if a chain needs it.
 * NULL if no chain can apply: if it has no MPTCP option and cannot belong to a tracked subflow.
 */
static __always_inline struct plait_packet *read_arrival(const struct headers *found, __u32 bytes, __u8 hook,
							 const struct plait_settings *asked,
							 struct plait_flow **flow)
{
	struct plait_packet *packet;

	if (has_no_other_options(found) &&
	    !(asked->needs & PLAIT_NEEDS_FLOW &&
	      may_be_known(bpf_ntohs(found->tcp->source), bpf_ntohs(found->tcp->dest))))
		return NULL;
	packet = plait_packet();
	if (!packet)
		return NULL;
	packet->hook = hook;
	read_ends(packet, found);
	if (asked->needs & PLAIT_NEEDS_FLOW)
		*flow = fetch_subflow(packet);
	if (read_packet(packet, found, bytes))
		return NULL;
	if (!(packet->kinds & PLAIT_IS_MPTCP) && !(asked->needs & PLAIT_NEEDS_FLOW))
		return NULL;
	return packet;
}

#endif
