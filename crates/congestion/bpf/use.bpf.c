// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Makes every socket of a control group use an algorithm: those that connect, those that are accepted, and
 * the subflows that the kernel makes for them, which belong to the group of their connection.
 *
 * The kernel may give a subflow that has joined the algorithm of its connection's socket once more, after it
 * was established; so subflows are looked at with each measurement of a round-trip time.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "intf.h"

const volatile char algorithm[PLAIT_ALGORITHM_NAME];

static __always_inline void use_it(struct bpf_sock_ops *ctx)
{
	char name[PLAIT_ALGORITHM_NAME];

	for (int i = 0; i < PLAIT_ALGORITHM_NAME; i++)
		name[i] = algorithm[i];
	/* Where the algorithm is unloaded, the socket keeps what it has. */
	bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
}

static __always_inline int is_used(struct bpf_sock_ops *ctx)
{
	char name[PLAIT_ALGORITHM_NAME] = {};

	if (bpf_getsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 1;
	for (int i = 0; i < PLAIT_ALGORITHM_NAME && name[i] == algorithm[i]; i++)
		if (!name[i])
			return 1;
	return 0;
}

SEC("sockops")
int use(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *socket = ctx->sk;

	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		use_it(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		use_it(ctx);
		if (socket && bpf_skc_to_mptcp_sock(socket))
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		if (!is_used(ctx))
			use_it(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
