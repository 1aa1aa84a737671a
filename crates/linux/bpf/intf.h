/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What BPF programs and Rust exchange. The Rust side is generated from this file: scripts/bindings.
 */
#ifndef PLAIT_HOST_INTF_H
#define PLAIT_HOST_INTF_H

#include <linux/types.h>

/**
 * One subflow and the connection it belongs to: connections.bpf.c writes one after the other.
 * <div rustbindgen nodebug></div>
 */
struct plait_subflow {
	__u64 local_key;  /* host order */
	__u64 remote_key; /* host order */
	__u64 connection_bytes_sent;
	__u64 connection_bytes_received;
	__u64 bytes_sent;
	__u64 bytes_received;
	__u8 local_address[16]; /* 4 bytes of it for AF_INET */
	__u8 remote_address[16];
	__u32 token;		/* host order */
	__u16 family;		/* AF_INET or AF_INET6 */
	__u16 local_port;	/* host order */
	__u16 remote_port;	/* host order */
	__u8 state;		/* TCP_ESTABLISHED, ... */
	__u8 connection_counts; /* this kernel counts the bytes of connections */
	__u8 padding[4];
};

_Static_assert(sizeof(struct plait_subflow) == 96, "the size that Rust reads");

/** The last figures of a subflow: ended.bpf.c queues one for each. */
struct plait_ended {
	__u64 cookie;
	__u64 bytes_sent;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_retransmitted;
	__u8 local_address[16]; /* 4 bytes of it for AF_INET */
	__u8 remote_address[16];
	__u32 token; /* host order */
	__u32 retransmissions;
	__u32 rtt_us;
	__u32 rtt_variance_us;
	__u32 cwnd;
	__u32 mss;
	__u32 segments_sent;
	__u32 segments_received;
	__u16 family;	   /* AF_INET or AF_INET6 */
	__u16 local_port;  /* host order */
	__u16 remote_port; /* host order */
	__u8 joined;	   /* made by MP_JOIN */
	__u8 padding[1];
};

_Static_assert(sizeof(struct plait_ended) == 112, "the size that Rust reads");

#endif
