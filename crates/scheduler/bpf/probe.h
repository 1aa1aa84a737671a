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

#include "gate.h"
#include "known_paths.h"

/* Packets of a train: some more than needed, as they may be lost. */
#define PROBE_PACKETS 5
#define MIN_ANSWERS 3
/*
 * Acknowledgments that precede the first train of a subflow: its client resets it if other segments arrive before the
 * server's acknowledgment of the handshake (RFC 8684, section 3.2), which may be lost.
 */
#define ACKS_BEFORE_PROBE 3

/* No round trip takes longer, ms. */
#define MAX_RTT 60000

/* Acknowledgments that a closed subflow asks for in a second; each takes two small packets. */
#define MAX_REQUESTS 20

struct probe {
	__u32 is_sending; /* the next acknowledgment is to be filled up */
	__u32 sent;	  /* packets filled up */
	__u32 payload;	  /* bytes of data in a full segment */
	__u32 start;	  /* us: when the train was sent */
	/* Segments that the peer reported to have received twice: before the train or request, and with the train's first answer. */
	__u32 dsacks_before, dsacks_first;
	__u32 first;	  /* us: when the first answer arrived; 0: none yet */
	__u32 peer_first; /* the peer's timestamp in it */
	__u32 rtt;	  /* us: of the last train or request that was answered; 0: none was */
	__u32 requests;	  /* acknowledgments asked for in a second */
	__u32 requesting; /* us: when that second began */
	__u32 requested;  /* us: when the one was asked for that is not answered; 0: there is none */
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

/*
 * The time from the first answer to this one, in us. The answers may arrive closer together than the peer sent them, if
 * they waited for other packets; the peer's timestamps tell, usually in ms (RFC 7323, section 4.1). No unit is less.
 */
static __always_inline __u32 answer_time(struct tcp_sock *tcp, const struct probe *probe)
{
	__u32 now = tcp->tcp_mstamp, elapsed = now - probe->first;
	__u64 peer = (__u64)(tcp->rx_opt.rcv_tsval - probe->peer_first) * 1000;

	/* Less a tick, which may have begun before the first. */
	if (peer > elapsed + 1000 && peer <= now - probe->start)
		elapsed = peer - 1000;
	return elapsed ?: 1;
}

static __always_inline void begin(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	if (!state->is_probed)
		send_acks(sk, ACKS_BEFORE_PROBE);
	state->is_probed = 1;
}

/*
 * Has the peer send an acknowledgment, by a segment of one byte that it has: a closed subflow of a busy connection then
 * decides again a round trip later. Not while a train is being measured.
 */
static __always_inline void request_ack(struct sock *sk, __u32 rtt)
{
	struct probe *probe = bpf_sk_storage_get(&probes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 now = tcp->tcp_mstamp;

	if (!probe || (probe->sent && now - probe->start < SECOND))
		return;
	if (now - probe->requesting >= SECOND) {
		probe->requesting = now;
		probe->requests = 0;
	}
	if (probe->requests >= MAX_REQUESTS)
		return;
	/* Other acknowledgments may come before the answer to the last. */
	if (probe->requested && now - probe->requested < rtt / 2)
		return;
	begin(sk);
	probe->requests++;
	probe->requested = now ?: 1;
	probe->dsacks_before = tcp->dsack_dups;
	probe->sent = 0;
	probe->payload = 0;
	probe->is_sending = 1;
	send_acks(sk, 1);
	probe->is_sending = 0;
	probe->sent = 0;
}

/*
 * Measures the round trip from the segment whose timestamp the peer echoes (RFC 7323, section 4.3), as several requests may be answered late on a
 * path that was fast before; in ms, rounded up.
 */
static __always_inline void measure_request(struct tcp_sock *tcp, struct probe *probe)
{
	__u32 echoed = tcp->rx_opt.rcv_tsecr, ms = (__u32)(tcp->tcp_mstamp / 1000) - echoed + 1;

	if (!probe->requested || tcp->dsack_dups == probe->dsacks_before)
		return;
	probe->requested = 0;
	/* Without timestamps there is none, and some hosts use other units. */
	if (echoed && ms < MAX_RTT)
		probe->rtt = ms * 1000;
}

/*
 * The time may be less than that of the handshake, which is all that the kernel measures without data: the first packet may have waited
 * for a modem to leave its idle state, or for ARP.
 */
static __always_inline void correct_rtt(struct sock *sk, struct plait_path *path)
{
	struct probe *probe = bpf_sk_storage_get(&probes, sk, 0, 0);

	if (!probe || !probe->rtt || ((struct tcp_sock *)sk)->packets_out)
		return;
	if (probe->rtt < path->rtt)
		path->rtt = probe->rtt;
}

/* Returns 0 if the rate cannot be measured so: no program is at the interface, or an earlier train was not answered. */
static __always_inline int send_probe(struct sock *sk)
{
	struct probe *probe = bpf_sk_storage_get(&probes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);

	if (!probe || (probe->sent && !probe->first))
		return 0;
	begin(sk);
	probe->requested = 0;
	probe->sent = probe->first = 0;
	probe->start = tcp->tcp_mstamp;
	probe->dsacks_before = tcp->dsack_dups;
	probe->payload = tcp->mss_cache;
	for (int i = 0; i < PROBE_PACKETS; i++) {
		probe->is_sending = 1;
		send_acks(sk, 1);
		probe->is_sending = 0;
		if (!probe->sent)
			return 0;
	}
	state->measured = mark(tcp);
	return 1;
}

/*
 * At each acknowledgment. Returns 1 if the rate was measured. Later answers are those to keepalive
 * probes, which are sent after a second.
 */
static __always_inline int measure_probe(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);
	struct probe *probe = state->is_probed ? bpf_sk_storage_get(&probes, sk, 0, 0) : NULL;
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	__u32 now = tcp->tcp_mstamp, answers;
	__u64 rate;

	if (!probe)
		return 0;
	measure_request(tcp, probe);
	if (!probe->sent || tcp->dsack_dups == probe->dsacks_before || now - probe->start > SECOND)
		return 0;
	if (!probe->first) {
		probe->first = now ?: 1;
		probe->rtt = now - probe->start ?: 1;
		probe->peer_first = tcp->rx_opt.rcv_tsval;
		probe->dsacks_first = tcp->dsack_dups;
		return 0;
	}
	answers = tcp->dsack_dups - probe->dsacks_first;
	if (answers < MIN_ANSWERS - 1 || answers >= PROBE_PACKETS)
		return 0;
	if (answers == PROBE_PACKETS - 1)
		probe->sent = 0;
	rate = (__u64)answers * probe->payload * SECOND / answer_time(tcp, probe);
	state->rate = rate < ~0u ? rate : ~0u;
	state->measured = mark(tcp);
	remember_path(sk);
	return 1;
}

/*
 * Ends slow start before a subflow that has not sent data yet has twice in flight what its path holds at the rate that a train measured: data of
 * others would wait for what a short queue loses. Not by a rate of earlier connections, which may have sent less than they could.
 */
static __always_inline void set_threshold(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct probe *probe;
	__u64 segments;

	if (state->window || !state->rate || !state->is_probed)
		return;
	probe = bpf_sk_storage_get(&probes, sk, 0, 0);
	if (!probe || !probe->rtt)
		return;
	segments = 2ull * state->rate * probe->rtt / SECOND / (tcp->mss_cache ?: 1);
	if (segments < tcp->snd_cwnd)
		segments = tcp->snd_cwnd;
	if (segments < tcp->snd_ssthresh)
		tcp->snd_ssthresh = segments;
}

#endif
