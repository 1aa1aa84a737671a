/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The rates of subflows.
 *
 * A subflow that carries data all the time has the kernel's delivery rate. Of one that carried a few packets, that
 * rate says little, as a round trip without data is in it; so a train of packets that starts on an idle subflow is
 * measured by the time it took beyond the least round trip: that of its packets on the slowest link.
 */
#ifndef PLAIT_SCHEDULER_RATE_H
#define PLAIT_SCHEDULER_RATE_H

#include <bpf/bpf_core_read.h>
#include "decision.h"
#include "subflow_state.h"

/* The least number of segments in a train from which a rate is computed. */
#define MIN_TRAIN 2

/* As is_near(). */
static __always_inline int has_near_path(struct tcp_sock *tcp)
{
	return tcp->rtt_min.s[0].v <= NEAR;
}

/* The time, in units of 2^20 us. */
static __always_inline __u32 seconds(struct tcp_sock *tcp)
{
	return tcp->tcp_mstamp >> 20;
}

/* As a subflow's state has it; not 0. */
static __always_inline __u16 mark(struct tcp_sock *tcp)
{
	__u16 time = seconds(tcp);

	return time ?: 1;
}

static __always_inline __u64 delivery_rate(struct tcp_sock *tcp)
{
	__u32 interval = tcp->rate_interval_us;

	return interval ? (__u64)tcp->rate_delivered * tcp->mss_cache * SECOND / interval : 0;
}

static __always_inline __u64 window_rate(struct tcp_sock *tcp)
{
	__u32 srtt = tcp->srtt_us;

	return srtt ? (__u64)tcp->snd_cwnd * tcp->mss_cache * 8 * SECOND / srtt : 0;
}

/*
 * The window with which a subflow begins to send at a rate that was measured, in segments: half of what its path holds at that rate (Kuhn
 * et al., "Convergence of Congestion Control from Retained State", draft-ietf-tsvwg-careful-resume), at most a burst.
 */
static __always_inline __u32 first_window(struct tcp_sock *tcp, __u64 rate)
{
	__u64 bytes = rate * tcp->rtt_min.s[0].v / (2 * SECOND);
	__u32 segments = (bytes < PLAIT_BURST ? bytes : PLAIT_BURST) / (tcp->mss_cache ?: 1) + 1;

	if (segments > tcp->snd_ssthresh)
		segments = tcp->snd_ssthresh;
	if (has_near_path(tcp))
		return tcp->snd_cwnd;
	return segments > tcp->snd_cwnd ? segments : tcp->snd_cwnd;
}

/* Round trips until a burst was sent, but for the first, in us. */
static __always_inline __u32 start_time(struct tcp_sock *tcp, const struct plait_path *path)
{
	__u32 segments = first_window(tcp, path->rate), rtt = path->rtt;
	__u64 window = (__u64)segments * tcp->mss_cache;

	if (window >= PLAIT_BURST)
		return 0;
	if (segments >= tcp->snd_ssthresh)
		return PLAIT_BURST / (window ?: 1) * rtt;
	/* The window doubles with each. */
	if (3 * window >= PLAIT_BURST)
		return rtt;
	return 7 * window >= PLAIT_BURST ? 2 * rtt : 3 * rtt;
}

/* A round trip without data is in the time of a train that began on an idle subflow. */
static __always_inline __u32 train_time(struct tcp_sock *tcp, const struct subflow_state *state, __u32 now)
{
	__u32 elapsed = now - state->train_start, idle = tcp->rtt_min.s[0].v;

	if (state->is_continuous)
		return elapsed ?: 1;
	/* Acknowledgments may be late by less than usual. */
	return elapsed > idle + elapsed / 16 ? elapsed - idle : elapsed / 16 + 1;
}

static __always_inline void start_train(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);

	state->train_start = tcp->tcp_mstamp;
	state->train_acked = tcp->bytes_acked;
	state->is_continuous = 0;
	state->is_remembered = 0;
}

/*
 * Whether the path is what limits the rate: not how much the kernel's scheduler hands to the subflow, nor a window that
 * still grows without a queue.
 */
static __always_inline int is_path_limited(struct tcp_sock *tcp, const struct subflow_state *state)
{
	__u32 least = tcp->rtt_min.s[0].v;

	if (state->gate > GATE_CLOSED)
		return 1;
	if (state->gate == GATE_CLOSED ||
	    (tcp->write_seq == tcp->snd_nxt && !BPF_CORE_READ_BITFIELD(tcp, is_cwnd_limited)))
		return 0;
	if (tcp->srtt_us >> 3 > least + least / 4)
		return 1;
	return state->window_at_loss && BPF_CORE_READ_BITFIELD(tcp, is_cwnd_limited);
}

/* At each acknowledgment of data. Returns the bytes that were acknowledged since the train began. */
static __always_inline __u32 measure_train(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u32 now = tcp->tcp_mstamp, acked = (__u32)tcp->bytes_acked - state->train_acked;
	__u64 rate;

	if (!state->train_start || acked < MIN_TRAIN * tcp->mss_cache)
		return 0;
	rate = acked * SECOND / train_time(tcp, state, now);
	rate = rate < ~0u ? rate : ~0u;
	if (rate > state->rate || is_path_limited(tcp, state)) {
		state->rate = rate;
		state->measured = mark(tcp);
	}
	if (acked < 4 * PLAIT_BURST)
		return acked;
	state->train_start = now;
	state->train_acked = tcp->bytes_acked;
	state->is_continuous = 1;
	state->is_remembered = 0;
	return acked;
}

static __always_inline __u64 rate_of_self(struct tcp_sock *tcp, const struct subflow_state *state)
{
	/* That of a subflow which was closed for a while is of earlier. */
	__u64 rate = state->gate <= GATE_LIMITED ? delivery_rate(tcp) : 0;

	return rate > state->rate ? rate : state->rate;
}

/* Of another subflow that is open, and so carries data all the time or may start to. */
static __always_inline __u64 rate_of_sibling(struct tcp_sock *tcp)
{
	__u64 delivered = delivery_rate(tcp), possible = window_rate(tcp);

	/* A round trip so short does not limit what a window carries. */
	return delivered > possible || tcp->srtt_us <= 8 * NEAR ? delivered : possible;
}

#endif
