/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What BPF programs and Rust exchange. The Rust side is generated from this file: scripts/bindings.
 */
#ifndef PLAIT_CONGESTION_INTF_H
#define PLAIT_CONGESTION_INTF_H

#include <linux/types.h>

/* Subflows of a connection that are looked at; the kernel's own path manager makes at most 9. */
#define PLAIT_MAX_SUBFLOWS 12
/* The fraction of a window counts in 2^-32 segments. */
#define PLAIT_FRACTION_BITS 32
/* With its terminating zero (TCP_CA_NAME_MAX). */
#define PLAIT_ALGORITHM_NAME 16

/** A subflow as an algorithm sees it. */
struct plait_path {
	__u64 transmitted; /* bytes acknowledged between losses, as OLIA counts them (0: does not count) */
	__u32 window;	   /* segments */
	__u32 rtt;	   /* smoothed, in 1/8 us */
};

_Static_assert(sizeof(struct plait_path) == 16, "the size that Rust reads");

enum plait_step_kind {
	PLAIT_STEP_INCREASE = 1,
	PLAIT_STEP_LOSS = 2,
};

/** One decision of an algorithm: what it saw, and what it made of it. */
struct plait_step {
	__u64 socket; /* tells subflows apart */
	/* After an increase. */
	__u64 fraction;	    /* in 2^-32 segments */
	__u32 window_after; /* segments; of a loss the slow start threshold */
	__u32 acked;	    /* segments that were acknowledged in congestion avoidance */
	__u32 kind;
	__u32 number; /* of paths; the first is that of the subflow itself */
	struct plait_path paths[PLAIT_MAX_SUBFLOWS];
};

_Static_assert(sizeof(struct plait_step) == 32 + 16 * PLAIT_MAX_SUBFLOWS, "the size that Rust reads");

/** Paths to calculate an increase of, and the result: for tests of the arithmetic. */
struct plait_calculation {
	struct plait_path paths[PLAIT_MAX_SUBFLOWS];
	__s64 increase; /* in 2^-32 segments */
	__u32 number;	/* of paths */
	__u32 padding;
};

_Static_assert(sizeof(struct plait_calculation) == 16 + 16 * PLAIT_MAX_SUBFLOWS, "the size that Rust reads");

/** A socket that belongs to an MPTCP connection, or uses an algorithm of these. */
struct plait_controlled {
	__u64 transmitted;	/* as in struct plait_path */
	__u8 local_address[16]; /* 4 bytes of it for AF_INET */
	__u8 remote_address[16];
	__u8 algorithm[PLAIT_ALGORITHM_NAME]; /* ends with a zero */
	__u32 token;			      /* host order; 0: no connection of MPTCP */
	__u32 window;			      /* segments */
	__u32 threshold;		      /* slow start threshold, segments */
	__u32 rtt;			      /* smoothed, in 1/8 us; 0: not measured */
	__u16 family;			      /* AF_INET or AF_INET6 */
	__u16 local_port;		      /* host order */
	__u16 remote_port;		      /* host order */
	__u8 state;			      /* TCP_ESTABLISHED, ... */
	__u8 padding;
};

_Static_assert(sizeof(struct plait_controlled) == 80, "the size that Rust reads");

#endif
