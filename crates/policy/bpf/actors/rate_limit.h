/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Limits the rate at which the receiver of these packets sends, by the window that they offer: it may send up to
 * the acknowledgment plus the window (RFC 9293 section 3.8.6). At egress this limits the peer, at ingress this
 * host.
 *
 * A window determines a rate only if the round-trip time is known exactly. So the rate is enforced over time: each
 * acknowledgment moves the right edge of the window by the rate times the time since the previous one. The
 * round-trip time, at least that of the handshake, only bounds how far the edge may be ahead after a pause: by
 * the rate times two round trips.
 *
 * There is a lower bound, as a sender with nothing in flight gets no acknowledgment that would let it continue: two
 * maximum-size segments per round trip. Lower rates cannot be enforced by windows, but by the actor `pace` on the
 * sending host.
 */
#ifndef PLAIT_ACTORS_RATE_LIMIT_H
#define PLAIT_ACTORS_RATE_LIMIT_H

#include "../flows.h"

/* RFC 9293 section 3.7.1. */
#define DEFAULT_SEGMENT 536
#define MAX_PAUSE 1000000000ull
/* Bytes per second: above, a rate allows more than any window, and overflows within MAX_PAUSE. */
#define MAX_RATE (1ull << 34)
/* In addition to two round trips, for delayed and stretched acknowledgments. */
#define SLACK_MICROSECONDS 10000

/* Whether a stricter limit of the same policies applies to this direction. */
static __always_inline int is_superseded(const struct plait_allowance *allowance, __u64 rate, __u64 now,
					 __u32 generation)
{
	return allowance->nanoseconds && allowance->generation == generation && allowance->rate < rate &&
	       now - allowance->nanoseconds < MAX_PAUSE;
}

/* Moves the right edge of the window by the rate times the elapsed time. */
static __always_inline void extend(struct plait_allowance *allowance, __u32 acknowledgment, __u32 max,
				   __u64 now)
{
	__u64 elapsed = now - allowance->nanoseconds, earned;
	__s32 ahead;

	if (elapsed > MAX_PAUSE) {
		elapsed = MAX_PAUSE;
		allowance->nanoseconds = now - MAX_PAUSE;
	}
	earned = elapsed * allowance->rate / 1000000000;
	/* Fractions of a byte are carried over. */
	allowance->nanoseconds += earned * 1000000000 / allowance->rate;
	ahead = allowance->edge - acknowledgment;
	/* Earlier windows allowed more: compensate for at most one maximum window. */
	if (ahead < -(__s32)max)
		ahead = -(__s32)max;
	if (ahead + (__s64)earned > max)
		ahead = max;
	else
		ahead += earned;
	allowance->edge = acknowledgment + ahead;
	allowance->acknowledgment = acknowledgment;
}

/* The window that this rate allows, in bytes. */
static __always_inline __u64 window_for_rate(struct plait_flow *flow, struct plait_packet *packet, __u64 rate,
					     __u32 generation)
{
	struct plait_allowance *allowance = &flow->dir[packet->hook & 1].allowance;
	__u32 segment = flow->mss[packet->hook & 1];
	__u64 now = plait_now(packet), max, min;
	__s32 ahead;

	if (is_superseded(allowance, rate, now, generation) || rate > MAX_RATE)
		return ~0ull;
	min = 2 * (segment ? segment : DEFAULT_SEGMENT);
	max = rate * (2ull * flow->rtt + SLACK_MICROSECONDS) / 1000000;
	if (max < min)
		max = min;
	/* The maximum window (RFC 7323 section 2.3). */
	if (max > 1 << 30)
		max = 1 << 30;
	if (!allowance->nanoseconds || now - allowance->nanoseconds > 60 * MAX_PAUSE) {
		allowance->edge = packet->acknowledgment + max / 2;
		allowance->acknowledgment = packet->acknowledgment;
		allowance->nanoseconds = now;
	}
	allowance->rate = rate;
	allowance->generation = generation;
	/* A repeated acknowledgment must offer the same window, or it would not count as a duplicate (RFC 5681
	 * section 2). */
	if (is_later(packet->acknowledgment, allowance->acknowledgment))
		extend(allowance, packet->acknowledgment, max, now);
	ahead = allowance->edge - packet->acknowledgment;
	return ahead < (__s64)min ? min : ahead;
}

/* parameters[0]: the maximum window in bytes, or 0; parameters[1]: otherwise the rate in bytes per second. */
static __always_inline int rate_limit(struct plait_context context, struct plait_packet *packet,
				      const struct plait_actor *actor, struct plait_flow *flow)
{
	const struct plait_settings *asked = plait_settings();
	__u64 max = actor->parameters[0], rate = actor->parameters[1];
	int scale;

	/* The window of a SYN is not scaled, and its receiver may not send yet. */
	if (packet->kinds & (PLAIT_IS_SYN | PLAIT_IS_RST) || !(packet->kinds & PLAIT_IS_ACK))
		return PLAIT_MISS;
	if (!flow || !asked)
		return PLAIT_MISS;
	scale = scale_of(flow, packet->hook);
	if (scale < 0)
		return PLAIT_MISS;
	if (!max)
		max = rate ? window_for_rate(flow, packet, rate, asked->generation) : 0;
	max >>= scale & 15;
	if (!max)
		max = 1;
	if (max >= packet->window)
		return PLAIT_MISS;
	if (plait_set_window(context, packet, max))
		return PLAIT_ERROR;
	/* Injected acknowledgments repeat it (inject.rs, announce.h). */
	flow->dir[packet->hook & 1].offered_window = max;
	return PLAIT_HIT;
}

#endif
