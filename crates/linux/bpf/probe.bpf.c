// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * One small program for each kernel feature that plait's programs need. Each is loaded, and attached to an
 * empty cgroup or an unused link; if the kernel rejects it, the feature is missing. They change nothing.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

struct mptcp_sock;

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, int);
} storage SEC(".maps");

SEC("sockops")
int nothing(struct bpf_sock_ops *ctx)
{
	(void)ctx;
	return 1;
}

SEC("sockops")
int header_option(struct bpf_sock_ops *ctx)
{
	__u8 option[4] = {254, 4};

	if (ctx->op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		bpf_reserve_hdr_opt(ctx, sizeof(option), 0);
	if (ctx->op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB)
		bpf_store_hdr_opt(ctx, option, sizeof(option), 0);
	if (ctx->op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB)
		bpf_load_hdr_opt(ctx, option, sizeof(option), 0);
	return 1;
}

SEC("sockops")
int socket_storage(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *socket = ctx->sk;

	if (socket)
		bpf_sk_storage_get(&storage, socket, 0, 0);
	return 1;
}

SEC("sockops")
int mptcp_socket(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *socket = ctx->sk;
	struct mptcp_sock *connection = socket ? bpf_skc_to_mptcp_sock(socket) : NULL;

	if (connection)
		bpf_sk_storage_get(&storage, connection, 0, 0);
	return 1;
}

#define WRITE_PORT(hook)                                                                                     \
	SEC("cgroup/" #hook)                                                                                 \
	int hook(struct bpf_sock_addr *ctx)                                                                  \
	{                                                                                                    \
		ctx->user_port = ctx->user_port;                                                             \
		return 1;                                                                                    \
	}

WRITE_PORT(connect4)
WRITE_PORT(connect6)
WRITE_PORT(getpeername4)
WRITE_PORT(getpeername6)

SEC("xdp")
int xdp_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

SEC("tc")
int tc_pass(struct __sk_buff *ctx)
{
	(void)ctx;
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
