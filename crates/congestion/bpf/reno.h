/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel's reno, of which an algorithm replaces two steps: by how much the window grows in congestion
 * avoidance, and what is left of it after a loss. All else (slow start, recovery, ECN, pacing, undo, restart
 * after idleness) is the kernel's own; and where there is one path, so are these two.
 */
#ifndef PLAIT_CONGESTION_RENO_H
#define PLAIT_CONGESTION_RENO_H

#include "connection.h"
#include "fixed.h"
#include "step.h"
#include <bpf/bpf_tracing.h>

/* enum tcp_ca_state: from this one on, the sender responds to a loss or a congestion mark. */
#define TCP_CA_CWR 2
/* Any network namespace may select it, without a privilege. */
#define TCP_CONG_NON_RESTRICTED 1

extern __u32 tcp_slow_start(struct tcp_sock *tp, __u32 acked) __ksym;
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, __u32 w, __u32 acked) __ksym;
extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/* By how much the window of the first path grows for each segment that is acknowledged there, in 2^-32
 * segments. */
__s64 increase(const struct connection *seen);

/* What is left of the window of the first path after a loss, in segments. */
__u32 after_loss(const struct connection *seen);

/* What reno leaves. */
static __always_inline __u32 half_of(__u32 window)
{
	return window >= 4 ? window / 2 : 2;
}

/* tcp_is_cwnd_limited() of the kernel, which programs cannot call. */
static __always_inline int is_window_limited(struct tcp_sock *tcp)
{
	if (BPF_CORE_READ_BITFIELD(tcp, is_cwnd_limited))
		return 1;
	return tcp->snd_cwnd < tcp->snd_ssthresh && tcp->snd_cwnd < 2 * tcp->max_packets_out;
}

static __always_inline void grow(struct sock *sk, const struct connection *seen, __u32 acked)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct memory *memory = memory_of(sk);
	__u32 counted = acked < MAX_WINDOW ? acked : MAX_WINDOW;
	__s64 fraction = (__s64)memory->fraction + increase(seen) * counted;
	__s64 window = (__s64)tcp->snd_cwnd + (fraction >> PLAIT_FRACTION_BITS);

	memory->fraction = fraction & (ONE - 1);
	if (window < 1)
		window = 1;
	tcp->snd_cwnd = window < tcp->snd_cwnd_clamp ? window : tcp->snd_cwnd_clamp;
}

/*
 * It has been seen that the kernel leaves out a program now and then, where connections of one host lose at
 * the same time, and takes for its result whatever stands in its place: a threshold, or a window, of a
 * billion segments. So it is known here what can be.
 */

/* The largest window that there can be: these programs alone let it grow; undoing a loss brings one back. */
static __always_inline __u32 largest_possible(struct sock *sk)
{
	struct memory *memory = memory_of(sk);
	__u32 largest = memory->window > memory->window_at_loss ? memory->window : memory->window_at_loss;

	return largest;
}

static __always_inline void mend_window(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 largest = largest_possible(sk);

	/* Twice: it is not for small numbers. */
	if (largest && tcp->snd_cwnd / 2 > largest)
		tcp->snd_cwnd = largest;
}

/* Before the threshold that a loss left is used, and after it was. */
static __always_inline void mend(struct sock *sk, __u8 state)
{
	struct inet_connection_sock *connection = (struct inet_connection_sock *)sk;
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 before = tcp->prior_cwnd, largest = largest_possible(sk);

	mend_window(sk);
	if (state < TCP_CA_CWR && BPF_CORE_READ_BITFIELD(connection, icsk_ca_state) < TCP_CA_CWR)
		return;
	if (largest && before / 2 > largest)
		before = largest;
	if (before < 2)
		before = 2;
	/* A loss that is undone has the threshold of before. */
	if (state < TCP_CA_CWR && tcp->snd_ssthresh == tcp->prior_ssthresh)
		return;
	if (!tcp->snd_ssthresh || tcp->snd_ssthresh > before)
		tcp->snd_ssthresh = half_of(before);
}

static __always_inline void raise_window(struct sock *sk, __u32 acked)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct connection seen;

	if (!is_window_limited(tcp))
		return;
	if (tcp->snd_cwnd < tcp->snd_ssthresh) {
		acked = tcp_slow_start(tcp, acked);
		if (!acked)
			return;
	}
	look(sk, &seen);
	if (seen.number < 2) {
		tcp_cong_avoid_ai(tcp, tcp->snd_cwnd, acked);
		return;
	}
	grow(sk, &seen, acked);
	tell(PLAIT_STEP_INCREASE, sk, &seen, acked, tcp->snd_cwnd);
}

static __always_inline void avoid_congestion(struct sock *sk, __u32 acked)
{
	mend_window(sk);
	raise_window(sk, acked);
	memory_of(sk)->window = ((struct tcp_sock *)sk)->snd_cwnd;
}

static __always_inline __u32 lose(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct memory *memory = memory_of(sk);
	struct connection seen;
	__u32 left;

	mend_window(sk);
	memory->window_at_loss = tcp->snd_cwnd;
	look(sk, &seen);
	left = seen.number < 2 ? tcp_reno_ssthresh(sk) : after_loss(&seen);
	memory->fraction = 0;
	memory->loss_before = memory->last_loss;
	memory->last_loss = tcp->bytes_acked;
	tell(PLAIT_STEP_LOSS, sk, &seen, 0, left);
	return left;
}

/* Calculates an increase of paths that are given; it runs in tests alone. */
static __always_inline void calculate_increase(struct plait_calculation *given)
{
	struct plait_calculation copy;
	struct connection seen = {};

	/* Of what a program is given, the verifier takes reads at places that it knows only. */
	__builtin_memcpy(&copy, given, sizeof(copy));
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < copy.number; i++)
		see(&seen, copy.paths[i].window, copy.paths[i].rtt, copy.paths[i].transmitted);
	if (seen.number)
		given->increase = increase(&seen);
}

/* Registers an algorithm: the two functions above, and its name. */
#define PLAIT_ALGORITHM(word)                                                                                \
	SEC("struct_ops")                                                                                    \
	void BPF_PROG(cong_avoid, struct sock *sk, __u32 ack, __u32 acked)                                   \
	{                                                                                                    \
		avoid_congestion(sk, acked);                                                                 \
	}                                                                                                    \
                                                                                                             \
	SEC("struct_ops")                                                                                    \
	__u32 BPF_PROG(ssthresh, struct sock *sk)                                                            \
	{                                                                                                    \
		return lose(sk);                                                                             \
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
		mend(sk, new_state);                                                                         \
	}                                                                                                    \
                                                                                                             \
	SEC(".struct_ops.link")                                                                              \
	struct tcp_congestion_ops algorithm = {                                                              \
	    .cong_avoid = (void *)cong_avoid,                                                                \
	    .ssthresh = (void *)ssthresh,                                                                    \
	    .undo_cwnd = (void *)undo_cwnd,                                                                  \
	    .set_state = (void *)set_state,                                                                  \
	    .flags = TCP_CONG_NON_RESTRICTED,                                                                \
	    .name = "plait_" #word,                                                                          \
	};                                                                                                   \
                                                                                                             \
	SEC("syscall")                                                                                       \
	int calculate(struct plait_calculation *given)                                                       \
	{                                                                                                    \
		calculate_increase(given);                                                                   \
		return 0;                                                                                    \
	}                                                                                                    \
                                                                                                             \
	char _license[] SEC("license") = "Dual MIT/GPL"

#endif
