// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Gives each new subflow the size of its connection's receive buffer, as far as net.core.rmem_max permits. The kernel
 * leaves it the initial one (net.ipv4.tcp_rmem) until the connection outgrows its own; see mptcp_rcv_space_adjust().
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "kernel.h"

SEC("sockops")
int size_subflow_receive_buffer(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct mptcp_sock *msk;
	struct tcp_sock *tcp;
	__u32 own, size;

	if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	msk = sk ? (struct mptcp_sock *)bpf_skc_to_mptcp_sock(sk) : NULL;
	tcp = sk ? (struct tcp_sock *)bpf_skc_to_tcp_sock(sk) : NULL;
	if (!msk || !tcp)
		return 1;
	own = BPF_CORE_READ((struct sock *)tcp, sk_rcvbuf);
	size = BPF_CORE_READ((struct sock *)msk, sk_rcvbuf);
	if (size > own) {
		/* The kernel doubles it, for the overhead of packets. */
		size /= 2;
		bpf_setsockopt(ctx, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	}
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
