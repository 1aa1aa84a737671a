// SPDX-License-Identifier: MIT OR GPL-2.0
/* Policies for packets that come in, at XDP: before the kernel has made anything of them. */
#define CONTEXT struct xdp_md
#define STEPS xdp_steps
#define LET_GO XDP_PASS

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
	case PLAIT_ANSWER:
		return XDP_TX;
	}
	return XDP_PASS;
}

#include "chains.h"

/* XDP cannot ask what a checksum holds, and to read all of a packet with data would take too long: what the
 * SYN has, the others have, too. */
__weak int remember_checksum(struct xdp_md *ctx, struct plait_packet *packet)
{
	struct plait_flow *flow = packet ? plait_flow(packet) : NULL;

	if (flow && plait_checksum(context_of(ctx), packet) == PLAIT_CHECKSUM_PARTIAL)
		flow->flags |= PLAIT_FLOW_PARTIAL_IN;
	return 0;
}

SEC("xdp")
int ingress(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct plait_settings *asked;
	struct plait_packet *packet;
	struct headers found = {};

	if (find_ethernet(data, end, &found))
		return XDP_PASS;
	packet = read_arrival(&found, end, found.ip_bytes, PLAIT_INGRESS);
	if (!packet)
		return XDP_PASS;
	packet->interface = ctx->ingress_ifindex;
	packet->mark = 0;
	asked = plait_settings();
	if (asked && asked->needs & PLAIT_NEEDS_FLOW) {
		if (remember(packet))
			return XDP_PASS;
		if (packet->kinds & PLAIT_IS_SYN)
			remember_checksum(ctx, packet);
	}
	plait_go_on(ctx, &STEPS, packet);
	return XDP_PASS;
}

SEC("xdp")
int act(struct xdp_md *ctx)
{
	return do_act(ctx);
}

char _license[] SEC("license") = "Dual MIT/GPL";
