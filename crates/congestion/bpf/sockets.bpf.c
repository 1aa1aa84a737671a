// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Writes a record for each socket of this network namespace that belongs to an MPTCP connection or uses one
 * of plait's algorithms.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "addresses.h"
#include "algorithm.h"
#include "kernel.h"
#include "intf.h"
#include "subflow_state.h"

/* Only OLIA keeps the bytes at losses. */
static __always_inline int is_olia(const __u8 *name)
{
	return is_plait(name) && name[6] == 'o' && name[7] == 'l' && name[8] == 'i' && name[9] == 'a' &&
	       !name[10];
}

SEC("iter/tcp")
int list_sockets(struct bpf_iter__tcp *ctx)
{
	struct sock_common *socket = ctx->sk_common;
	struct plait_cc_socket record = {};
	struct tcp_sock *tcp;

	if (!socket)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || socket->skc_state == BPF_TCP_LISTEN)
		return 0;
	if (tcp->is_mptcp) {
		struct mptcp_subflow_context *subflow = tcp->inet_conn.icsk_ulp_data;
		struct mptcp_sock *connection = (struct mptcp_sock *)BPF_CORE_READ(subflow, conn);

		record.token = BPF_CORE_READ(connection, token);
	}
	BPF_CORE_READ_STR_INTO(&record.algorithm, tcp, inet_conn.icsk_ca_ops, name);
	if (!record.token && !is_plait(record.algorithm))
		return 0;
	if (is_olia(record.algorithm))
		record.transmitted = transmitted(tcp->bytes_acked, tcp->inet_conn.icsk_ca_priv[1],
						 tcp->inet_conn.icsk_ca_priv[2]);
	record.window = tcp->snd_cwnd;
	record.threshold = tcp->snd_ssthresh;
	record.rtt = tcp->srtt_us;
	record.state = socket->skc_state;
	record.family = socket->skc_family;
	record.local_port = socket->skc_num;
	record.remote_port = bpf_ntohs(socket->skc_dport);
	read_addresses(socket, record.local_address, record.remote_address);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
