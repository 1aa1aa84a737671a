/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a scheduler stores for a subflow, behind cubic's own state in the room that the kernel reserves in the
 * socket (icsk_ca_priv). All zero when the algorithm starts.
 */
#ifndef PLAIT_SCHEDULER_SUBFLOW_STATE_H
#define PLAIT_SCHEDULER_SUBFLOW_STATE_H

#include "intf.h"
#include "kernel.h"

enum gate {
	GATE_OPEN = 0,
	GATE_LIMITED, /* to a rate */
	GATE_CLOSED,
	GATE_TRIAL,	/* takes a burst, with which it is closed again */
	GATE_MEASURING, /* closed; the acknowledgments of that burst are awaited */
};

struct subflow_state {
	__u32 train_start;  /* us: when the data in flight began to be sent, or a later moment */
	__u32 train_acked;  /* bytes acknowledged until then */
	__u32 rate;	    /* bytes per second by the acknowledgments since; 0: not known */
	__u32 max_rate;	    /* the pacing limit that the program asked for, bytes per second; ~0: none */
	__u32 unsent_limit; /* the one that the program asked for, bytes (TCP_NOTSENT_LOWAT); 0: none */
	/* The window as the kernel last had it, and at the last loss, in segments. */
	__u32 window;
	__u32 window_at_loss;
	/* KiB acknowledged, modulo 2^32, when its share began to count (`weighted`), or when it last began to send (the others) */
	union {
		__u32 share_start;
		__u32 busy_start;
	};
	__u16 measured; /* when the rate was, in 2^20 us; until then, when the subflow was established */
	__u16 decided;	/* in 2^8 us */
	__u16 keepalive_idle;	    /* the one that the program asked for, seconds; 0: it is in force */
	__u8 gate : 4;		    /* enum gate */
	__u8 window_trials : 4;	    /* bursts sent so that the peer enlarges its window */
	__u8 reason : 4;	    /* enum plait_reason */
	__u8 is_continuous : 1;	    /* train_start is in the middle of a train */
	__u8 is_remembered : 1;	    /* the rate is in known_paths */
	__u8 enabled_keepalive : 1; /* not the program */
	__u8 is_probed : 1;	    /* packets without new data were sent to measure the rate */
};

static __always_inline struct subflow_state *state_of(struct sock *sk)
{
	return (struct subflow_state *)&((struct inet_connection_sock *)sk)->icsk_ca_priv[PLAIT_CUBIC_WORDS];
}

_Static_assert(sizeof(struct subflow_state) <= 5 * 8, "the room behind cubic's state");

#endif
