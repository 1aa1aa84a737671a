// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Lets the connections that the kernel module protects begin by the trusted interface: before the first
 * subflow of an MPTCP socket connects, it is bound to that. Further subflows, which the path manager binds,
 * are left alone.
 *
 * Attached to the control group of a rule of the module. Connections that the module will not protect,
 * because their socket is TCP's or older than the rule, are counted, and refused where protection is
 * required.
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

/* How many connections were none of the module's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} strangers SEC(".maps");

static __always_inline enum verdict pass_stranger(const struct plait_trusted_settings *written)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&strangers, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
	return written->require ? REFUSE : ALLOW;
}

static __always_inline enum verdict begin(struct bpf_sock_addr *ctx)
{
	struct plait_trusted_settings *written;
	struct mptcp_sock *msk;
	__u32 zero = 0;

	written = bpf_map_lookup_elem(&settings, &zero);
	if (!written || ctx->type != SOCK_STREAM || ctx->protocol != IPPROTO_TCP || !ctx->sk)
		return ALLOW;
	msk = (struct mptcp_sock *)bpf_skc_to_mptcp_sock(ctx->sk);
	if (msk && (__u64)msk->first != (__u64)ctx->sk)
		return ALLOW;
	if (!selects(&written->selection, ctx->sk->mark, bpf_ntohs(ctx->user_port)))
		return ALLOW;
	if (!msk || (written->selection.taken && !is_taken(msk)))
		return pass_stranger(written);
	if (!written->interface[0])
		return ALLOW;
	return bpf_setsockopt(ctx, SOL_SOCKET, SO_BINDTODEVICE, written->interface,
			      sizeof(written->interface))
		   ? REFUSE
		   : ALLOW;
}

SEC("cgroup/connect4")
int begin_connect4(struct bpf_sock_addr *ctx)
{
	return is_loopback_v4(ctx->user_ip4) ? ALLOW : begin(ctx);
}

SEC("cgroup/connect6")
int begin_connect6(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};

	return is_loopback_v6(address) ? ALLOW : begin(ctx);
}

char _license[] SEC("license") = "Dual MIT/GPL";
