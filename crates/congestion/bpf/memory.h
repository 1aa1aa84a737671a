/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What an algorithm keeps of a subflow, in the place that the kernel has for that in the socket
 * (icsk_ca_priv). It is all zero when the algorithm begins.
 */
#ifndef PLAIT_CONGESTION_MEMORY_H
#define PLAIT_CONGESTION_MEMORY_H

#include <linux/types.h>

struct memory {
	/* What the window is beyond whole segments, in 2^-32 segments. */
	__u64 fraction;
	/* OLIA: bytes that had been acknowledged at the last loss, and at the one before. */
	__u64 last_loss;
	__u64 loss_before;
	/* The window as these programs left it last, and as it was at the last loss, in segments; 0: not yet.
	 */
	__u32 window;
	__u32 window_at_loss;
};

/* Bytes acknowledged between the last two losses, or since the last, whichever is more: the l of OLIA. */
static __always_inline __u64 transmitted(__u64 acked, __u64 last_loss, __u64 loss_before)
{
	__u64 between = last_loss - loss_before;
	__u64 since = acked - last_loss;

	return since > between ? since : between;
}

#endif
