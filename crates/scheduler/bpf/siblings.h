/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The best of the other subflows of a connection that are open. */
#ifndef PLAIT_SCHEDULER_SIBLINGS_H
#define PLAIT_SCHEDULER_SIBLINGS_H

#include "gate.h"
#include "rate.h"
#include "subflows.h"

static __always_inline void describe(struct tcp_sock *tcp, __u64 rate, struct plait_path *path)
{
	path->rate = rate;
	path->rtt_min = tcp->rtt_min.s[0].v;
	/* The smoothed time of an idle subflow is that of a queue which is gone. */
	path->rtt = tcp->packets_out ? tcp->srtt_us >> 3 : path->rtt_min;
}

/* Whether a sibling carries data or would if there were more. */
static __always_inline int is_usable(struct tcp_sock *tcp)
{
	unsigned char state = AS(struct sock_common, tcp)->skc_state;

	return (state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT) && tcp->srtt_us &&
	       !tcp->inet_conn.icsk_retransmits && AS(struct sock, tcp)->sk_max_pacing_rate > TRIAL_RATE;
}

static __always_inline int is_better(const struct plait_path *path, const struct plait_path *best,
				     __u32 scheduler)
{
	if (!best->rate)
		return 1;
	if (scheduler == PLAIT_SCHEDULER_LOWEST_RTT)
		return path->rtt_min < best->rtt_min;
	return burst_time(path) < burst_time(best);
}

/* Returns 0 if no other subflow is open. */
static __always_inline int find_best(struct sock *sk, struct sock *connection,
				     struct plait_question *question)
{
	void *head = subflows_of(connection), *entry = next_subflow(head, head);

	for (int i = 0; i < PLAIT_MAX_SUBFLOWS && entry; i++) {
		struct mptcp_subflow_context *sibling = subflow_at(entry);
		struct plait_path path;
		struct tcp_sock *tcp;

		entry = next_subflow(head, entry);
		if (!sibling->tcp_sock || (void *)sibling->tcp_sock == (void *)sk)
			continue;
		tcp = AS(struct tcp_sock, sibling->tcp_sock);
		if (!is_usable(tcp))
			continue;
		describe(tcp, rate_of_sibling(tcp), &path);
		if (path.rate && is_better(&path, &question->best, question->scheduler))
			question->best = path;
	}
	return question->best.rate != 0;
}

/* A flag of a socket: its program waits for room in the send buffer. */
#define SOCK_NOSPACE 2

/* What the connection has to send; as much again if the program waits to hand over more. */
static __always_inline __u64 queued(struct mptcp_sock *msk)
{
	struct socket *socket = AS(struct sock, msk)->sk_socket;
	__u64 bytes = msk->write_seq - msk->snd_una;

	if (socket && AS(struct socket, socket)->flags & (1ul << SOCK_NOSPACE))
		return 2 * bytes;
	return bytes;
}

#endif
