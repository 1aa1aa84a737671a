/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel structures that the programs read, with only the fields they read. The loader finds where a
 * field really is on the running kernel from its type information, so neither order nor size counts here.
 */
#ifndef PLAIT_KERNEL_H
#define PLAIT_KERNEL_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
};

struct inet_connection_sock {
	void *icsk_ulp_data;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	_Bool is_mptcp;
	__u64 bytes_sent;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_retrans;
	__u32 total_retrans;
	__u32 srtt_us;
	__u32 mdev_us;
	__u32 snd_cwnd;
	__u32 mss_cache;
	__u32 segs_out;
	__u32 segs_in;
};

struct mptcp_subflow_context {
	__u32 token;
	__u32 request_join : 1, mp_join : 1;
	struct sock *conn;
};

struct mptcp_sock {
	__u64 local_key;
	__u64 remote_key;
	__u64 bytes_sent;
	__u64 bytes_received;
	__u32 token;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop

#endif
