// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Starts the connections that the kernel module protects on the trusted interface: binds the initial subflow
 * of an MPTCP socket to it before it connects. Further subflows, which the path manager binds, are not
 * changed.
 *
 * Attached to the control group of a rule of the module. Connections that the module cannot protect, because
 * their socket is a TCP socket or older than the rule, are counted, and refused if protection is required.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "constants.h"
#include "intf.h"
#include "loopback.h"
#include "selection.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_trusted_settings);
} settings SEC(".maps");

/* The number of connections that the module cannot protect. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} unprotected SEC(".maps");

static __always_inline enum verdict judge_unprotected(const struct plait_trusted_settings *config)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&unprotected, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
	return config->require ? REFUSE : ALLOW;
}

static __always_inline enum verdict connect_trusted(struct bpf_sock_addr *ctx)
{
	struct plait_trusted_settings *config;
	struct mptcp_sock *msk;
	__u32 zero = 0;
	__u64 first;

	config = bpf_map_lookup_elem(&settings, &zero);
	if (!config || ctx->type != SOCK_STREAM || ctx->protocol != IPPROTO_TCP || !ctx->sk)
		return ALLOW;
	msk = (struct mptcp_sock *)bpf_skc_to_mptcp_sock(ctx->sk);
	if (msk) {
		first = (__u64)msk->first;
		/* The compiler must not read ctx->sk through this pointer, which the verifier takes for another type. */
		barrier_var(first);
		if (first != (__u64)ctx->sk)
			return ALLOW;
	}
	if (!selects(&config->selection, ctx->sk->mark, bpf_ntohs(ctx->user_port)))
		return ALLOW;
	if (!msk || (config->selection.taken && !is_taken(msk)))
		return judge_unprotected(config);
	if (!config->interface[0])
		return ALLOW;
	return bpf_setsockopt(ctx, SOL_SOCKET, SO_BINDTODEVICE, config->interface, sizeof(config->interface))
		   ? REFUSE
		   : ALLOW;
}

SEC("cgroup/connect4")
int begin_connect4(struct bpf_sock_addr *ctx)
{
	return is_loopback_v4(ctx->user_ip4) ? ALLOW : connect_trusted(ctx);
}

SEC("cgroup/connect6")
int begin_connect6(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};

	return is_loopback_v6(address) ? ALLOW : connect_trusted(ctx);
}

char _license[] SEC("license") = "Dual MIT/GPL";
