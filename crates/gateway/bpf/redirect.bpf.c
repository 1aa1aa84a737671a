// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Leads the TCP connections of one program to the gateway's listeners on loopback, and hides that from the
 * program.
 *
 * Attached to a cgroup that holds only the program. connect() is pointed at the listener, the original
 * destination is kept in the socket's storage (for getpeername) and published under the socket's local port
 * (for the gateway).
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "constants.h"
#include "intf.h"
#include "loopback.h"

#define PORT_DNS 53

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_redirect_settings);
} settings SEC(".maps");

/* Survives until the socket is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct plait_destination);
} destinations SEC(".maps");

/* Survives until the gateway has accepted; one that it never accepts is evicted in time. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct plait_client);
	__type(value, struct plait_destination);
} arrivals SEC(".maps");

static __always_inline struct plait_redirect_settings read_settings(void)
{
	struct plait_redirect_settings *written, none = {};
	__u32 zero = 0;

	written = bpf_map_lookup_elem(&settings, &zero);
	return written ? *written : none;
}

static __always_inline int is_stream(struct bpf_sock_addr *ctx)
{
	return ctx->type == SOCK_STREAM && (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_MPTCP);
}

static __always_inline enum verdict other_traffic(struct bpf_sock_addr *ctx)
{
	if (!read_settings().require || ctx->user_port == bpf_htons(PORT_DNS) || !ctx->user_port)
		return ALLOW;
	return ctx->type == SOCK_DGRAM ? REFUSE : ALLOW;
}

static __always_inline enum verdict keep(struct bpf_sock_addr *ctx,
					 const struct plait_destination *destination)
{
	struct plait_destination *kept;

	if (!ctx->sk)
		return REFUSE;
	kept = bpf_sk_storage_get(&destinations, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		return REFUSE;
	*kept = *destination;
	return ALLOW;
}

/* A socket that is used again goes where it says now. */
static __always_inline enum verdict forget(struct bpf_sock_addr *ctx)
{
	if (ctx->sk)
		bpf_sk_storage_delete(&destinations, ctx->sk);
	return ALLOW;
}

SEC("cgroup/connect4")
int redirect_connect4(struct bpf_sock_addr *ctx)
{
	struct plait_destination destination = {
	    .address = {ctx->user_ip4},
	    .port = ctx->user_port,
	    .family = AF_INET,
	};
	struct plait_redirect_settings written = read_settings();

	if (is_loopback_v4(ctx->user_ip4))
		return forget(ctx);
	if (!is_stream(ctx))
		return other_traffic(ctx);
	if (!written.listener_v4)
		return written.require ? REFUSE : ALLOW;
	if (keep(ctx, &destination) == REFUSE)
		return REFUSE;
	ctx->user_ip4 = bpf_htonl(0x7f000001);
	ctx->user_port = written.listener_v4;
	return ALLOW;
}

SEC("cgroup/connect6")
int redirect_connect6(struct bpf_sock_addr *ctx)
{
	struct plait_destination destination = {
	    .address = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]},
	    .port = ctx->user_port,
	    .family = AF_INET6,
	};
	struct plait_redirect_settings written = read_settings();
	int mapped = is_mapped(destination.address);
	__u16 listener = mapped ? written.listener_v4 : written.listener_v6;

	if (is_loopback_v6(destination.address))
		return forget(ctx);
	if (!is_stream(ctx))
		return other_traffic(ctx);
	if (!listener)
		return written.require ? REFUSE : ALLOW;
	if (keep(ctx, &destination) == REFUSE)
		return REFUSE;
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = mapped ? MAPPED : 0;
	ctx->user_ip6[3] = mapped ? bpf_htonl(0x7f000001) : bpf_htonl(1);
	ctx->user_port = listener;
	return ALLOW;
}

SEC("cgroup/sendmsg4")
int redirect_sendmsg4(struct bpf_sock_addr *ctx)
{
	return is_loopback_v4(ctx->user_ip4) ? ALLOW : other_traffic(ctx);
}

SEC("cgroup/sendmsg6")
int redirect_sendmsg6(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};

	return is_loopback_v6(address) ? ALLOW : other_traffic(ctx);
}

SEC("cgroup/getpeername4")
int redirect_getpeername4(struct bpf_sock_addr *ctx)
{
	struct plait_destination *kept;

	kept = ctx->sk ? bpf_sk_storage_get(&destinations, ctx->sk, 0, 0) : NULL;
	if (kept) {
		ctx->user_ip4 = kept->address[0];
		ctx->user_port = kept->port;
	}
	return ALLOW;
}

SEC("cgroup/getpeername6")
int redirect_getpeername6(struct bpf_sock_addr *ctx)
{
	struct plait_destination *kept;

	kept = ctx->sk ? bpf_sk_storage_get(&destinations, ctx->sk, 0, 0) : NULL;
	if (kept) {
		ctx->user_ip6[0] = kept->address[0];
		ctx->user_ip6[1] = kept->address[1];
		ctx->user_ip6[2] = kept->address[2];
		ctx->user_ip6[3] = kept->address[3];
		ctx->user_port = kept->port;
	}
	return ALLOW;
}

/* The local port is chosen after the connect hook; here it is known and the SYN has not left yet. */
SEC("sockops")
int redirect_publish(struct bpf_sock_ops *ctx)
{
	struct plait_client client = {.port = ctx->local_port};
	struct plait_destination *kept, *shown;
	struct bpf_sock *sk = ctx->sk;
	struct mptcp_sock *msk;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB || !sk)
		return 1;
	kept = bpf_sk_storage_get(&destinations, sk, 0, 0);
	if (!kept)
		return 1;
	client.ipv6 = kept->family == AF_INET6 && !is_mapped(kept->address);
	if (client.ipv6) {
		client.address[0] = ctx->local_ip6[0];
		client.address[1] = ctx->local_ip6[1];
		client.address[2] = ctx->local_ip6[2];
		client.address[3] = ctx->local_ip6[3];
	} else {
		client.address[0] = ctx->local_ip4;
	}
	bpf_map_update_elem(&arrivals, &client, kept, BPF_ANY);
	/* A program that speaks MPTCP itself asks its MPTCP socket for the peer, not the subflow that
	 * connects. */
	msk = (struct mptcp_sock *)bpf_skc_to_mptcp_sock(sk);
	shown = msk ? bpf_sk_storage_get(&destinations, msk, 0, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
	if (shown)
		*shown = *kept;
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
