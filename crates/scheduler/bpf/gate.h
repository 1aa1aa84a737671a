/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Closes a subflow for new data, limits it to a rate, and opens it again.
 *
 * The kernel's scheduler skips a subflow whose pacing rate is 0, once it has taken that rate over, which it does when
 * it hands the next burst to the subflow. The maximum pacing rate (SO_MAX_PACING_RATE) keeps the rate at 0.
 */
#ifndef PLAIT_SCHEDULER_GATE_H
#define PLAIT_SCHEDULER_GATE_H

#include "constants.h"
#include "rate.h"
#include "subflow_state.h"
#include "unsent.h"

/* sk_pacing_status: TCP itself delays packets according to the pacing rate. */
#define SK_PACING_NONE 0
#define SK_PACING_NEEDED 1
/*
 * Bytes per second of a subflow that is to take one burst: the kernel's scheduler prefers every other subflow as long
 * as a byte of that burst is left.
 */
#define TRIAL_RATE 4096
/* Probes of a closed subflow, which has no other acknowledgments, in seconds. */
#define KEEPALIVE_INTERVAL 1
/*
 * How long a path may be silent, in ms: the kernel would end its subflow by the number of unanswered probes, of which it counts 127, or of
 * retransmissions.
 */
#define SILENCE_TIMEOUT 600000
/* The longest time between two retransmissions, in ms: the kernel's, and that on a silent path (TCP_RTO_MAX_MS, Linux 6.15). */
#define DEFAULT_MAX_RTO 120000
#define SILENT_MAX_RTO 1000
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

/* The kernel's sock_flag(). */
#define SOCK_FLAG(sk, flag)                                                                                  \
	(!!((sk)->__sk_common.skc_flags & (1ul << bpf_core_enum_value(enum sock_flags, flag))))

static __always_inline int set_option(struct sock *sk, int level, int name, __u32 value)
{
	return bpf_setsockopt(sk, level, name, &value, sizeof(value));
}

/* The options of the program, while none is changed. */
static __always_inline void remember_options(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);
	unsigned long rate = sk->sk_max_pacing_rate;

	if (state->gate != GATE_OPEN)
		return;
	state->max_rate = rate < PLAIT_UNLIMITED ? rate : PLAIT_UNLIMITED;
	state->unsent_limit = ((struct tcp_sock *)sk)->notsent_lowat;
}

/*
 * Limits what the kernel's scheduler believes of a subflow, without delaying its packets; and what it hands to the
 * subflow at once, to one buffer of the program's data.
 */
static __always_inline void pretend(struct sock *sk, __u32 rate)
{
	struct subflow_state *state = state_of(sk);

	remember_options(sk);
	if (state->gate <= GATE_LIMITED)
		set_option(sk, SOL_TCP, TCP_NOTSENT_LOWAT, PLAIT_CLOSED_UNSENT);
	set_option(sk, SOL_SOCKET, SO_MAX_PACING_RATE, rate);
	if (state->max_rate == PLAIT_UNLIMITED && sk->sk_pacing_status == SK_PACING_NEEDED)
		sk->sk_pacing_status = SK_PACING_NONE;
}

/* Probes make a closed subflow notice that it is needed; they also tell whether its path works. */
static __always_inline void keep_alive(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);
	__u32 idle = 0;

	if (state->keepalive_idle || bpf_getsockopt(sk, SOL_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)) || !idle)
		return;
	state->keepalive_idle = idle;
	set_option(sk, SOL_TCP, TCP_KEEPIDLE, KEEPALIVE_INTERVAL);
	if (SOCK_FLAG(sk, SOCK_KEEPOPEN))
		return;
	state->enabled_keepalive = 1;
	set_option(sk, SOL_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL);
	if (!((struct inet_connection_sock *)sk)->icsk_user_timeout)
		set_option(sk, SOL_TCP, TCP_USER_TIMEOUT, SILENCE_TIMEOUT);
	set_option(sk, SOL_SOCKET, SO_KEEPALIVE, 1);
}

static __always_inline int has_max_rto(struct sock *sk, __u32 expected)
{
	__u32 found = 0;

	return !bpf_getsockopt(sk, SOL_TCP, TCP_RTO_MAX_MS, &found, sizeof(found)) && found == expected;
}

/* Probes and retransmissions both need it. */
static __always_inline void restore_user_timeout(struct sock *sk)
{
	if (state_of(sk)->enabled_keepalive || has_max_rto(sk, SILENT_MAX_RTO))
		return;
	if (((struct inet_connection_sock *)sk)->icsk_user_timeout == SILENCE_TIMEOUT)
		set_option(sk, SOL_TCP, TCP_USER_TIMEOUT, 0);
}

