// SPDX-License-Identifier: MIT OR GPL-2.0
/* Policies for incoming packets at XDP, before the kernel processes them. */
#define CONTEXT struct xdp_md
#define STEPS xdp_steps
#define PASS_THROUGH XDP_PASS

#include "plait.bpf.h"

static __always_inline struct plait_context context_of(struct xdp_md *ctx)
{
	return (struct plait_context){.xdp = ctx};
}

static __always_inline int verdict_of(struct xdp_md *ctx, const struct plait_packet *packet)
{
	switch (packet->verdict) {
	case PLAIT_DROP:
		return XDP_DROP;
	case PLAIT_REDIRECT:
		return bpf_redirect(packet->redirect_to, 0);
	case PLAIT_REFLECT:
		return XDP_TX;
	}
	return XDP_PASS;
}

#include "chains.h"

SEC("xdp")
int ingress(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct plait_settings *asked = plait_settings();
	struct plait_flow *flow = NULL;
	struct plait_packet *packet;
	struct headers found = {};

	if (!asked || !is_found(find_ethernet(data, end, &found), &found))
		return XDP_PASS;
	packet = read_arrival(&found, found.ip_bytes, PLAIT_INGRESS, asked, &flow);
	if (!packet)
		return XDP_PASS;
	packet->interface = ctx->ingress_ifindex;
	packet->mark = 0;
	if (asked->needs & PLAIT_NEEDS_FLOW)
		flow = subflow_of(packet, flow);
	if (flow)
		track(packet, flow, asked);
	return decide(ctx, packet, flow, asked);
}

char _license[] SEC("license") = "Dual MIT/GPL";
