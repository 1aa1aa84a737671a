/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Measures the rate of an idle subflow without handing it data that others would wait for.
 *
 * The subflow sends a few acknowledgments, and a program at its interface fills them up with bytes that precede the
 * subflow's data: zeros, with sequence numbers of data that the peer has, or of none. TCP drops such a segment and
 * acknowledges it at once, with the range that it received twice (RFC 2883). The time between these answers is
 * that of a full packet on the slowest link (packet dispersion: Keshav, "A control-theoretic approach to flow control",
 * SIGCOMM 1991).
 */
#ifndef PLAIT_SCHEDULER_PROBE_H
#define PLAIT_SCHEDULER_PROBE_H

#include "known_paths.h"

/* Packets of a train: some more than needed, as they may be lost. */
#define PROBE_PACKETS 5
#define MIN_ANSWERS 3
/*
 * Acknowledgments that precede the first train of a subflow: its client resets it if other segments arrive before the
 * server's acknowledgment of the handshake (RFC 8684, section 3.2), which may be lost.
 */
#define ACKS_BEFORE_PROBE 3

struct probe {
	__u32 is_sending; /* the next acknowledgment is to be filled up */
	__u32 sent;	  /* packets filled up */
	__u32 payload;	  /* bytes of data in a full segment */
	/* Segments that the peer reported to have received twice: before the train, and with its first answer. */
	__u32 dsacks_before, dsacks_first;
	__u32 first; /* us: when that was; 0: no answer yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct probe);
} probes SEC(".maps");

static __always_inline void send_acks(struct sock *sk, int number)
{
	for (int i = 0; i < number; i++)
		bpf_tcp_send_ack(sk, ((struct tcp_sock *)sk)->rcv_nxt);
}

/* Returns 0 if the rate cannot be measured so: no program is at the interface, or an earlier train was not answered. */
static __always_inline int send_probe(struct sock *sk)
{
	struct probe *probe = bpf_sk_storage_get(&probes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);

	if (!probe || (probe->sent && !probe->first))
		return 0;
	if (!state->is_probed)
		send_acks(sk, ACKS_BEFORE_PROBE);
	state->is_probed = 1;
	probe->sent = probe->first = 0;
	probe->dsacks_before = tcp->dsack_dups;
	probe->payload = tcp->mss_cache;
	for (int i = 0; i < PROBE_PACKETS; i++) {
		probe->is_sending = 1;
		send_acks(sk, 1);
		probe->is_sending = 0;
		if (!probe->sent)
			return 0;
	}
	return 1;
}

/* At each acknowledgment of an idle subflow. */
static __always_inline void measure_probe(struct sock *sk)
{
	struct probe *probe = bpf_sk_storage_get(&probes, sk, 0, 0);
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u32 now = tcp->tcp_mstamp, answers;
	__u64 rate;

	if (!probe || !probe->sent || tcp->dsack_dups == probe->dsacks_before)
		return;
	if (!probe->first) {
		probe->first = now ?: 1;
		probe->dsacks_first = tcp->dsack_dups;
		return;
	}
	answers = tcp->dsack_dups - probe->dsacks_first;
	if (answers < MIN_ANSWERS - 1 || answers >= PROBE_PACKETS)
		return;
	rate = (__u64)answers * probe->payload * SECOND / (now - probe->first ?: 1);
	state->rate = rate < ~0u ? rate : ~0u;
	state->measured = mark(tcp);
	remember_path(sk);
}

#endif
