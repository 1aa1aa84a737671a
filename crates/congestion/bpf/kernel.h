/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel structures that the programs read and write, with only the fields they use. The loader finds
 * where a field really is on the running kernel from its type information, so neither order nor size counts
 * here.
 */
#ifndef PLAIT_CONGESTION_KERNEL_H
#define PLAIT_CONGESTION_KERNEL_H

#include <linux/types.h>

#define TCP_ESTABLISHED 1
#define TCP_CLOSE_WAIT 8

/* enum tcp_ca_state: from this one on, a loss or a mark of congestion is being answered. */
#define TCP_CA_CWR 2

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct list_head {
	struct list_head *next;
};

struct tcp_congestion_ops;

struct inet_connection_sock {
	const struct tcp_congestion_ops *icsk_ca_ops;
	void *icsk_ulp_data;
	__u8 icsk_ca_state : 5;
	__u64 icsk_ca_priv[13];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	_Bool is_mptcp;
	__u8 is_cwnd_limited : 1;
	__u32 max_packets_out;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
	__u32 prior_ssthresh;
	__u32 srtt_us;
	__u64 bytes_acked;
};

struct mptcp_subflow_context {
	struct list_head node;
	struct sock *tcp_sock;
	struct sock *conn;
};

struct mptcp_sock {
	struct list_head conn_list;
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

/* Its members are found by their names, too. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*set_state)(struct sock *sk, __u8 new_state);
	__u32 flags;
	char name[16];
};

#endif
