/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A subflow and its siblings, as an algorithm sees them. A window of 0 excludes a sibling, and numbers are limited
 * so that no calculation overflows.
 */
#ifndef PLAIT_CONGESTION_CONNECTION_H
#define PLAIT_CONGESTION_CONNECTION_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "intf.h"
#include "subflow_state.h"
#include "subflows.h"

/* Segments; larger windows count as this. */
#define MAX_WINDOW (1u << 23)
/* In 1/8 us; shorter round-trip times count as 1 us. */
#define MIN_RTT 8

struct connection {
	/* The first is the subflow itself. */
	struct plait_path paths[PLAIT_MAX_SUBFLOWS];
	__u32 path_count;
};

static __always_inline struct subflow_state *state_of(struct sock *sk)
{
	return (struct subflow_state *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* `tcp` may be a subflow that is gone or uses another algorithm, whose state is not ours to read. */
static __always_inline __u64 transmitted_by(struct tcp_sock *tcp, const void *algorithm)
{
	struct inet_connection_sock *icsk = &tcp->inet_conn;

	if ((const void *)icsk->icsk_ca_ops != algorithm)
		return 0;
	return transmitted(tcp->bytes_acked, icsk->icsk_ca_priv[1], icsk->icsk_ca_priv[2]);
}

_Static_assert(__builtin_offsetof(struct subflow_state, last_loss) == 8, "transmitted_by reads word 1");
_Static_assert(__builtin_offsetof(struct subflow_state, previous_loss) == 16, "transmitted_by reads word 2");

/*
 * Appends a path, unless its window is 0. Like every function here that is not inlined, it is verified on its
 * own, once; inlined, the verifier would follow each path through each call one after the other.
 */
__noinline int add_path(struct connection *connection, __u32 window, __u32 rtt, __u64 bytes)
{
	struct plait_path *path;

	if (!connection || connection->path_count >= PLAIT_MAX_SUBFLOWS || !window)
		return 0;
	path = &connection->paths[connection->path_count++];
	path->window = window < MAX_WINDOW ? window : MAX_WINDOW;
	path->rtt = rtt > MIN_RTT ? rtt : MIN_RTT;
	path->transmitted = bytes;
	return 1;
}

/* A sibling counts if it may send data and has a round-trip time. */
static __always_inline void add_sibling(struct connection *connection, struct tcp_sock *tcp,
					const void *algorithm)
{
	unsigned char state = AS(struct sock_common, tcp)->skc_state;
	__u32 window = tcp->snd_cwnd, rtt = tcp->srtt_us;

	if ((state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT) && rtt)
		add_path(connection, window, rtt, transmitted_by(tcp, algorithm));
}

/*
 * Collects a subflow and its siblings. There is a single path in a TCP connection, in an MPTCP connection
 * without another subflow, and until this subflow has a round-trip time.
 */
static __always_inline void collect_paths(struct sock *sk, struct connection *connection)
{
	const void *algorithm = ((struct inet_connection_sock *)sk)->icsk_ca_ops;
	struct mptcp_subflow_context *subflow = subflow_of(sk);
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	void *head, *entry;

	connection->path_count = 0;
	add_path(connection, tcp->snd_cwnd ?: 1, tcp->srtt_us,
		 transmitted(tcp->bytes_acked, state_of(sk)->last_loss, state_of(sk)->previous_loss));
	if (!tcp->srtt_us || !subflow || !subflow->conn)
		return;
	head = subflows_of(subflow->conn);
	entry = next_subflow(head, head);
	for (int i = 0; i < PLAIT_MAX_SUBFLOWS && entry; i++) {
		struct mptcp_subflow_context *sibling = subflow_at(entry);

		if (sibling->tcp_sock && (void *)sibling->tcp_sock != (void *)sk)
			add_sibling(connection, AS(struct tcp_sock, sibling->tcp_sock), algorithm);
		entry = next_subflow(head, entry);
	}
}

#endif
