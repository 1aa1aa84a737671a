/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * How much a subflow may carry: arithmetic alone, without the kernel's structures.
 *
 * `ecf`: the kernel hands a subflow a burst at once, and later data waits at the receiver until it has arrived.
 * So a subflow is open only if, while a burst travels on it, the best of the others neither runs out of data
 * (Lim et al., "ECF: An MPTCP path scheduler to manage heterogeneous paths", CoNEXT 2017) nor out of the
 * receiver's window or the send buffer (Ferlin et al., "BLEST: Blocking estimation-based MPTCP scheduler", Networking 2016).
 */
#ifndef PLAIT_SCHEDULER_DECISION_H
#define PLAIT_SCHEDULER_DECISION_H

#include "intf.h"

#define SECOND 1000000ull /* us */

/*
 * Those that are to be preferred have more to send than they can if it takes them this long, us: longer than the
 * queues of most links.
 */
#define FULL_TIME 100000ull
/*
 * Within this round-trip time, us, a path crosses no slow link as a rule. Nor is its rate measured by packets without data: their answers
 * come while the peer still opens the subflow, which merges them.
 */
#define NEAR 1000u
/* A burst that takes no longer than this on a near path, us, delays nothing for long. */
#define NEAR_BURST_TIME 200000u
/* A closed path on which a burst takes longer than this, us, is opened only for two of them: the second may be late by as much. */
#define SLOW_BURST_TIME 300000u
/*
 * Not used beside another path whose round trip is shorter by more than this, us, however much there is to send: what the program reads
 * next would wait for most of this time.
 */
#define MAX_EXTRA_ROUND_TRIP SECOND
/* Within this time a subflow that is ahead of its share loses its lead, us. */
#define SHARE_TIME SECOND

static inline __u32 decision(struct plait_question *question, __u32 rate, __u32 reason)
{
	question->reason = reason;
	return question->rate = rate;
}

static inline __u32 open_by(struct plait_question *question, __u32 reason)
{
	return decision(question, PLAIT_UNLIMITED, reason);
}

static inline __u32 close_by(struct plait_question *question, __u32 reason)
{
	return decision(question, 0, reason);
}

/* A rate as a limit. */
static inline __u32 limit_of(__u64 rate)
{
	if (rate < PLAIT_MIN_RATE)
		return PLAIT_MIN_RATE;
	return rate < PLAIT_UNLIMITED ? rate : PLAIT_UNLIMITED;
}

static inline __u32 limit_by(struct plait_question *question, __u64 rate, __u32 reason)
{
	return decision(question, limit_of(rate), reason);
}

static inline int is_near(const struct plait_path *path)
{
	return path->rtt_min <= NEAR;
}

/* The time that a burst takes at a rate, in us; at most 2^36. */
static inline __u64 sending_time(__u64 rate)
{
	return PLAIT_BURST * SECOND / (rate ?: 1);
}

/* The time from handing a burst to a subflow until its acknowledgment, in us. */
static inline __u64 burst_time(const struct plait_path *path)
{
	return sending_time(path->rate) + path->rtt;
}

/* Bytes that are carried at a rate in this time; saturates where the product would overflow. */
static inline __u64 carried(__u64 rate, __u64 us)
{
	if (rate > SECOND)
		return rate / 1024 * (us < (1ull << 38) ? us : 1ull << 38) / (SECOND / 1024);
	return rate * us / SECOND;
}

/*
 * Bytes that the connection is expected to send: nobody knows how much a program has that has more, but one that has
 * sent for long mostly goes on for long. If it does not, the last burst is late: by no more than a twentieth of that time, or a quarter of what the
 * subflow saves if the program sends as much again, which is an eighth of that time for two subflows of the same rate.
 */
static inline __u64 expected_bytes(const struct plait_question *question)
{
	__u64 share = 1024 * question->mine.rate / ((question->mine.rate + question->best.rate) ?: 1);
	__u64 by_gain = question->busy_bytes / 1024 * share / 4, least = question->busy_bytes / 20;

	return question->queued + (by_gain > least ? by_gain : least);
}

