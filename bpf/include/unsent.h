/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The limits (TCP_NOTSENT_LOWAT) by which plait's schedulers steer what a subflow takes, which no other program changes. */
#ifndef PLAIT_UNSENT_H
#define PLAIT_UNSENT_H

#include "kernel.h"

/* Bytes not sent yet with which a closed subflow takes no more: any. */
#define PLAIT_CLOSED_UNSENT 1
/* And one that later data waits for: about what is left in the last packets. */
#define PLAIT_LATE_UNSENT (16 << 10)

static __always_inline int is_limited_by_scheduler(const struct tcp_sock *tcp)
{
	return tcp->notsent_lowat == PLAIT_CLOSED_UNSENT || tcp->notsent_lowat == PLAIT_LATE_UNSENT;
}

#endif
