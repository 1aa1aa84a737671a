/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What an algorithm stores for a subflow, in the room that the kernel reserves for that in the socket
 * (icsk_ca_priv). All zero when the algorithm starts.
 */
#ifndef PLAIT_CONGESTION_SUBFLOW_STATE_H
#define PLAIT_CONGESTION_SUBFLOW_STATE_H

#include <linux/types.h>

struct subflow_state {
	/* The part of the window beyond whole segments, in 2^-32 segments. */
	__u64 fraction;
	/* OLIA: bytes that had been acknowledged at the last loss, and at the one before it. */
	__u64 last_loss;
	__u64 previous_loss;
	/* The window as these programs last set it, and at the last loss, in segments; 0: not yet. */
	__u32 window;
	__u32 window_at_loss;
};

/* OLIA's l: bytes acknowledged between the last two losses, or since the last loss, whichever is more. */
static __always_inline __u64 transmitted(__u64 acked, __u64 last_loss, __u64 previous_loss)
{
	__u64 between = last_loss - previous_loss;
	__u64 since = acked - last_loss;

	return since > between ? since : between;
}

#endif