/* To what one is limited whose data arrives in time: more than its rate, so that a higher one shows. */
static inline __u64 in_time_rate(const struct plait_path *path)
{
	return path->rate + path->rate / 4;
}

/* Without what waits in a queue. */
static inline __u32 least_rtt(const struct plait_path *path)
{
	return path->rtt < path->rtt_min ? path->rtt : path->rtt_min;
}

/*
 * Whether a closed subflow is to send a burst so that the peer enlarges its window: the peer sizes it by the subflows in use, and one for a near
 * path alone may be too small for a distant one for good. What the others cannot send meanwhile is to be less than a thirty-second of what they
 * have sent; half of that with each further trial, as the window may be fixed.
 */
static inline int is_window_trial_due(const struct plait_question *question, __u64 missing)
{
	return !question->is_open && question->window_trials < PLAIT_MAX_WINDOW_TRIALS &&
	       missing <= question->busy_bytes / 32 >> question->window_trials;
}

static inline int is_round_trip_too_long(const struct plait_question *question)
{
	return least_rtt(&question->mine) > question->best.rtt + MAX_EXTRA_ROUND_TRIP;
}

static inline __u32 decide_by_ecf(struct plait_question *question)
{
	__u64 time = burst_time(&question->mine), others;
	/* The receiver's buffer grows with the time that the slowest subflow takes, once that is used. */
	__u64 queued = expected_bytes(question), window = question->window + question->window / 4;
	__u64 send_buffer = question->send_buffer;

	/* As good as the best: nothing waits for it for long, and it is ready when there is more data. */
	if (time <= 2 * burst_time(&question->best))
		return open_by(question, PLAIT_REASON_FAST);
	if (!question->mine.rate) {
		return is_near(&question->mine) ? open_by(question, PLAIT_REASON_UNKNOWN)
						: close_by(question, PLAIT_REASON_UNKNOWN);
	}
	/* Its requests for acknowledgments would be used up within milliseconds, and nothing would open it for a second. */
	if (is_near(&question->mine) && sending_time(question->mine.rate) <= NEAR_BURST_TIME)
		return open_by(question, PLAIT_REASON_FAST);
	if (is_round_trip_too_long(question))
		return close_by(question, PLAIT_REASON_LATE);
	/* A window that grows while the burst is sent may delay it more than the link does. */
	if (question->start > sending_time(question->mine.rate))
		time = (__u64)question->start + question->mine.rtt;
	others = carried(question->best.rate, time);
	/* An open subflow stays open for a little longer, so that it is not opened and closed all the time. */
	if (question->is_open) {
		queued += queued / 4;
		window += window / 4;
	} else if (sending_time(question->mine.rate) > SLOW_BURST_TIME) {
		/* The kernel may hand it another burst after it was closed again. */
		time += sending_time(question->mine.rate);
	}
	if (carried(question->best.rate, time) > queued)
		return close_by(question, PLAIT_REASON_LATE);
	/* While a buffer is full, the others lose time; but the burst itself is not theirs to send. */
	if (others > send_buffer + PLAIT_BURST)
		return close_by(question, PLAIT_REASON_WINDOW);
	/* With a limit, the kernel's scheduler knows its rate, and packets do not wait for each other. */
	if (others <= window + PLAIT_BURST)
		return limit_by(question, in_time_rate(&question->mine), PLAIT_REASON_IN_TIME);
	if (is_window_trial_due(question, others - window - PLAIT_BURST))
		return limit_by(question, in_time_rate(&question->mine), PLAIT_REASON_WINDOW);
	return close_by(question, PLAIT_REASON_WINDOW);
}

/* Whether a connection has more to send than takes a moment. */
static inline int is_busy(const struct plait_question *question)
{
	return question->queued >= 2 * PLAIT_BURST;
}

/*
 * Seconds after which a closed subflow's rate is measured again. Others may wait for the burst of that, and for one
 * more that the kernel hands out before it notices: for at most a thirty-second of the time.
 */
