// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Makes every socket of a control group use an algorithm: sockets that connect, sockets that are accepted,
 * and the subflows that the kernel creates for them, which belong to the group of their connection.
 *
 * After a joined subflow is established, the kernel may set it once more to the algorithm of its connection's
 * socket; so subflows are checked with each round-trip time measurement.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "intf.h"

const volatile char algorithm[PLAIT_ALGORITHM_NAME_LENGTH];

/* The scheduler that the subflow used so far may have closed it, and would not open it any more. */
static __always_inline void open_subflow(struct bpf_sock_ops *ctx)
{
	__u32 rate = 0, unlimited = ~0u, none = 0;

	if (bpf_getsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)) || rate)
		return;
	bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &unlimited, sizeof(unlimited));
	bpf_setsockopt(ctx, SOL_TCP, TCP_NOTSENT_LOWAT, &none, sizeof(none));
}

static __always_inline void set_algorithm(struct bpf_sock_ops *ctx)
{
	char name[PLAIT_ALGORITHM_NAME_LENGTH];

	open_subflow(ctx);
	for (int i = 0; i < PLAIT_ALGORITHM_NAME_LENGTH; i++)
		name[i] = algorithm[i];
	/* Fails if the algorithm is no longer loaded; the socket then keeps the one it has. */
	bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
}

static __always_inline int uses_algorithm(struct bpf_sock_ops *ctx)
{
	char name[PLAIT_ALGORITHM_NAME_LENGTH] = {};

	if (bpf_getsockopt(ctx, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 1;
	for (int i = 0; i < PLAIT_ALGORITHM_NAME_LENGTH && name[i] == algorithm[i]; i++)
		if (!name[i])
			return 1;
	return 0;
}

SEC("sockops")
int assign(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *socket = ctx->sk;

	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		set_algorithm(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		set_algorithm(ctx);
		if (socket && bpf_skc_to_mptcp_sock(socket))
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		if (!uses_algorithm(ctx))
			set_algorithm(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
