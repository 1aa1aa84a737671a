/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel's reno with two steps replaced by an algorithm's: the increase of the window in congestion
 * avoidance, and the window after a loss. Everything else (slow start, recovery, ECN, pacing, undo, restart
 * after idle) is the kernel's own; and so are these two for a connection with a single path.
 */
#ifndef PLAIT_CONGESTION_RENO_H
#define PLAIT_CONGESTION_RENO_H

#include "connection.h"
#include "fixed.h"
#include "repair.h"
#include "step.h"
#include <bpf/bpf_tracing.h>

/* Every network namespace may select it, without privileges. */
#define TCP_CONG_NON_RESTRICTED 1

extern __u32 tcp_slow_start(struct tcp_sock *tp, __u32 acked) __ksym;
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, __u32 w, __u32 acked) __ksym;
extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/* How much the window of the first path grows for each segment acknowledged on it, in 2^-32 segments. */
__s64 window_increase(const struct connection *connection);

/* The window of the first path after a loss, in segments. */
__u32 window_after_loss(const struct connection *connection);

/* What tcp_reno_ssthresh() returns for this window. */
static __always_inline __u32 reno_ssthresh(__u32 window)
{
	return window >= 4 ? window / 2 : 2;
}

/* The kernel's tcp_is_cwnd_limited(), which programs cannot call. */
static __always_inline int is_window_limited(struct tcp_sock *tcp)
{
	if (BPF_CORE_READ_BITFIELD(tcp, is_cwnd_limited))
		return 1;
	return tcp->snd_cwnd < tcp->snd_ssthresh && tcp->snd_cwnd < 2 * tcp->max_packets_out;
}

static __always_inline void apply_increase(struct sock *sk, const struct connection *connection, __u32 acked)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u32 segments = acked < MAX_WINDOW ? acked : MAX_WINDOW;
	__s64 fraction = (__s64)state->fraction + window_increase(connection) * segments;
	__s64 window = (__s64)tcp->snd_cwnd + (fraction >> PLAIT_FRACTION_BITS);

	state->fraction = fraction & (ONE - 1);
	if (window < 1)
		window = 1;
	tcp->snd_cwnd = window < tcp->snd_cwnd_clamp ? window : tcp->snd_cwnd_clamp;
}

/* The largest plausible window: only these programs increase it, and undoing a loss restores an earlier one.
 */
static __always_inline __u32 max_plausible_window(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	return state->window > state->window_at_loss ? state->window : state->window_at_loss;
}

static __always_inline void repair_threshold(struct sock *sk, __u8 state)
{
	__u32 before = window_to_repair(sk, state, max_plausible_window(sk));

	if (before)
		((struct tcp_sock *)sk)->snd_ssthresh = reno_ssthresh(before);
}

static __always_inline void grow_window(struct sock *sk, __u32 acked)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct connection connection;

	if (!is_window_limited(tcp))
		return;
	if (tcp->snd_cwnd < tcp->snd_ssthresh) {
		acked = tcp_slow_start(tcp, acked);
		if (!acked)
			return;
	}
	collect_paths(sk, &connection);
	if (connection.path_count < 2) {
		tcp_cong_avoid_ai(tcp, tcp->snd_cwnd, acked);
		return;
	}
	apply_increase(sk, &connection, acked);
	trace_step(PLAIT_STEP_INCREASE, sk, &connection, acked, tcp->snd_cwnd);
}

static __always_inline void on_acknowledgment(struct sock *sk, __u32 acked)
{
	repair_window(sk, max_plausible_window(sk));
	grow_window(sk, acked);
	state_of(sk)->window = ((struct tcp_sock *)sk)->snd_cwnd;
}

static __always_inline __u32 on_loss(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	struct connection connection;
	__u32 threshold;

	repair_window(sk, max_plausible_window(sk));
	state->window_at_loss = tcp->snd_cwnd;
	collect_paths(sk, &connection);
	threshold = connection.path_count < 2 ? tcp_reno_ssthresh(sk) : window_after_loss(&connection);
	state->fraction = 0;
	state->previous_loss = state->last_loss;
	state->last_loss = tcp->bytes_acked;
	trace_step(PLAIT_STEP_LOSS, sk, &connection, 0, threshold);
	return threshold;
}

/* Calculates the increase for given paths; only tests run it. */
static __always_inline void calculate_increase(struct plait_calculation *calculation)
{
	struct plait_calculation copy;
	struct connection connection = {};

	/* The verifier allows reads of a program's argument only at constant offsets. */
	__builtin_memcpy(&copy, calculation, sizeof(copy));
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < copy.path_count; i++)
		add_path(&connection, copy.paths[i].window, copy.paths[i].rtt, copy.paths[i].transmitted);
	if (connection.path_count)
		calculation->increase = window_increase(&connection);
}

/* Defines the programs and the struct_ops of an algorithm, from its two functions and its name. */
#define PLAIT_ALGORITHM(id)                                                                                  \
	SEC("struct_ops")                                                                                    \
	void BPF_PROG(cong_avoid, struct sock *sk, __u32 ack, __u32 acked)                                   \
	{                                                                                                    \
		on_acknowledgment(sk, acked);                                                                \
	}                                                                                                    \
                                                                                                             \
	SEC("struct_ops")                                                                                    \
	__u32 BPF_PROG(ssthresh, struct sock *sk)                                                            \
	{                                                                                                    \
		return on_loss(sk);                                                                          \
	}                                                                                                    \
                                                                                                             \
	SEC("struct_ops")                                                                                    \
	__u32 BPF_PROG(undo_cwnd, struct sock *sk)                                                           \
	{                                                                                                    \
		return tcp_reno_undo_cwnd(sk);                                                               \
	}                                                                                                    \
                                                                                                             \
	SEC("struct_ops")                                                                                    \
	void BPF_PROG(set_state, struct sock *sk, __u8 new_state)                                            \
	{                                                                                                    \
		repair_threshold(sk, new_state);                                                             \
	}                                                                                                    \
                                                                                                             \
	SEC(".struct_ops.link")                                                                              \
	struct tcp_congestion_ops algorithm = {                                                              \
	    .cong_avoid = (void *)cong_avoid,                                                                \
	    .ssthresh = (void *)ssthresh,                                                                    \
	    .undo_cwnd = (void *)undo_cwnd,                                                                  \
	    .set_state = (void *)set_state,                                                                  \
	    .flags = TCP_CONG_NON_RESTRICTED,                                                                \
	    .name = "plait_" #id,                                                                            \
	};                                                                                                   \
                                                                                                             \
	SEC("syscall")                                                                                       \
	int calculate(struct plait_calculation *calculation)                                                 \
	{                                                                                                    \
		calculate_increase(calculation);                                                             \
		return 0;                                                                                    \
	}                                                                                                    \
                                                                                                             \
	char _license[] SEC("license") = "Dual MIT/GPL"

#endif