static inline __u64 trial_interval(const struct plait_path *path)
{
	__u64 interval = 64 * burst_time(path) / SECOND;

	return interval > PLAIT_NEXT_TRIAL ? interval : PLAIT_NEXT_TRIAL;
}

static inline __u32 decide_by_extra_round_trip(struct plait_question *question)
{
	return is_round_trip_too_long(question) ? close_by(question, PLAIT_REASON_LATE)
						: open_by(question, PLAIT_REASON_ALL);
}

/* The subflow whose least round-trip time is the lowest; one that is within an eighth of it stays open. */
static inline __u32 decide_by_rtt(struct plait_question *question)
{
	__u32 limit = question->best.rtt_min;

	if (question->is_open)
		limit += limit / 8;
	if (question->mine.rtt_min <= limit)
		return open_by(question, PLAIT_REASON_FAST);
	return close_by(question, PLAIT_REASON_RTT);
}

/* One that is ahead of its share is limited to less than its share of the rate, until the others have caught up. */
static inline __u32 decide_by_weight(struct plait_question *question)
{
	__u64 rate = question->share_rate, lead = question->ahead;

	if (question->ahead <= 0)
		return open_by(question, PLAIT_REASON_BEHIND);
	lead = lead < ~0ull / SECOND ? lead * SECOND / SHARE_TIME : ~0ull;
	/* Not less than an eighth, so that it still measures its path. */
	return limit_by(question, lead < rate - rate / 8 ? rate - lead : rate / 8, PLAIT_REASON_SHARE);
}

static inline int has_preferred(const struct plait_question *question)
{
	return question->preferred_rtt != ~0u;
}

/* Whether those that are to be preferred have more to send than they can. */
static inline int are_preferred_full(const struct plait_question *question)
{
	__u64 limit = carried(question->preferred_rate, FULL_TIME);

	if (limit < 2 * PLAIT_BURST)
		limit = 2 * PLAIT_BURST;
	return question->queued >= (question->is_open ? limit / 4 : limit);
}

static inline __u32 decide_by_tier(struct plait_question *question)
{
	if (!has_preferred(question))
		return open_by(question, PLAIT_REASON_FIRST);
	if (are_preferred_full(question))
		return open_by(question, PLAIT_REASON_FULL);
	return close_by(question, PLAIT_REASON_SPARE);
}

/* More expensive subflows carry no more than the cheaper ones lack. */
static inline __u32 decide_by_cost(struct plait_question *question)
{
	if (!has_preferred(question))
		return open_by(question, PLAIT_REASON_FIRST);
	if (question->target_rtt && question->preferred_rtt > question->target_rtt)
		return open_by(question, PLAIT_REASON_TARGET);
	if (question->preferred_rate < question->target_rate && are_preferred_full(question))
		return limit_by(question, question->target_rate - question->preferred_rate,
				PLAIT_REASON_TARGET);
	return close_by(question, PLAIT_REASON_SPARE);
}

#ifdef PLAIT_HAS_CUSTOM_DECISION
static inline __u32 decide_by_file(const struct plait_question *question);
#endif

/* Sets the decision, and returns its rate. */
static inline __u32 decide_for(struct plait_question *question, __u32 scheduler)
{
	switch (scheduler) {
	case PLAIT_SCHEDULER_ECF:
		return decide_by_ecf(question);
	case PLAIT_SCHEDULER_ALL:
		return decide_by_extra_round_trip(question);
	case PLAIT_SCHEDULER_LOWEST_RTT:
		return decide_by_rtt(question);
	case PLAIT_SCHEDULER_WEIGHTED:
		return decide_by_weight(question);
	case PLAIT_SCHEDULER_TIERS:
		return decide_by_tier(question);
	case PLAIT_SCHEDULER_CHEAPEST:
		return decide_by_cost(question);
#ifdef PLAIT_HAS_CUSTOM_DECISION
	case PLAIT_SCHEDULER_FILE:
		return decision(question, decide_by_file(question), PLAIT_REASON_FILE);
#endif
	}
	return open_by(question, PLAIT_REASON_ALL);
}

#endif
