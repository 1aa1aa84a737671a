/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The contract between BPF programs and Rust, whose side plait-bpf-build generates from this file.
 */
#ifndef PLAIT_SCHEDULER_INTF_H
#define PLAIT_SCHEDULER_INTF_H

#include <linux/types.h>

/* Subflows of a connection that are considered; the kernel's path manager creates at most 9. */
#define PLAIT_MAX_SUBFLOWS 12
/* What the kernel's scheduler hands to a subflow at once, in bytes (MPTCP_SEND_BURST_SIZE). */
#define PLAIT_BURST 65536

/* Seconds of sending beside a path until its rate is measured for the first time; and from then, until it is again. */
#define PLAIT_FIRST_TRIAL 3
#define PLAIT_NEXT_TRIAL 4

/* Words of 8 bytes in a socket (icsk_ca_priv) that are left to cubic; the loader checks that it needs no more. */
#define PLAIT_CUBIC_WORDS 8

enum plait_scheduler {
	PLAIT_SCHEDULER_OFF = 0,
	PLAIT_SCHEDULER_ECF = 1,
	PLAIT_SCHEDULER_LOWEST_RTT = 2,
};

/** A subflow as a scheduler sees it. */
struct plait_path {
	__u64 rate;    /* bytes per second; 0: not known */
	__u32 rtt;     /* us: smoothed while data is in flight, else the least of the last minutes */
	__u32 rtt_min; /* us: the least of the last minutes */
};

_Static_assert(sizeof(struct plait_path) == 16, "the size that Rust reads");

/** What a scheduler decides from. */
struct plait_question {
	struct plait_path mine;
	struct plait_path best; /* of the other open subflows, the one that delivers a burst first */
	__u64 queued;		/* bytes to be sent or acknowledged; as many again if the program has more */
	__u64 window;		/* bytes of them that the peer has room for */
	__u32 scheduler;
	__u32 is_open;
	__u32 answer; /* set by the program: 1 if the subflow is to be open */
	__u32 padding;
};

_Static_assert(sizeof(struct plait_question) == 64, "the size that Rust reads");

#endif
