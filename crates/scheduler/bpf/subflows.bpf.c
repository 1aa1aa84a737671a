// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Writes a record for each subflow of this network namespace whose algorithm is one of plait's. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "addresses.h"
#include "algorithm.h"
#include "intf.h"
#include "kernel.h"
#include "subflow_state.h"

SEC("iter/tcp")
int list_subflows(struct bpf_iter__tcp *ctx)
{
	struct sock_common *socket = ctx->sk_common;
	struct plait_subflow record = {};
	struct subflow_state *state;
	unsigned long max_rate;
	struct tcp_sock *tcp;

	if (!socket)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || !tcp->is_mptcp || socket->skc_state == BPF_TCP_LISTEN)
		return 0;
	BPF_CORE_READ_STR_INTO(&record.algorithm, tcp, inet_conn.icsk_ca_ops, name);
	if (!is_plait(record.algorithm))
		return 0;
	state = state_of((struct sock *)tcp);
	record.rate = state->rate;
	record.reason = state->reason;
	record.is_measuring = state->gate == GATE_TRIAL || state->gate == GATE_MEASURING;
	max_rate = ((struct sock *)tcp)->sk_max_pacing_rate;
	record.max_rate = record.is_measuring ? 0 : max_rate < PLAIT_UNLIMITED ? max_rate : PLAIT_UNLIMITED;
	record.family = socket->skc_family;
	record.local_port = socket->skc_num;
	record.remote_port = bpf_ntohs(socket->skc_dport);
	read_addresses(socket, record.local_address, record.remote_address);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
