/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A subflow and its siblings, as an algorithm sees them.
 *
 * The siblings' values are read without their locks, as the kernel reads such values, too: each may be of
 * another moment, and a sibling that vanishes meanwhile may be read once more. No value is trusted: a
 * window or a round-trip time of 0 makes a sibling one that does not count, and numbers are limited so that
 * no calculation overflows.
 */
#ifndef PLAIT_CONGESTION_CONNECTION_H
#define PLAIT_CONGESTION_CONNECTION_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "kernel.h"
#include "intf.h"
#include "memory.h"

/* Segments; a window that is larger counts as one of these. */
#define MAX_WINDOW (1u << 23)
/* In 1/8 us; a shorter round-trip time counts as 1 us. */
#define MIN_RTT 8

struct connection {
	/* The first is that of the subflow itself. */
	struct plait_path paths[PLAIT_MAX_SUBFLOWS];
	__u32 number;
};

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

#define AS(type, address) ((type *)bpf_rdonly_cast((const void *)(address), bpf_core_type_id_kernel(type)))

static __always_inline struct memory *memory_of(struct sock *sk)
{
	return (struct memory *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* `tcp` may be a subflow that has vanished, or uses another algorithm, whose memory is not ours. */
static __always_inline __u64 transmitted_by(struct tcp_sock *tcp, const void *algorithm)
{
	struct inet_connection_sock *connection = &tcp->inet_conn;

	if ((const void *)connection->icsk_ca_ops != algorithm)
		return 0;
	return transmitted(tcp->bytes_acked, connection->icsk_ca_priv[1], connection->icsk_ca_priv[2]);
}

_Static_assert(__builtin_offsetof(struct memory, last_loss) == 8, "transmitted_by reads it by its place");
_Static_assert(__builtin_offsetof(struct memory, loss_before) == 16, "transmitted_by reads it by its place");

/*
 * Adds a path, if it counts. As all functions here that are not inline, it is looked at by the verifier by
 * itself, once: inside of what calls it, all ways through each of its calls would be tried one after the
 * other.
 */
__noinline int see(struct connection *seen, __u32 window, __u32 rtt, __u64 bytes)
{
	struct plait_path *path;

	if (!seen || seen->number >= PLAIT_MAX_SUBFLOWS || !window)
		return 0;
	path = &seen->paths[seen->number++];
	path->window = window < MAX_WINDOW ? window : MAX_WINDOW;
	path->rtt = rtt > MIN_RTT ? rtt : MIN_RTT;
	path->transmitted = bytes;
	return 1;
}

/* Siblings that may send data and have a round-trip time count. */
static __always_inline void see_sibling(struct connection *seen, struct tcp_sock *tcp, const void *algorithm)
{
	unsigned char state = AS(struct sock_common, tcp)->skc_state;
	__u32 window = tcp->snd_cwnd, rtt = tcp->srtt_us;

	if ((state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT) && rtt)
		see(seen, window, rtt, transmitted_by(tcp, algorithm));
}

/*
 * Looks at a subflow and its siblings. One path is all there is of a connection of TCP; of one of MPTCP
 * without another subflow; and as long as this one has no round-trip time.
 */
static __always_inline void look(struct sock *sk, struct connection *seen)
{
	struct inet_connection_sock *own = (struct inet_connection_sock *)sk;
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	const void *algorithm = own->icsk_ca_ops;
	struct mptcp_subflow_context *subflow;
	struct list_head *place;
	void *first;

	seen->number = 0;
	see(seen, tcp->snd_cwnd ?: 1, tcp->srtt_us,
	    transmitted(tcp->bytes_acked, memory_of(sk)->last_loss, memory_of(sk)->loss_before));
	if (!tcp->is_mptcp || !tcp->srtt_us || !own->icsk_ulp_data)
		return;
	subflow = AS(struct mptcp_subflow_context, own->icsk_ulp_data);
	if (!subflow->conn)
		return;
	first = (void *)subflow->conn + bpf_core_field_offset(struct mptcp_sock, conn_list);
	place = AS(struct list_head, first)->next;
	for (int i = 0; i < PLAIT_MAX_SUBFLOWS; i++) {
		struct mptcp_subflow_context *sibling;
		void *address;

		if (!place || (void *)place == first)
			break;
		address = (void *)place - bpf_core_field_offset(struct mptcp_subflow_context, node);
		sibling = AS(struct mptcp_subflow_context, address);
		if (sibling->tcp_sock && (void *)sibling->tcp_sock != (void *)sk)
			see_sibling(seen, AS(struct tcp_sock, sibling->tcp_sock), algorithm);
		place = AS(struct list_head, place)->next;
	}
}

#endif
