/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The send buffer of a connection: data stays in it until all before it was acknowledged. While a slow subflow carries a burst, it has to
 * hold what the fast ones send meanwhile, or they run dry. The kernel makes it the sum of those of the subflows, which it sizes by their
 * congestion windows alone. It does not enlarge one while its congestion window is full, as it is in slow start: there a subflow would run dry, too.
 */
#ifndef PLAIT_SCHEDULER_SEND_BUFFER_H
#define PLAIT_SCHEDULER_SEND_BUFFER_H

#include "siblings.h"

/* What the kernel multiplies a congestion window by, for cubic (tcp_sndbuf_expand()). */
#define SEND_BUFFER_WINDOWS 2
/* The least window that it multiplies, in segments. */
#define INITIAL_WINDOW 10
/* The least size of a subflow's part of the send buffer, in segments: what slow start sends within three round trips. */
#define MIN_SEND_BUFFER_SEGMENTS 80
/* The least that it adds to the payload of a segment, in bytes. */
#define SEGMENT_OVERHEAD 512
/* The program has set the size, and the kernel leaves it (SO_SNDBUF). */
#define SOCK_SNDBUF_LOCK 1

/* The most that the send buffer of a connection holds, in bytes. */
static __always_inline __u32 max_send_buffer(struct sock *sk, struct sock *connection)
{
	int now = connection->sk_sndbuf, max = sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_wmem[2];

	if (BPF_CORE_READ_BITFIELD(connection, sk_userlocks) & SOCK_SNDBUF_LOCK)
		return now;
	return max > now ? max : now;
}

/* Whether a subflow carries data, and not for the second time: how long that takes, nobody knows. */
static __always_inline int delivers(struct tcp_sock *sibling)
{
	return sibling->packets_out && !sibling->inet_conn.icsk_retransmits;
}

/* The time until a subflow has delivered a burst and what it has outstanding, in us. */
static __always_inline __u64 delivery_time(struct sock *sk, struct tcp_sock *sibling)
{
	struct plait_path path;

	describe_sibling(sibling, state_of_sibling(sk, sibling), &path);
	consider_outstanding(sibling, &path);
	return path.rate ? burst_time(&path) : path.rtt;
}

/* The longest of these times of the other subflows that carry data, in us. */
static __always_inline __u64 longest_delivery_time(struct sock *sk, struct sock *connection)
{
	void *head = subflows_of(connection), *entry = next_subflow(head, head);
	struct bpf_iter_num iterator;
	__u64 longest = 0;

	bpf_iter_num_new(&iterator, 0, PLAIT_MAX_SUBFLOWS);
	while (entry && bpf_iter_num_next(&iterator)) {
		struct sock *sibling = subflow_at(entry)->tcp_sock;

		entry = next_subflow(head, entry);
		if (sibling && (void *)sibling != (void *)sk && delivers(AS(struct tcp_sock, sibling))) {
			__u64 time = delivery_time(sk, AS(struct tcp_sock, sibling));

			longest = time > longest ? time : longest;
		}
	}
	bpf_iter_num_destroy(&iterator);
	return longest;
}

/* The bytes of memory that the kernel counts for a segment, or fewer. */
static __always_inline __u32 segment_truesize(struct tcp_sock *tcp)
{
	__u32 least = tcp->mss_cache + SEGMENT_OVERHEAD, size = 2048;

	for (int i = 0; i < 6 && size < least; i++)
		size *= 2;
	return size;
}

/* How many congestion windows a subflow's part of the send buffer is to hold. */
static __always_inline __u32 send_buffer_windows(struct sock *sk)
{
	struct mptcp_subflow_context *subflow = subflow_of(sk);
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u64 segments = tcp->snd_cwnd > INITIAL_WINDOW ? tcp->snd_cwnd : INITIAL_WINDOW, bytes;
	__u32 windows, least = MIN_SEND_BUFFER_SEGMENTS / segments;

	if (!subflow || !subflow->conn)
		return SEND_BUFFER_WINDOWS;
	/* The kernel's delivery rate is that of a burst of acknowledgments at times. */
	bytes = carried(window_rate(tcp), longest_delivery_time(sk, subflow->conn));
	/* The kernel's limit is far below, and the product is an int there. */
	if (bytes > 1 << 28)
		bytes = 1 << 28;
	windows = SEND_BUFFER_WINDOWS + bytes / (segments * segment_truesize(tcp));
	return windows > least ? windows : least;
}

#endif
