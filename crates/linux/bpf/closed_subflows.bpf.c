// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Queues the final statistics of each subflow at the moment it is closed. Later is too late for some: MPTCP
 * resets the initial subflow of an accepted connection before the kernel reports that it is freed.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "addresses.h"
#include "kernel.h"
#include "intf.h"

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 16384);
	__type(value, struct plait_closed_subflow);
} closed SEC(".maps");

/* The number of subflows closed while the queue was full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* Inode of the network namespace whose subflows are reported. */
const volatile __u32 namespace_inode;

SEC("tp_btf/inet_sock_set_state")
int on_state_change(__u64 *arguments)
{
	/* The socket, its old state, its new state. */
	struct sock *socket = (struct sock *)arguments[0];
	int new_state = arguments[2];
	struct plait_closed_subflow record = {};
	struct mptcp_subflow_context *subflow;
	struct tcp_sock *tcp;
	__u32 first = 0;
	__u64 *count;

	if (new_state != BPF_TCP_CLOSE)
		return 0;
	if (BPF_CORE_READ(socket, __sk_common.skc_net.net, ns.inum) != namespace_inode)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || !tcp->is_mptcp)
		return 0;
	/* By reads that may fail: these pointers have no type in the verifier before kernel 6.2. */
	subflow = tcp->inet_conn.icsk_ulp_data;
	/* The subflow's token: that of the connection may be reset already. */
	record.token = BPF_CORE_READ(subflow, token);
	/* A listening socket has no token. */
	if (!record.token)
		return 0;
	record.joined = BPF_CORE_READ_BITFIELD_PROBED(subflow, request_join) ||
			BPF_CORE_READ_BITFIELD_PROBED(subflow, mp_join);

	record.cookie = bpf_get_socket_cookie(socket);
	record.bytes_sent = tcp->bytes_sent;
	record.bytes_acked = tcp->bytes_acked;
	record.bytes_received = tcp->bytes_received;
	record.bytes_retransmitted = tcp->bytes_retrans;
	record.retransmissions = tcp->total_retrans;
	record.rtt_us = tcp->srtt_us >> 3;
	record.rtt_variance_us = tcp->mdev_us >> 2;
	record.cwnd = tcp->snd_cwnd;
	record.mss = tcp->mss_cache;
	record.segments_sent = tcp->segs_out;
	record.segments_received = tcp->segs_in;

	record.family = socket->__sk_common.skc_family;
	record.local_port = socket->__sk_common.skc_num;
	record.remote_port = bpf_ntohs(socket->__sk_common.skc_dport);
	read_addresses(&socket->__sk_common, record.local_address, record.remote_address);
	if (bpf_map_push_elem(&closed, &record, 0)) {
		count = bpf_map_lookup_elem(&lost, &first);
		if (count)
			__sync_fetch_and_add(count, 1);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
