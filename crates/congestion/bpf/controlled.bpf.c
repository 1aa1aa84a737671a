// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Writes a record for each socket of this network namespace that belongs to an MPTCP connection, or uses an
 * algorithm of these.
 */
#include "kernel.h"
#include "intf.h"
#include "memory.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#define AF_INET6 10
#define TCP_LISTEN 10

static const char prefix[] = "plait_";

static __always_inline int is_ours(const __u8 *name)
{
	for (int i = 0; i < (int)sizeof(prefix) - 1; i++)
		if (name[i] != (__u8)prefix[i])
			return 0;
	return 1;
}

/* Of the algorithm whose memory it is. */
static __always_inline int is_olia(const __u8 *name)
{
	return is_ours(name) && name[6] == 'o' && name[7] == 'l' && name[8] == 'i' && name[9] == 'a' &&
	       !name[10];
}

static __always_inline void write_addresses(struct sock_common *socket, struct plait_controlled *record)
{
	record->family = socket->skc_family;
	record->local_port = socket->skc_num;
	record->remote_port = bpf_ntohs(socket->skc_dport);
	if (record->family == AF_INET6) {
		BPF_CORE_READ_INTO(&record->local_address, socket, skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&record->remote_address, socket, skc_v6_daddr);
	} else {
		__builtin_memcpy(record->local_address, (__be32[]){socket->skc_rcv_saddr}, 4);
		__builtin_memcpy(record->remote_address, (__be32[]){socket->skc_daddr}, 4);
	}
}

SEC("iter/tcp")
int controlled(struct bpf_iter__tcp *ctx)
{
	struct sock_common *socket = ctx->sk_common;
	struct plait_controlled record = {};
	struct tcp_sock *tcp;

	if (!socket)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || socket->skc_state == TCP_LISTEN)
		return 0;
	if (tcp->is_mptcp) {
		struct mptcp_subflow_context *subflow = tcp->inet_conn.icsk_ulp_data;
		struct mptcp_sock *connection = (struct mptcp_sock *)BPF_CORE_READ(subflow, conn);

		record.token = BPF_CORE_READ(connection, token);
	}
	BPF_CORE_READ_STR_INTO(&record.algorithm, tcp, inet_conn.icsk_ca_ops, name);
	if (!record.token && !is_ours(record.algorithm))
		return 0;
	if (is_olia(record.algorithm))
		record.transmitted = transmitted(tcp->bytes_acked, tcp->inet_conn.icsk_ca_priv[1],
						 tcp->inet_conn.icsk_ca_priv[2]);
	record.window = tcp->snd_cwnd;
	record.threshold = tcp->snd_ssthresh;
	record.rtt = tcp->srtt_us;
	record.state = socket->skc_state;
	write_addresses(socket, &record);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
