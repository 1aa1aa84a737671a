/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Limits how fast the receiver of these packets may send, by the window that they offer: up to the
 * acknowledgment plus the window it may send (RFC 9293 section 3.8.6). At egress that slows down what the
 * peer sends, at ingress what this host does.
 *
 * A window alone is a rate only where the round-trip time is known to a hair. So a rate is held by time: with
 * every acknowledgment, the end of what may be sent moves on by what the rate gives for the time since the
 * one before. The round-trip time, that of the handshake at least, only says how far it may be ahead after a
 * pause, by twice what the rate gives for a round trip.
 *
 * There is a floor, as who has nothing on its way gets no acknowledgment that could let it go on: of every
 * round trip, two of the largest segments may be sent. Less than that per round trip cannot be held by
 * windows; the sender's host can, by the actor `pace`.
 */
#ifndef PLAIT_ACTORS_RATE_LIMIT_H
#define PLAIT_ACTORS_RATE_LIMIT_H

#include "../flows.h"

/* RFC 9293 section 3.7.1. */
#define DEFAULT_SEGMENT 536
#define MAX_PAUSE 1000000000ull
/* Bytes per second: beyond, no window is less than what a rate allows, nor is there room for what it gives in
 * MAX_PAUSE. */
#define MAX_RATE (1ull << 34)
/* Beyond two round trips, for acknowledgments that come late and for many at a time. */
#define SLACK_MICROSECONDS 10000

/* A stricter limit of the same policies holds for this direction. */
static __always_inline int is_superseded(const struct plait_allowance *allowance, __u64 rate, __u64 now,
					 __u32 generation)
{
	return allowance->nanoseconds && allowance->generation == generation && allowance->rate < rate &&
	       now - allowance->nanoseconds < MAX_PAUSE;
}

/* Moves the end of what may be sent on by the time that has passed. */
static __always_inline void extend(struct plait_allowance *allowance, __u32 acknowledgment, __u32 most,
				   __u64 now)
{
	__u64 passed = now - allowance->nanoseconds, earned;
	__s32 ahead;

	if (passed > MAX_PAUSE) {
		passed = MAX_PAUSE;
		allowance->nanoseconds = now - MAX_PAUSE;
	}
	earned = passed * allowance->rate / 1000000000;
	/* What is less than a byte is earned next time. */
	allowance->nanoseconds += earned * 1000000000 / allowance->rate;
	ahead = allowance->edge - acknowledgment;
	/* Earlier windows have let it go further: up to a round trip's worth of that is made up for. */
	if (ahead < -(__s32)most)
		ahead = -(__s32)most;
	if (ahead + (__s64)earned > most)
		ahead = most;
	else
		ahead += earned;
	allowance->edge = acknowledgment + ahead;
	allowance->acknowledgment = acknowledgment;
}

/* How many bytes from the acknowledgment on this rate allows. */
static __always_inline __u64 allowed_by(struct plait_flow *flow, struct plait_packet *packet, __u64 rate,
					__u32 generation)
{
	struct plait_allowance *allowance = &flow->allowance[packet->hook & 1];
	__u32 segment = flow->mss[packet->hook & 1];
	__u64 now = plait_now(packet), most, least;
	__s32 ahead;

	if (is_superseded(allowance, rate, now, generation) || rate > MAX_RATE)
		return ~0ull;
	least = 2 * (segment ? segment : DEFAULT_SEGMENT);
	most = rate * (2ull * flow->rtt + SLACK_MICROSECONDS) / 1000000;
	if (most < least)
		most = least;
	/* No window says more (RFC 7323 section 2.3). */
	if (most > 1 << 30)
		most = 1 << 30;
	if (!allowance->nanoseconds || now - allowance->nanoseconds > 60 * MAX_PAUSE) {
		allowance->edge = packet->acknowledgment + most / 2;
		allowance->acknowledgment = packet->acknowledgment;
		allowance->nanoseconds = now;
	}
	allowance->rate = rate;
	allowance->generation = generation;
	/* An acknowledgment that comes again must offer the same, or it would not count as a duplicate (RFC
	 * 5681 section 2). */
	if (is_later(packet->acknowledgment, allowance->acknowledgment))
		extend(allowance, packet->acknowledgment, most, now);
	ahead = allowance->edge - packet->acknowledgment;
	return ahead < (__s64)least ? least : ahead;
}

/* parameters[0]: the most bytes offered, or 0; parameters[1]: bytes per second, else. */
static __always_inline int rate_limit(struct plait_context context, struct plait_packet *packet,
				      const struct plait_actor *actor, struct plait_flow *flow)
{
	const struct plait_settings *asked = plait_settings();
	__u64 most = actor->parameters[0], rate = actor->parameters[1];
	int scale;

	/* The window of a SYN is not scaled, and who has it may not send yet. */
	if (packet->kinds & (PLAIT_IS_SYN | PLAIT_IS_RST) || !(packet->kinds & PLAIT_IS_ACK))
		return PLAIT_MISS;
	if (!flow || !asked)
		return PLAIT_MISS;
	scale = scale_of(flow, packet->hook);
	if (scale < 0)
		return PLAIT_MISS;
	if (!most)
		most = rate ? allowed_by(flow, packet, rate, asked->generation) : 0;
	most >>= scale & 15;
	if (!most)
		most = 1;
	if (most >= packet->window)
		return PLAIT_MISS;
	if (plait_set_window(context, packet, most))
		return PLAIT_ERROR;
	/* Acknowledgments that are made up here repeat it (inject.rs, announce.h). */
	flow->dir[packet->hook & 1].offered_window = most;
	return PLAIT_HIT;
}

#endif
