/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The contract between BPF programs and Rust, whose side plait-bpf-build generates from this file.
 */
#ifndef PLAIT_CONGESTION_INTF_H
#define PLAIT_CONGESTION_INTF_H

#include <linux/types.h>

/* Subflows of a connection that are considered; the kernel's path manager creates at most 9. */
#define PLAIT_MAX_SUBFLOWS 12
/* The fraction of a window is in 2^-32 segments. */
#define PLAIT_FRACTION_BITS 32
/* Including the terminating zero (TCP_CA_NAME_MAX). */
#define PLAIT_ALGORITHM_NAME_LENGTH 16

/** A subflow as an algorithm sees it. */
struct plait_path {
	__u64 transmitted; /* bytes acknowledged between losses, as OLIA counts them; 0 with another algorithm
			    */
	__u32 window;	   /* segments */
	__u32 rtt;	   /* smoothed, in 1/8 us */
};

_Static_assert(sizeof(struct plait_path) == 16, "the size that Rust reads");

enum plait_step_kind {
	PLAIT_STEP_INCREASE = 1,
	PLAIT_STEP_LOSS = 2,
};

/** One decision of an algorithm: its input and its result. */
struct plait_step {
	__u64 socket; /* identifies the subflow */
	/* After an increase. */
	__u64 fraction;	    /* in 2^-32 segments */
	__u32 window_after; /* segments; after a loss, the slow start threshold */
	__u32 acked;	    /* segments acknowledged in congestion avoidance */
	__u32 kind;
	__u32 path_count; /* the first path is the subflow itself */
	struct plait_path paths[PLAIT_MAX_SUBFLOWS];
};

_Static_assert(sizeof(struct plait_step) == 32 + 16 * PLAIT_MAX_SUBFLOWS, "the size that Rust reads");

/** Paths, and the window increase calculated from them: for tests of the arithmetic. */
struct plait_calculation {
	struct plait_path paths[PLAIT_MAX_SUBFLOWS];
	__s64 increase; /* in 2^-32 segments */
	__u32 path_count;
	__u32 padding;
};

_Static_assert(sizeof(struct plait_calculation) == 16 + 16 * PLAIT_MAX_SUBFLOWS, "the size that Rust reads");

/** A socket that belongs to an MPTCP connection or uses one of plait's algorithms. */
struct plait_cc_socket {
	__u64 transmitted;	/* as in struct plait_path */
	__u8 local_address[16]; /* 4 bytes of it for AF_INET */
	__u8 remote_address[16];
	__u8 algorithm[PLAIT_ALGORITHM_NAME_LENGTH]; /* zero-terminated */
	__u32 token;				     /* host order; 0: not MPTCP */
	__u32 window;				     /* segments */
	__u32 threshold;			     /* slow start threshold, segments */
	__u32 rtt;				     /* smoothed, in 1/8 us; 0: not measured */
	__u16 family;				     /* AF_INET or AF_INET6 */
	__u16 local_port;			     /* host order */
	__u16 remote_port;			     /* host order */
	__u8 state;				     /* TCP_ESTABLISHED, ... */
	__u8 padding;
};

_Static_assert(sizeof(struct plait_cc_socket) == 80, "the size that Rust reads");

#endif
