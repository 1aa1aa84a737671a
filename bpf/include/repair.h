/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Repairs the window and the threshold of a socket whose congestion control is a program.
 *
 * The kernel has been observed to skip a program occasionally, when several connections of a host lose
 * packets at the same moment, and to use whatever is in the place of its result: a threshold or a window of a
 * billion segments. So implausible values are detected and repaired here.
 */
#ifndef PLAIT_REPAIR_H
#define PLAIT_REPAIR_H

#include <bpf/bpf_core_read.h>
#include "constants.h"
#include "kernel.h"

/* `max` is the largest plausible window, in segments; 0: not known. */
static __always_inline void repair_window(struct sock *sk, __u32 max)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;

	/* Twice as large: small deviations are legitimate. */
	if (max && tcp->snd_cwnd / 2 > max)
		tcp->snd_cwnd = max;
}

/*
 * Called before the threshold set after a loss is used, and after it was. Returns the window before the loss, in
 * segments, whose threshold is to be set; 0 if the present one is plausible.
 */
static __always_inline __u32 window_to_repair(struct sock *sk, __u8 state, __u32 max)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 before = tcp->prior_cwnd;

	repair_window(sk, max);
	/* From TCP_CA_CWR on, the sender is responding to a loss or a congestion mark. */
	if (state < TCP_CA_CWR && BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) < TCP_CA_CWR)
		return 0;
	if (max && before / 2 > max)
		before = max;
	if (before < 2)
		before = 2;
	/* Undoing a loss restores the earlier threshold. */
	if (state < TCP_CA_CWR && tcp->snd_ssthresh == tcp->prior_ssthresh)
		return 0;
	return !tcp->snd_ssthresh || tcp->snd_ssthresh > before ? before : 0;
}

#endif
