/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel structures that plait's BPF programs access, with only the fields that they access. The loader
 * relocates each access to the running kernel's layout by its type information (CO-RE), so neither the order
 * nor the size of the fields matters here.
 */
#ifndef PLAIT_KERNEL_H
#define PLAIT_KERNEL_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* The loader ignores the suffix, which avoids a clash with the structure of <linux/in6.h>. */
struct in6_addr___kernel {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct ns_common {
	unsigned int inum;
};

struct netns_ipv4 {
	int sysctl_tcp_wmem[3];
};

struct net {
	struct ns_common ns;
	struct netns_ipv4 ipv4;
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct module;

struct proto {
	struct module *owner;
};

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned long skc_flags;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	struct proto *skc_prot;
	possible_net_t skc_net;
	struct in6_addr___kernel skc_v6_daddr;
	struct in6_addr___kernel skc_v6_rcv_saddr;
};

struct socket {
	unsigned long flags;
};

struct net_device {
	char name[16];
	int ifindex;
	possible_net_t nd_net;
};

struct dst_entry {
	struct net_device *dev;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_common __sk_common;
	struct sock_cgroup_data sk_cgrp_data;
	struct dst_entry *sk_dst_cache;
	struct socket *sk_socket;
	__u32 sk_mark;
	__u8 sk_userlocks : 4;
	int sk_wmem_queued;
	int sk_rcvbuf;
	int sk_sndbuf;
	__u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
};

enum sock_flags {
	SOCK_DEAD,
	SOCK_KEEPOPEN,
};

struct sk_buff {
	struct net_device *dev;
	__u16 network_header;
	unsigned char *head;
	unsigned char *data;
};

/* The context of a program at a netfilter hook. */
struct bpf_nf_ctx {
	struct sk_buff *skb;
};

struct task_struct {
	struct task_struct *group_leader;
	char comm[16];
};

struct list_head {
	struct list_head *next;
};

struct tcp_congestion_ops;

struct inet_connection_sock {
	__u32 icsk_user_timeout; /* ms */
	const struct tcp_congestion_ops *icsk_ca_ops;
	void *icsk_ulp_data;
	__u8 icsk_ca_state : 5;
	__u8 icsk_retransmits;
	__u64 icsk_ca_priv[13];
};

struct minmax_sample {
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct tcp_options_received rx_opt;
	_Bool is_mptcp;
	__u8 is_cwnd_limited : 1;
	__u64 bytes_sent;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 bytes_retrans;
	__u32 total_retrans;
	__u32 dsack_dups;
	__u32 rcv_nxt;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 srtt_us;
	__u32 mdev_us;
	__u32 snd_cwnd;
	__u32 snd_cwnd_clamp;
	__u32 snd_ssthresh;
	__u32 prior_cwnd;
	__u32 prior_ssthresh;
	__u32 max_packets_out;
	__u32 mss_cache;
	__u32 packets_out;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 notsent_lowat;
	struct minmax rtt_min;
	__u64 tcp_mstamp;
	__u32 segs_out;
	__u32 segs_in;
};

struct mptcp_subflow_context {
	struct list_head node;
	__u32 token;
	__u32 request_join : 1, mp_join : 1;
	struct sock *tcp_sock;
	struct sock *conn;
};

struct mptcp_sock {
	struct list_head conn_list;
	/* Numbers whose most significant byte is the first on the wire. */
	__u64 local_key;
	__u64 remote_key;
	__u64 bytes_sent;
	__u64 bytes_received;
	__u64 write_seq;
	__u64 snd_una;
	__u64 wnd_end;
	__u32 token;
	struct sock *first;
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

struct ack_sample {
	__u32 pkts_acked;
};

enum tcp_ca_event {
	CA_EVENT_TX_START,
};

/* Not relocated: the loader matches the members of a struct_ops by name. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*in_ack_event)(struct sock *sk, __u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*init)(struct sock *sk);
	__u32 (*sndbuf_expand)(struct sock *sk);
	__u32 flags;
	char name[16];
};

#endif
