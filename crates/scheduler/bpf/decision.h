/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Whether a subflow is to be open: arithmetic alone, without the kernel's structures.
 *
 * `ecf`: the kernel hands a subflow a burst at once, and later data waits at the receiver until it has arrived.
 * So a subflow is open only if, while a burst travels on it, the best of the others neither runs out of data
 * (Lim et al., "ECF: An MPTCP path scheduler to manage heterogeneous paths", CoNEXT 2017) nor out of the
 * receiver's window (Ferlin et al., "BLEST: Blocking estimation-based MPTCP scheduler", Networking 2016).
 */
#ifndef PLAIT_SCHEDULER_DECISION_H
#define PLAIT_SCHEDULER_DECISION_H

#include "intf.h"

#define SECOND 1000000ull /* us */

/* The time from handing a burst to a subflow until its acknowledgment, in us; at most 2^36. */
static inline __u64 burst_time(const struct plait_path *path)
{
	__u64 rate = path->rate ?: 1;

	return PLAIT_BURST * SECOND / rate + path->rtt;
}

/* Bytes that a path carries in this time; saturates where the product would overflow. */
static inline __u64 carried(const struct plait_path *path, __u64 us)
{
	if (path->rate > SECOND)
		return path->rate / 1024 * (us < (1ull << 38) ? us : 1ull << 38) / (SECOND / 1024);
	return path->rate * us / SECOND;
}

static inline int is_open_by_ecf(const struct plait_question *question)
{
	__u64 time = burst_time(&question->mine);
	__u64 limit = question->queued < question->window ? question->queued : question->window;

	/* As good as the best: nothing waits for it for long, and it is ready when there is more data. */
	if (time <= 2 * burst_time(&question->best))
		return 1;
	/* An open subflow stays open for a little longer, so that it is not opened and closed all the time. */
	if (question->is_open)
		limit += limit / 4;
	return carried(&question->best, time) <= limit;
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

/* The subflow whose least round-trip time is the lowest; one that is within an eighth of it stays open. */
static inline int is_open_by_rtt(const struct plait_question *question)
{
	__u64 limit = question->best.rtt_min;

	if (question->is_open)
		limit += limit / 8;
	return question->mine.rtt_min <= limit;
}

static inline int is_to_be_open(const struct plait_question *question)
{
	switch (question->scheduler) {
	case PLAIT_SCHEDULER_ECF:
		return is_open_by_ecf(question);
	case PLAIT_SCHEDULER_LOWEST_RTT:
		return is_open_by_rtt(question);
	}
	return 1;
}

#endif