static __always_inline void restore_keepalive(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	if (!state->keepalive_idle)
		return;
	set_option(sk, SOL_TCP, TCP_KEEPIDLE, state->keepalive_idle);
	state->keepalive_idle = 0;
	if (!state->enabled_keepalive)
		return;
	state->enabled_keepalive = 0;
	set_option(sk, SOL_SOCKET, SO_KEEPALIVE, 0);
	restore_user_timeout(sk);
}

/* A path may be back long before the next retransmission, the time to which doubles. Not if the program has limits of its own. */
static __always_inline void limit_backoff(struct sock *sk)
{
	__u32 timeout = ((struct inet_connection_sock *)sk)->icsk_user_timeout;

	if ((timeout && timeout != SILENCE_TIMEOUT) || !has_max_rto(sk, DEFAULT_MAX_RTO))
		return;
	set_option(sk, SOL_TCP, TCP_USER_TIMEOUT, SILENCE_TIMEOUT);
	set_option(sk, SOL_TCP, TCP_RTO_MAX_MS, SILENT_MAX_RTO);
}

/* When something was acknowledged, or the program has closed the subflow. */
static __always_inline void restore_backoff(struct sock *sk)
{
	__u32 timeout = ((struct inet_connection_sock *)sk)->icsk_user_timeout;

	if (timeout != SILENCE_TIMEOUT || !has_max_rto(sk, SILENT_MAX_RTO))
		return;
	set_option(sk, SOL_TCP, TCP_RTO_MAX_MS, DEFAULT_MAX_RTO);
	restore_user_timeout(sk);
}

/* A subflow that has not sent data yet starts by what is known of its path: paced, as its packets would fill a short queue. */
static __always_inline void set_first_window(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u32 window;

	if (state->window || state->gate > GATE_LIMITED)
		return;
	window = first_window(tcp, state->rate);
	if (window <= tcp->snd_cwnd)
		return;
	tcp->snd_cwnd = state->window = window;
	sk->sk_pacing_rate = state->rate;
	if (sk->sk_pacing_status != SK_PACING_NONE)
		return;
	remember_options(sk);
	sk->sk_pacing_status = SK_PACING_NEEDED;
}

/* The kernel resets it when a subflow joins its connection, which may be after the subflow is established. */
static __always_inline void restore_unsent_limit(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	if (state->gate == GATE_OPEN && state->unsent_limit && !((struct tcp_sock *)sk)->notsent_lowat)
		set_option(sk, SOL_TCP, TCP_NOTSENT_LOWAT, state->unsent_limit);
}

/*
 * After slow start, as cubic does not ask for pacing. Not before: without pacing, its HyStart takes answers to packets that were paced for
 * those of a path that is full.
 */
static __always_inline void end_pacing(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);

	if (state->gate != GATE_OPEN || state->max_rate != PLAIT_UNLIMITED ||
	    sk->sk_pacing_status != SK_PACING_NEEDED)
		return;
	if (tcp->snd_cwnd >= tcp->snd_ssthresh)
		sk->sk_pacing_status = SK_PACING_NONE;
}

static __always_inline void close_gate(struct sock *sk, __u8 gate)
{
	pretend(sk, 0);
	state_of(sk)->gate = gate;
	keep_alive(sk);
}

static __always_inline void start_trial(struct sock *sk)
{
	pretend(sk, TRIAL_RATE);
	sk->sk_pacing_rate = TRIAL_RATE;
	state_of(sk)->gate = GATE_TRIAL;
	state_of(sk)->rate = 0;
}

/*
 * Up to a rate in bytes per second; PLAIT_UNLIMITED: as the program wants. The subflow takes more data while it has fewer than `unsent` bytes to
 * send; 0: as the program wants.
 */
static __always_inline void open_gate(struct sock *sk, __u32 limit, __u32 unsent)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u64 rate = window_rate(tcp);
	__u8 before = state->gate;

	remember_options(sk);
	state->gate = limit == PLAIT_UNLIMITED ? GATE_OPEN : GATE_LIMITED;
	if (limit > state->max_rate)
		limit = state->max_rate;
	set_option(sk, SOL_SOCKET, SO_MAX_PACING_RATE, limit);
	/* A limit made TCP delay packets; without one, cubic does not ask for that. */
	if (limit == PLAIT_UNLIMITED && sk->sk_pacing_status == SK_PACING_NEEDED)
		sk->sk_pacing_status = SK_PACING_NONE;
	if (unsent || before > GATE_LIMITED || is_limited_by_scheduler(tcp))
		set_option(sk, SOL_TCP, TCP_NOTSENT_LOWAT, unsent ?: state->unsent_limit);
	if (before <= GATE_LIMITED)
		return;
	sk->sk_pacing_rate = rate < limit || limit == PLAIT_UNLIMITED ? rate : limit;
	restore_keepalive(sk);
}

#endif
