/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The contract between BPF programs and Rust, whose side plait-bpf-build generates from this file.
 */
#ifndef PLAIT_LINUX_INTF_H
#define PLAIT_LINUX_INTF_H

#include <linux/types.h>

/** The final statistics of a subflow: closed_subflows.bpf.c queues one for each. */
struct plait_closed_subflow {
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
	__u8 joined;	   /* created by MP_JOIN */
	__u8 padding[1];
};

_Static_assert(sizeof(struct plait_closed_subflow) == 112, "the size that Rust reads");

#endif
