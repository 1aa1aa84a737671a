// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Applies the rate of the actor `pace` to the sockets of this host: the kernel paces the subflow
 * (SO_MAX_PACING_RATE), so that no packet is dropped or delayed elsewhere.
 *
 * Attached to the root control group, as a policy applies to all programs; it therefore sees the sockets of all
 * network namespaces, and ignores those of others. With each round-trip time measurement, a socket gets the
 * rate last set for its subflow, or its previous rate if none is set any more.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "kernel.h"
#include "flows_map.h"

#define NO_PACE 0xffffffffu
/* A rate expires this long, plus a round trip, after the last packet that set it. */
#define PACE_TIMEOUT 1000000000ull

/* The network namespace whose sockets these are (SO_NETNS_COOKIE). */
const volatile __u64 network;

/* Bytes per second. */
struct paced {
	__u32 before;
	/* 0: not yet. */
	__u32 now;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct paced);
} paced SEC(".maps");

/* On kernels without the helper (before 5.19), all TCP sockets count. */
static __always_inline int is_subflow(struct bpf_sock *socket)
{
	return !bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_skc_to_mptcp_sock) ||
	       bpf_skc_to_mptcp_sock(socket);
}

static __always_inline __u64 address_half(__u32 first, __u32 second)
{
	return (__u64)bpf_ntohl(first) << 32 | bpf_ntohl(second);
}

/* The context allows only 32-bit reads: volatile prevents the compiler from combining them. */
static __always_inline void name_flow(volatile struct bpf_sock_ops *ctx, struct plait_flow_key *flow)
{
	if (ctx->family == AF_INET) {
		flow->local[0] = 0;
		flow->local[1] = address_half(bpf_htonl(0xffff), ctx->local_ip4);
		flow->remote[0] = 0;
		flow->remote[1] = address_half(bpf_htonl(0xffff), ctx->remote_ip4);
		/* The branches must not share a load: the verifier does not follow a computed address in the context. */
		asm volatile("");
	} else {
		flow->local[0] = address_half(ctx->local_ip6[0], ctx->local_ip6[1]);
		flow->local[1] = address_half(ctx->local_ip6[2], ctx->local_ip6[3]);
		flow->remote[0] = address_half(ctx->remote_ip6[0], ctx->remote_ip6[1]);
		flow->remote[1] = address_half(ctx->remote_ip6[2], ctx->remote_ip6[3]);
	}
	flow->local_port = ctx->local_port;
	flow->remote_port = bpf_ntohl(ctx->remote_port);
	flow->padding = 0;
}

/* The rate set for the socket's subflow now. */
static __always_inline __u32 pace_of(struct bpf_sock_ops *ctx)
{
	struct plait_flow_key name;
	struct plait_flow *flow;
	__u64 timeout;

	name_flow(ctx, &name);
	flow = bpf_map_lookup_elem(&flows, &name);
	if (!flow || !flow->pace)
		return NO_PACE;
	/* srtt_us is in 1/8 us. */
	timeout = PACE_TIMEOUT + (__u64)(ctx->srtt_us >> 3) * 1000;
	if (bpf_ktime_get_ns() > flow->pace_nanoseconds + timeout)
		return NO_PACE;
	return flow->pace < NO_PACE ? flow->pace : NO_PACE;
}

static __always_inline void set_pace(struct bpf_sock_ops *ctx, struct bpf_sock *socket)
{
	__u32 wanted = pace_of(ctx);
	struct paced *rates;

	rates = bpf_sk_storage_get(&paced, socket, 0, wanted == NO_PACE ? 0 : BPF_SK_STORAGE_GET_F_CREATE);
	if (!rates || rates->now == wanted)
		return;
	if (wanted == NO_PACE) {
		wanted = rates->before;
		bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &wanted, sizeof(wanted));
		bpf_sk_storage_delete(&paced, socket);
		return;
	}
	/* Fails before kernel 6.1. */
	if (!rates->now &&
	    bpf_getsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &rates->before, sizeof(rates->before)))
		rates->before = NO_PACE;
	if (!bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &wanted, sizeof(wanted)))
		rates->now = wanted;
}

SEC("sockops")
int pace(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *socket = ctx->sk;

	if (!socket || bpf_get_netns_cookie(ctx) != network)
		return 1;
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (is_subflow(socket))
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		set_pace(ctx, socket);
		break;
	}
	return 1;
}

/* Enables the measurements for existing subflows, since Linux 6.12. */
SEC("iter/tcp")
int adopt(struct bpf_iter__tcp *ctx)
{
	struct sock_common *socket = ctx->sk_common;
	struct tcp_sock *tcp;
	int flags = 0;

	if (!socket)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || !tcp->is_mptcp)
		return 0;
	if (bpf_getsockopt(tcp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		return 0;
	flags |= BPF_SOCK_OPS_RTT_CB_FLAG;
	bpf_setsockopt(tcp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
	return 0;
}

/* Restores the previous rate of every socket. */
SEC("iter/tcp")
int restore(struct bpf_iter__tcp *ctx)
{
	struct sock_common *socket = ctx->sk_common;
	struct paced *rates;
	struct tcp_sock *tcp;
	__u32 before;

	if (!socket)
		return 0;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || !tcp->is_mptcp)
		return 0;
	rates = bpf_sk_storage_get(&paced, tcp, 0, 0);
	if (!rates)
		return 0;
	before = rates->before;
	bpf_setsockopt(tcp, SOL_SOCKET, SO_MAX_PACING_RATE, &before, sizeof(before));
	bpf_sk_storage_delete(&paced, tcp);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
