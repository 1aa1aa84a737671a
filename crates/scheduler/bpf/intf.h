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

/*
 * Seconds of sending beside a path until its rate is measured by a burst of data, if packets without new data did not
 * measure it; and from a measurement until the next one.
 */
#define PLAIT_FIRST_TRIAL 3
#define PLAIT_NEXT_TRIAL 4

/* Bursts that a subflow sends at most so that the peer enlarges its window. */
#define PLAIT_MAX_WINDOW_TRIALS 15

/* Words of 8 bytes in a socket (icsk_ca_priv) that are left to cubic; the loader checks that it needs no more. */
#define PLAIT_CUBIC_WORDS 8

/* Paths with options. */
#define PLAIT_MAX_PATHS 256
#define PLAIT_MAX_WEIGHT 1000
/* The rate of a subflow that may carry as much as it can, bytes per second. */
#define PLAIT_UNLIMITED 0xffffffffu
/* The least rate to which a subflow is limited, bytes per second. */
#define PLAIT_MIN_RATE 16384

enum plait_scheduler {
	PLAIT_SCHEDULER_OFF = 0,
	PLAIT_SCHEDULER_ECF = 1,
	PLAIT_SCHEDULER_LOWEST_RTT = 2,
	PLAIT_SCHEDULER_WEIGHTED = 3,
	PLAIT_SCHEDULER_TIERS = 4,
	PLAIT_SCHEDULER_CHEAPEST = 5,
	PLAIT_SCHEDULER_FILE = 6,
	PLAIT_SCHEDULER_ALL = 7,
};

/** Why a subflow is open, limited or closed. */
enum plait_reason {
	PLAIT_REASON_NONE = 0,
	PLAIT_REASON_ONLY,    /* open: no other subflow is usable */
	PLAIT_REASON_ALL,     /* open: the scheduler uses every subflow whose round trip is not too long */
	PLAIT_REASON_FAST,    /* open: a burst arrives almost as early as on the best subflow */
	PLAIT_REASON_IN_TIME, /* open: a burst arrives before the data runs out */
	PLAIT_REASON_LATE,    /* closed: the best subflow would have sent all data before a burst arrives */
	/* closed: a buffer of either end would be full before a burst arrives; limited: so that the peer enlarges its window */
	PLAIT_REASON_WINDOW,
	PLAIT_REASON_UNKNOWN, /* its rate was not measured: closed, unless its round-trip time is at most a millisecond */
	PLAIT_REASON_RTT,    /* closed: another subflow has a lower round-trip time */
	PLAIT_REASON_SHARE,  /* limited: it is ahead of its share */
	PLAIT_REASON_BEHIND, /* open: it is not ahead of its share */
	PLAIT_REASON_FIRST,  /* open: no usable subflow is to be preferred */
	PLAIT_REASON_FULL,   /* open: those to be preferred have more to send than they can */
	PLAIT_REASON_SPARE,  /* closed: those to be preferred suffice */
	PLAIT_REASON_TARGET, /* open or limited: those to be preferred miss the target */
	PLAIT_REASON_FILE,   /* a user's scheduler decided */
};

/** A subflow as a scheduler sees it. */
struct plait_path {
	__u64 rate;    /* bytes per second; 0: not known */
	__u32 rtt;     /* us: smoothed while data is in flight, else the least of the last minutes */
	__u32 rtt_min; /* us: the least of the last minutes */
};

_Static_assert(sizeof(struct plait_path) == 16, "the size that Rust reads");

/** What a scheduler decides from, and the decision. */
struct plait_question {
	struct plait_path mine;
	struct plait_path best; /* of the other open subflows: the one that delivers a burst first */
	__u64
	    queued; /* bytes to be sent or acknowledged; but for `ecf`, half as many again if the program has more */
	__u64 window;	  /* bytes of them that the peer has room for */
	__u64 sent;	  /* bytes sent before */
	__u64 busy_bytes; /* bytes of them that the best sent without a pause, if the program has more */
	/* us: of a subflow whose congestion window is small, further round trips until a burst was sent */
	__u32 start;
	__u32 send_buffer;   /* bytes to be sent or acknowledged that it may hold */
	__u32 window_trials; /* bursts that the subflow sent so that the peer enlarges its window */
	__u32 padding;
	/* `weighted`: bytes sent in excess of the share, beside the subflow that is the most behind. */
	__s64 ahead;
	__u64 share_rate; /* the share of the rate of that subflow, bytes per second */
	/* `tiers`, `cheapest-first`: of the usable subflows that are to be preferred. */
	__u64 preferred_rate; /* bytes per second, all of them together */
	__u32 preferred_rtt;  /* us: the least; ~0 if there is none */
	/* `cheapest-first`: the rates and times from which on those to be preferred suffice; 0: no such target. */
	__u32 target_rtt; /* us */
	__u64 target_rate;
	__u32 scheduler;
	__u32 is_open;
	__u32 rate;   /* the decision: 0 closed, PLAIT_UNLIMITED open, or a limit in bytes per second */
	__u32 reason; /* enum plait_reason */
};

_Static_assert(sizeof(struct plait_question) == 136, "the size that Rust reads");

enum plait_path_kind {
	PLAIT_PATH_INTERFACE = 1,
	PLAIT_PATH_ADDRESS = 2,
};

/** Identifies paths: by the interface that packets leave by, or by the address of either end. */
struct plait_path_name {
	__u8 name[16]; /* padded with zeros; IPv4 addresses as IPv4-mapped IPv6 addresses */
	__u32 kind;
};

_Static_assert(sizeof(struct plait_path_name) == 20, "the size that Rust reads");

struct plait_path_options {
	__u32 weight;	/* `weighted`: from 1 to PLAIT_MAX_WEIGHT; 0: nothing */
	__u32 level;	/* `tiers`, `cheapest-first`: lower ones are preferred */
	__u32 max_rate; /* bytes per second and subflow; 0: unlimited */
};

_Static_assert(sizeof(struct plait_path_options) == 12, "the size that Rust reads");

/** What applies to all paths. */
struct plait_targets {
	__u64 rate; /* as in struct plait_question */
	__u32 rtt;
	/* Those of paths without options. */
	__u32 default_weight;
	__u32 default_level;
	__u32 padding;
};

_Static_assert(sizeof(struct plait_targets) == 24, "the size that Rust reads");

/** A subflow that uses a scheduler of plait. */
struct plait_subflow {
	__u8 local_address[16]; /* 4 bytes of it for AF_INET */
	__u8 remote_address[16];
	__u8 algorithm[16]; /* zero-terminated */
	__u32 rate;	    /* bytes per second, as it was measured last; 0: not known */
	__u32 max_rate;	    /* bytes per second: 0 closed, PLAIT_UNLIMITED open */
	__u16 family;	    /* AF_INET or AF_INET6 */
	__u16 local_port;   /* host order */
	__u16 remote_port;  /* host order */
	__u8 reason;	    /* enum plait_reason */
	__u8 is_measuring;  /* carries a burst by which its rate is measured */
};

_Static_assert(sizeof(struct plait_subflow) == 64, "the size that Rust reads");

#endif
