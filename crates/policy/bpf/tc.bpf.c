// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Policies at traffic control (TCX or clsact): for outgoing packets, and for incoming packets on interfaces
 * without XDP. Interfaces without Ethernet, such as modems and tunnels, have separate programs.
 */
#define CONTEXT struct __sk_buff
#define STEPS tc_steps
/* Continue with the other programs of the interface, and then the kernel. */
#define PASS_THROUGH TC_ACT_UNSPEC

#include "plait.bpf.h"
#include <bpf/bpf_core_read.h>
#include <linux/pkt_cls.h>
#include "kernel.h"

static __always_inline struct plait_context context_of(struct __sk_buff *ctx)
{
	return (struct plait_context){.skb = ctx};
}

static __always_inline int verdict_of(struct __sk_buff *ctx, const struct plait_packet *packet)
{
	switch (packet->verdict) {
	case PLAIT_DROP:
		return TC_ACT_SHOT;
	case PLAIT_REDIRECT:
		return bpf_redirect_neigh(packet->redirect_to, NULL, 0, 0);
	case PLAIT_REFLECT:
		return bpf_redirect(ctx->ifindex, packet->hook == PLAIT_EGRESS ? BPF_F_INGRESS : 0);
	}
	return PASS_THROUGH;
}

#include "chains.h"

/* The token of the connection whose socket sends the packet; 0 if it is forwarded or no subflow, or if the
 * kernel does not support the look-up. */
static __always_inline __u32 token_of(struct __sk_buff *ctx)
{
	struct bpf_sock *sender = ctx->sk;
	struct mptcp_sock *connection;

	if (!sender || !bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_skc_to_mptcp_sock))
		return 0;
	connection = (struct mptcp_sock *)bpf_skc_to_mptcp_sock(sender);
	return connection ? connection->token : 0;
}

static __always_inline enum search find(struct __sk_buff *ctx, int has_ethernet, struct headers *found)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	return has_ethernet ? find_ethernet(data, end, found) : find_tcp(data, end, ctx->protocol, found);
}

/* Maximum length of the parsed headers. */
#define MAX_HEADERS (PLAIT_MAX_TCP_OFFSET + 60)

/* The headers of most packets are linear; otherwise they are pulled into the linear area, which is slow. */
static __always_inline enum search find_all(struct __sk_buff *ctx, int has_ethernet, struct headers *found)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	enum search result = find(ctx, has_ethernet, found);

	if (result != HEADERS_CUT || ctx->len <= (__u32)(end - data) ||
	    bpf_skb_pull_data(ctx, ctx->len < MAX_HEADERS ? ctx->len : MAX_HEADERS))
		return result;
	return find(ctx, has_ethernet, found);
}

static __always_inline int arrive(struct __sk_buff *ctx, __u8 hook, int has_ethernet)
{
	const struct plait_settings *asked = plait_settings();
	struct plait_flow *flow = NULL;
	struct plait_packet *packet;
	struct headers found = {};

	if (!asked || !is_found(find_all(ctx, has_ethernet, &found), &found))
		return PASS_THROUGH;
	packet =
	    read_arrival(&found, ctx->gso_size ? ctx->len - found.ip_at : found.ip_bytes, hook, asked, &flow);
	if (!packet)
		return PASS_THROUGH;
	packet->interface = ctx->ifindex;
	packet->mark = ctx->mark;
	if (asked->needs & PLAIT_NEEDS_FLOW)
		flow = subflow_of(packet, flow);
	if (flow) {
		/* The token of a flow never changes. */
		if (hook == PLAIT_EGRESS && asked->needs & PLAIT_NEEDS_TOKEN && !flow->token)
			packet->token = token_of(ctx);
		track(packet, flow, asked);
	}
	return decide(ctx, packet, flow, asked);
}

#define PROGRAM(name, hook, has_ethernet)                                                                    \
	SEC("tc") int name(struct __sk_buff *ctx)                                                            \
	{                                                                                                    \
		return arrive(ctx, hook, has_ethernet);                                                      \
	}

PROGRAM(ingress, PLAIT_INGRESS, 1)
PROGRAM(egress, PLAIT_EGRESS, 1)
PROGRAM(ingress_ip, PLAIT_INGRESS, 0)
PROGRAM(egress_ip, PLAIT_EGRESS, 0)

char _license[] SEC("license") = "Dual MIT/GPL";
