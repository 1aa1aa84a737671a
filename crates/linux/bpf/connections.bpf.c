// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Writes a record for each subflow of this network namespace. The keys of a connection can be had in no other
 * way: no socket option gives them.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "addresses.h"
#include "kernel.h"
#include "intf.h"

SEC("iter/tcp")
int connections(struct bpf_iter__tcp *ctx)
{
	struct sock_common *socket = ctx->sk_common;
	struct plait_subflow record = {};
	struct mptcp_subflow_context *subflow;
	struct mptcp_sock *connection;
	struct tcp_sock *tcp;

	if (!socket)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || !tcp->is_mptcp)
		return 0;
	/* By reads that may fail: a type for these pointers is not to be had before kernel 6.2. */
	subflow = tcp->inet_conn.icsk_ulp_data;
	connection = (struct mptcp_sock *)BPF_CORE_READ(subflow, conn);
	record.token = BPF_CORE_READ(connection, token);
	/* A listening socket has none yet. */
	if (!record.token)
		return 0;

	record.local_key = BPF_CORE_READ(connection, local_key);
	record.remote_key = BPF_CORE_READ(connection, remote_key);
	if (bpf_core_field_exists(connection->bytes_sent)) {
		record.connection_counts = 1;
		record.connection_bytes_sent = BPF_CORE_READ(connection, bytes_sent);
		record.connection_bytes_received = BPF_CORE_READ(connection, bytes_received);
	}
	record.bytes_sent = tcp->bytes_sent;
	record.bytes_received = tcp->bytes_received;

	record.state = socket->skc_state;
	record.family = socket->skc_family;
	record.local_port = socket->skc_num;
	record.remote_port = bpf_ntohs(socket->skc_dport);
	read_addresses(socket, record.local_address, record.remote_address);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
